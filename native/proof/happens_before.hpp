// Happens-before between the instructions of all ranks, for src/allfold/programs/happens_before.py.
//
// An instruction's clock says, for every rank, how many of its instructions are known to be done before it: those
// before it in its own program, and, through each wait, all that the awaited instruction knew.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace allfold::proof {

// Instruction i of rank r is row starts[r] + i. The waits of a row are those from wait_starts[row] to
// wait_starts[row + 1]; a wait is met when that rank has done that many instructions.
struct Programs {
    int64_t ranks;
    const int64_t* starts;
    const int64_t* wait_starts;
    const int64_t* wait_rank;
    const int64_t* wait_count;

    int64_t rows() const { return starts[ranks]; }
    int64_t waits() const { return wait_starts[rows()]; }
    int64_t awaited(int64_t wait) const { return starts[wait_rank[wait]] + wait_count[wait] - 1; }
};

// Throws unless all of that is in range, so that nothing below reads outside the arrays.
void check_ranges(const Programs& programs);

// By row: the round in which it runs, if all ranks run as soon as they can; -1 if it never does.
std::vector<int64_t> rounds(const Programs& programs);

// By wait: true if it adds anything to what the waits before it imply. A clock is kept for `horizon` rounds; a wait for
// an older instruction implies only that this instruction is done. So some waits may be called needed that are not, but
// none is wrongly called implied. All rows must have a round.
std::vector<uint8_t> needed_waits(const Programs& programs, const int64_t* when, int64_t horizon);

// The first pair (earlier, later) that nothing orders, by the round of `later`; -1 if there is none. All rows must have
// a round.
int64_t first_unordered(const Programs& programs, const int64_t* when, const int64_t* earlier, const int64_t* later,
                        int64_t pairs);

}  // namespace allfold::proof
