// Compiled programs, run in symbols: what src/allfold/programs/check.py compares with the schedule.
#pragma once

#include <cstdint>

namespace allfold::proof {

// The (rank, slot) pairs of all instructions: those of row i are from starts[i] to starts[i + 1].
struct Accesses {
    const int64_t* starts;
    const int64_t* rank;
    const int64_t* slot;
};

// What every place (rank · slots + slot) holds: which piece of data, a hash of the expression that made it, and how
// many contributions it has. As in symbolic.py, where a datum below zero is nothing.
struct Held {
    int64_t slots;
    int32_t* datum;
    uint64_t* bits;
    int32_t* count;
};

// What each instruction found: the piece of data and the contributions that it folded, and whether they were of
// different pieces.
struct Found {
    int32_t* datum;
    int32_t* count;
    bool* mixed;
};

// Runs the instructions in the order of their rounds. Nothing that runs in one round may conflict.
void follow(const int64_t* when, int64_t rows, const Accesses& sources, const Accesses& destinations, const Held& held,
            const Found& found);

}  // namespace allfold::proof
