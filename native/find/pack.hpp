// Spanning trees in a graph with whole-number capacities: a given number from every root, and no edge used more often
// than its capacity allows (Edmonds).
#pragma once

#include <cstdint>
#include <vector>

#include "find/cut.hpp"

namespace allfold::find {

struct Tree {
    int32_t root = 0;
    int64_t times = 0;            // the number of trees of this shape
    std::vector<int32_t> parent;  // of every vertex; -1 for the root
};

// True if every vertex can get `wanted[r]` from every root r at the same time: the condition for the trees to exist.
bool can_pack(const Graph& graph, const std::vector<int64_t>& wanted, const Stop& stop);

// `wanted[r]` spanning trees from every vertex r, shallow ones where that is easy. Empty if there are none; unless
// `careful`, also if packing gets stuck.
std::vector<Tree> pack_trees(const Graph& graph, const std::vector<int64_t>& wanted, const std::vector<int32_t>& order,
                             bool careful, const Stop& stop);

}  // namespace allfold::find
