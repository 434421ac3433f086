// Rounds: when each piece crosses each edge of its tree, if a link carries a given number of pieces per round.
#pragma once

#include <cstdint>
#include <vector>

#include "find/flow.hpp"

namespace allfold::find {

struct Pieces {
    int32_t vertices = 0;
    std::vector<int32_t> tree;     // of every piece
    std::vector<int32_t> due;      // when every piece should be everywhere; from 0 up
    std::vector<int32_t> parent;   // trees × vertices; -1 for the root
    std::vector<int64_t> offsets;  // of the links of the route from the parent, by trees × vertices
    std::vector<int32_t> links;
    std::vector<int64_t> capacity;  // pieces per round, by link
};

// The round in which every piece comes to every vertex (pieces × vertices; -1 at its root): greedily, the piece that
// must leave earliest to be everywhere when it is due first.
std::vector<int32_t> rounds_of(const Pieces& pieces, const Stop& stop);

}  // namespace allfold::find
