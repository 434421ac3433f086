// One step of a schedule: the folds that its moves make, or the move that makes no sense.
#pragma once

#include <cstdint>
#include <vector>

namespace allfold::proof {

struct Moves {
    int64_t size;
    const int32_t *reduces, *chunk, *source, *destination, *into;
};

// What every cell (rank · width + chunk) holds, as `State` of src/allfold/symbolic.py has it; a datum below zero is
// nothing. A chunk's place among the `part` chunks of its slice decides its length. `written`: when each cell was
// written last, in numbers that grow.
struct Holding {
    int64_t ranks, width, chunks, part;
    const int32_t *datum, *first;
    int64_t* written;
};

enum class Senseless : int { nothing, takes_nothing, two_writes, reduces_into_nothing };

// As `Folds` of symbolic.py: the copies, in the order of the moves, then the reductions by target, each with what is
// there among its operands, ordered by the lowest rank that has contributed. `at`: the move or cell that makes no
// sense.
struct StepFolds {
    Senseless wrong = Senseless::nothing;
    int64_t at = -1;
    bool elsewhere = false;  // a copy puts a piece of data into a chunk that may be shorter
    std::vector<int64_t> target{}, starts{}, operands{}, move{};
};

// `number` is higher than any in `written`; with the next one, it marks what this step writes.
StepFolds folds_of(const Moves& moves, const Holding& holding, int64_t number);

}  // namespace allfold::proof
