// Every value that every cell ever holds: which values each fold reads, and which one it replaces.
#pragma once

#include <cstdint>
#include <vector>

namespace allfold::proof {

// The folds of all steps, after the values that are there from the start: those have no operands. The folds of step s
// are the steps[s]-th to the steps[s + 1]-th of all.
struct AllFolds {
    const int64_t* steps;
    int64_t count;
    const int64_t* cell;
    const int64_t* sizes;
    const int64_t* operands;  // cells
    int64_t reads;
};

// `operand`: the versions that are read. By version: which one it replaces, or -1; its piece of data; how many
// contributions it holds. By cell: its last version, or -1.
struct Versions {
    std::vector<int64_t> operand, previous, datum, count, current;
    bool whole = true;  // every operand was there
};

Versions versions(const AllFolds& folds, const int32_t* datum, const int32_t* count, int64_t initial, int64_t cells);

}  // namespace allfold::proof
