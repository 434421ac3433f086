// One rank's program, as the compiler in Python made it (src/allfold/programs/compile.py says what it means).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/layout.hpp"

namespace allfold {

// What peers may do with a rank's arrays.
enum class Memory : uint8_t { private_, readable, shared };

enum class Space : uint8_t { input, output, work };

struct Slot {
    uint32_t rank;
    Space space;
    uint32_t index;  // the chunk, or the number of the work slot
};

struct Wait {
    uint32_t rank;
    uint32_t count;  // of instructions that the peer must have done
};

template <typename Item>
struct Rows {
    std::vector<uint32_t> starts;
    std::vector<Item> items;

    const Item* begin(size_t row) const { return items.data() + starts[row]; }
    const Item* end(size_t row) const { return items.data() + starts[row + 1]; }
    size_t count(size_t row) const { return starts[row + 1] - starts[row]; }
};

// The chunks of the whole buffer that a rank's array holds: from `begin` up to, not including, `end`.
struct Extent {
    uint32_t begin, end;
};

struct Program {
    std::string name;
    uint64_t schedule = 0;  // the first bytes of its digest
    uint32_t rank = 0, ranks = 0;
    std::vector<uint32_t> lengths;  // by rank: the instructions of its program
    uint32_t chunks = 0;
    uint32_t slices = 1;      // of the whole buffer, all equally long
    uint32_t work_slots = 0;  // the most that any rank needs
    bool one_area =
        false;  // peers are known to be done with a slot before it is reused: all segments use the same slots
    Memory memory = Memory::private_;
    Rows<Slot> sources, destinations;
    Rows<Wait> waits, reuse;
    std::vector<Wait> leave;
    std::vector<uint32_t> length_of;
    std::vector<uint8_t> complete;        // the result holds every contribution: an average divides
    std::vector<uint8_t> announce;        // somebody waits for this instruction
    bool silent = false;                  // in a call of one segment the end need not be published
    std::vector<Extent> inputs, outputs;  // by rank
    // Found by check_program().
    uint32_t instructions = 0;
    uint32_t stride = 0;  // the longest program of any rank: what a segment adds to everyone's progress
    uint32_t most_sources = 0, most_destinations = 0;  // of one instruction

    const Extent& extent(const Slot& slot) const { return (slot.space == Space::input ? inputs : outputs)[slot.rank]; }
};

// Checks everything that the engine relies on while it runs the program: every rank, slot, chunk, wait and list is in
// range, and everything that peers wait for is published. Throws if something is wrong, which is an error of the
// program's author. That the program does what its schedule says is proved where it is made
// (src/allfold/programs/check.py).
void check_program(Program& program);

}  // namespace allfold
