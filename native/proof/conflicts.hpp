// The accesses to memory that must be ordered: those of different ranks to the same place, one of them a write.
#pragma once

#include <cstdint>
#include <vector>

namespace allfold::proof {

// Access i is made by instruction row[i], at place[i].
struct AccessList {
    int64_t size;
    const int64_t* row;
    const int64_t* place;
    const bool* writes;
};

struct Conflicts {
    std::vector<int64_t> earlier, later;  // rows
};

// The pairs of rows to keep in order. `when` says when each row runs; at the same time, reads come before writes. Each
// access is compared with the last write before it, and each read with the next write after it: the rest follows. First
// all pairs of the first kind, then all of the second, each by place and time. Row r is of the rank whose part of
// `starts` it is in.
Conflicts conflicts(const AccessList& accesses, const int64_t* when, const int64_t* starts, int64_t ranks);

}  // namespace allfold::proof
