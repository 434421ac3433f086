// One rank's program, as the compiler in Python made it (src/allfold/programs/compile.py says what it means).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/layout.hpp"

namespace allfold {

inline constexpr size_t window_bytes = size_t{1} << 20;  // one of the two work areas of a rank
// One of its further work areas, for small calls of collectives with a root: as many as there can be calls in progress.
inline constexpr size_t small_bytes = size_t{1} << 14;
inline constexpr size_t small_areas = chains_kept;

// How ordinary arrays are moved, by architecture, unless `allfold tune` has found something better. Measured with 2, 4
// and 8 ranks on 2 cores (Xeon; Neoverse-N1) and up to 16 ranks on 16 cores (Xeon); docs/performance.md has the
// figures.
struct Habits {
    uint32_t most_handed;  // peers into whose work areas a rank writes what it has reduced; the others read it
    bool copies_in_rows;   // arrays larger than the caches are read in several rows side by side
    size_t slot_bytes;     // of every work slot in a segment; 0: as much as segment_bytes allows
};
#if defined(__aarch64__)
// Writing to a cache line that a peer has read is slow, so no rank writes where another reads.
inline constexpr Habits habits = {0, false, size_t{1} << 16};
#else
inline constexpr Habits habits = {7, true, 0};
#endif

// The size of the work area that one segment uses: small enough to stay in an L2 cache while peers read it, large
// enough that waiting for peers does not matter. An area that every segment reuses should stay in the cache from one
// segment to the next, together with the data copied to and from it, even if several ranks share the core. But divided
// into many slots it would be too small, and ranks that share cores would switch too often.
inline constexpr size_t segment_bytes(size_t work_slots, bool one_area) {
    constexpr size_t least = size_t{1} << 17, most = size_t{1} << 19;
    if (habits.slot_bytes) return std::clamp(habits.slot_bytes * work_slots, least, most);
    if (!one_area) return most;
    return work_slots <= 8 ? least : 2 * least;
}

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
    uint32_t slices = 1;      // of the whole buffer
    bool exchanges = false;   // every rank's slices are data of their own: see collectives.py
    uint32_t work_slots = 0;  // the most that any rank needs
    bool one_area =
        false;  // peers are known to be done with a slot before it is reused: all segments use the same slots
    Memory memory = Memory::private_;
    size_t segment_bytes = 0;  // of a work area; 0 becomes what the function of this name gives
    bool copies_in_rows = habits.copies_in_rows;
    Rows<Slot> sources, destinations;
    Rows<Wait> waits, reuse;
    std::vector<Wait> leave;
    // The piece of data whose length an instruction handles: a chunk or, where ranks exchange, owner · chunks + chunk.
    // check_program() moves these numbers to datum_of, and leaves the chunk.
    std::vector<uint32_t> length_of;
    std::vector<uint8_t> complete;        // the result holds every contribution: an average divides
    std::vector<uint8_t> announce;        // a peer waits for this instruction
    bool silent = false;                  // in a call of one segment the end need not be published
    std::vector<Extent> inputs, outputs;  // by rank
    // Found by check_program().
    uint32_t instructions = 0;
    uint32_t stride = 0;  // the longest program of any rank: what a segment adds to everyone's progress
    uint32_t most_sources = 0, most_destinations = 0;  // of one instruction
    std::vector<uint8_t> reads_peers, writes_peers;    // true if an instruction accesses arrays of other ranks
    bool writes_own_output = false;                    // true if an instruction of this rank does
    std::vector<uint32_t> datum_of;                    // where ranks exchange; elsewhere it is length_of
    // In arrays, every piece of data is in its own place, never in that of another one, so slices may differ in length.
    bool keeps_places = true;

    const Extent& extent(const Slot& slot) const { return (slot.space == Space::input ? inputs : outputs)[slot.rank]; }
};

// Where the chunks of a call begin in the arrays of its ranks, if slices differ in length.
struct Parts {
    // `counts`: one length per slice; where ranks exchange, one row of them per rank, which it sends.
    Parts(const std::vector<uint64_t>& counts, uint32_t digest, const Program& program);

    uint64_t first(Space space, uint32_t rank, uint32_t chunk) const {
        return firsts_[space == Space::input ? 0 : 1][rank * row_ + chunk];
    }
    uint64_t length(const Program& program, uint32_t instruction) const {
        const std::vector<uint64_t>& inputs = firsts_[0];
        uint32_t chunk = program.length_of[instruction];
        size_t at = (row_ ? program.datum_of[instruction] / program.chunks * row_ : 0) + chunk;
        return inputs[at + 1] - inputs[at];
    }

    uint32_t digest;
    uint64_t longest = 0;  // chunk

  private:
    size_t row_;  // from one rank's numbers to the next one's; 0 where all ranks have the same
    std::vector<uint64_t> firsts_[2];
};

// Checks everything that the engine relies on while it runs the program: every rank, slot, chunk, wait and list is in
// range, and everything that peers wait for is published. Throws if something is wrong, which is an error of the
// program's author. That the program does what its schedule says is proved where it is made
// (src/allfold/programs/check.py).
void check_program(Program& program);

}  // namespace allfold
