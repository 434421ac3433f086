// Spreading chunks over a network by a greedy rule, round by round, for networks of thousands of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "find/flow.hpp"

namespace allfold::find {

// Pairs of ranks that can send to each other. Pair i leads from source[i] to destination[i] over the links
// links[offsets[i]] to links[offsets[i + 1] - 1]; link l carries capacity[l] chunks in one round.
struct Neighbours {
    uint32_t ranks = 0;
    std::vector<int32_t> source, destination;
    std::vector<int64_t> offsets;
    std::vector<int32_t> links;
    std::vector<int32_t> capacity;
};

// Moves in order; those of round r are starts[r] to starts[r + 1] - 1.
struct Rounds {
    std::vector<int64_t> starts{0};
    std::vector<int32_t> chunk, source, destination;
};

// Every chunk from the rank that holds it to all ranks. In every round, every rank takes the rarest chunks that it can
// get; which of equally rare ones depends on the seed. No rounds if a rank cannot be reached.
Rounds spread(const Neighbours& neighbours, const std::vector<int32_t>& holder, uint64_t seed, const Stop& stop);

}  // namespace allfold::find
