// One step of a schedule in symbols: the folds that src/allfold/symbolic.py has found in it.
#pragma once

#include <cstdint>

namespace allfold::proof {

// By cell, as `State` has it. `members`: one bit per contribution, in `words` words per cell; null where nothing is
// reduced.
struct Cells {
    int32_t *datum, *first, *last, *count;
    bool* in_order;
    uint64_t *expression, *bits;
    uint64_t* members;
    int64_t words;
};

// Fold i puts what operands[starts[i]] to operands[starts[i + 1]] make into target[i].
struct Folds {
    int64_t size;
    const int64_t* target;
    const int64_t* starts;
    const int64_t* operands;
};

enum class Wrong : int { nothing, mixture, reduction, twice };

// What is wrong with a step, in which fold, and with which of its operands.
struct FoldFault {
    Wrong what = Wrong::nothing;
    int64_t fold = -1, operand = -1;
};

// Folds each run of operands from left to right; all of them read what was there before. Of several faults, the one of
// the first operands. Nothing is written if there is a fault, or unless `write`.
FoldFault fold(const Cells& cells, const Folds& folds, bool twice_is_wrong, bool write);

}  // namespace allfold::proof
