// One rank's program, as the compiler in Python made it (src/allfold/run/program.py says what it means).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout.hpp"

namespace allfold {

// What peers may do with a rank's arrays.
enum class Memory : uint8_t { unreachable, readable, shared };

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
};

struct Program {
    std::string name;
    uint32_t instructions = 0;
    uint32_t stride = 0;      // the longest program of any rank: what a segment adds to everyone's progress
    uint32_t chunks = 0;
    uint32_t work_slots = 0;  // the most that any rank needs
    bool one_area = false;    // peers are known to be done with a work slot: all segments use the same ones
    Memory memory = Memory::unreachable;
    Rows<Slot> sources, destinations;
    Rows<Wait> waits, reuse;
    std::vector<Wait> leave;
    std::vector<uint32_t> length_of;
    std::vector<uint8_t> complete;  // the result holds every contribution: an average divides
    std::vector<uint8_t> announce;  // somebody waits for this instruction
    bool end_awaited = false;       // somebody waits for the last one before it ends its own part of the same segment
    std::vector<uint32_t> input_origin, output_origin;  // by rank: the chunk that the array begins with
};

}  // namespace allfold
