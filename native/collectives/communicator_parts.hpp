// Shared by the two files of the communicator: running programs (communicator.cpp), and failures meanwhile
// (communicator_wait.cpp).
#pragma once

#include "collectives/communicator.hpp"
#include "collectives/signature.hpp"

namespace allfold {

// The element that a chunk begins with: chunk · elements / chunks, computed without the product, which may overflow.
// `whole` and `rest`: the elements of the buffer, divided by the chunks.
inline uint64_t first_element(uint64_t chunk, uint64_t whole, uint64_t rest, uint64_t chunks) {
    return chunk * whole + chunk * rest / chunks;
}

// The length of this rank's input or output.
inline size_t bytes_of(Space space, const Call& call, const Program& program) {
    const Extent& extent = (space == Space::input ? program.inputs : program.outputs)[program.rank];
    size_t element = size_of(call.dtype);
    if (call.parts)
        return (call.parts->first(space, program.rank, extent.end) -
                call.parts->first(space, program.rank, extent.begin)) *
               element;
    uint64_t chunks = program.chunks, whole = call.elements / chunks, rest = call.elements % chunks;
    uint64_t begin = first_element(extent.begin, whole, rest, chunks);
    return (first_element(extent.end, whole, rest, chunks) - begin) * element;
}

// The state of one call.
struct Communicator::Running {
    const std::function<void()>& before_blocking;
    const std::function<void()>& interrupted;
    CallRecord record;
    Clock::duration timeout;
    Clock::time_point deadline{};   // set when a wait first takes long: most calls never read a clock
    Clock::time_point next_look{};  // when to ask the system whether all peers are alive
    // By rank; they belong to the communicator, so that a call allocates nothing.
    std::vector<uint8_t>& met;         // peers that were seen to be in the same call
    std::vector<const char*>& inputs;  // addresses of arrays: our own, and those of peers that may be accessed
    std::vector<char*>& outputs;
    std::vector<uint8_t>& far;  // those are addresses in the peer's own process
    const Program* program = nullptr;
    const Parts* parts = nullptr;
    size_t element = 0;            // bytes
    uint64_t whole = 0, rest = 0;  // the elements of the buffer, divided by the chunks
    uint32_t segments = 1;
    uint64_t segment_elements = 0;  // of every chunk; the last segments have what is left
    size_t slot_bytes = 0;
    // Which work area is used. Large: the two of each rank in turn. Tiny: the same, inside the posts. Small: that of
    // the call's number.
    enum class Area { none, tiny, small, large } area = Area::none;
    bool beyond_caches = false;  // the arrays are too large for them

    uint64_t first_of(uint64_t chunk) const { return first_element(chunk, whole, rest, program->chunks); }
    // Where a slot's chunk begins in the array that holds it.
    uint64_t first_in_array(const Slot& slot) const {
        uint32_t origin = program->extent(slot).begin;
        if (parts) [[unlikely]]
            return parts->first(slot.space, slot.rank, slot.index) - parts->first(slot.space, slot.rank, origin);
        return first_of(slot.index) - first_of(origin);
    }
    uint64_t length_of(uint32_t instruction) const {
        if (parts) [[unlikely]]
            return parts->length(*program, instruction);
        uint64_t chunk = program->length_of[instruction];
        return first_of(chunk + 1) - first_of(chunk);
    }
};

// While it exists, this rank writes into arrays of its peers. It marks that in its post, and then checks that no peer
// has given up: a rank that gives up changes its standing, and then checks the marks. Each side has a fence between its
// store and its check, so one of the two sees the other: either this rank does not write, or the other one waits until
// it has written (Communicator::let_go). As in publish(), the kernel can run this rank's fence when the other one needs
// it, which is hardly ever.
class Communicator::Writing {
  public:
    Writing(std::atomic<uint32_t>& mark, std::atomic<uint32_t>& sleepers, bool fenced_by_others) : mark_(mark) {
        mark_.store(mark_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        order_before_look(sleepers, fenced_by_others);
    }
    // Release: a rank that sees the mark cleared also sees what was written.
    ~Writing() { mark_.store(mark_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
    Writing(const Writing&) = delete;

  private:
    std::atomic<uint32_t>& mark_;
};

// The thread that has the turn is in a call, or keeps others from beginning one. It is a mutex whose wait has a timeout
// and can be interrupted: 0 is free, 1 is taken, 2 is taken and a thread may be asleep for it. Acquire when it is
// taken, release when it is given back: what a communicator keeps from call to call is written by one thread after the
// other.
class Communicator::Turn {
  public:
    Turn(Communicator& communicator, const char* name, Clock::duration timeout,
         const std::function<void()>& before_blocking, const std::function<void()>& interrupted);
    ~Turn();
    Turn(const Turn&) = delete;

  private:
    Communicator& communicator_;
};

}  // namespace allfold
