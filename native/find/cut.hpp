// The tightest cut of a network, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "find/flow.hpp"

namespace allfold::find {

struct Graph {
    int32_t vertices = 0;
    std::vector<int32_t> tail, head;
    std::vector<int64_t> capacity;
};

struct Cut {
    int64_t weight = 0;    // of the vertices inside
    int64_t capacity = 0;  // of the edges that leave; 0 with a weight: nothing leaves at all
    std::vector<uint8_t> inside;
};

// Of all sets of vertices that lack at least one of `sinks`, the one with the most weight per capacity that leaves it.
Cut tightest_cut(const Graph& graph, const std::vector<int64_t>& weight, const std::vector<int32_t>& sinks,
                 const Stop& stop);

// The minimum cuts, each once, of all sinks that get less than `wanted` of what the vertices feed in by their weight.
std::vector<std::vector<uint8_t>> cuts_below(const Graph& graph, const std::vector<int64_t>& weight,
                                             const std::vector<int32_t>& sinks, int64_t wanted, const Stop& stop);

}  // namespace allfold::find
