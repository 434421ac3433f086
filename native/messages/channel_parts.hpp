// Shared by the two files of the channel: moving bytes (channel.cpp) and waiting (channel_wait.cpp).
#pragma once

#include <algorithm>
#include <bit>

#include "messages/channel.hpp"
#include "shared/text.hpp"

namespace allfold {

using namespace std::chrono_literals;

inline constexpr auto helper_pause =
    500us;  // how long the helper leaves an operation to a thread that may be about to wait for it
inline constexpr uint32_t helper_rounds = 100;  // pauses without work before the helper sleeps until it is called
inline constexpr auto helper_looks = 200ms;     // how often it checks whether the peers are still there
inline constexpr uint64_t unit = sizeof(MessageHeader);
inline constexpr size_t most_that_offer = 4;          // ranks
inline constexpr uint64_t fetched_at_once = 1 << 20;  // bytes, before other messages have their turn
inline constexpr auto longest_reading = 1s;           // that a sender which takes its offer back waits for the receiver

inline uint64_t whole_units(uint64_t bytes) { return (bytes + unit - 1) / unit * unit; }

// A megabyte for all rings together, but at least a page for each; more than 256 KiB for one gains nothing.
inline constexpr uint64_t all_rings_bytes = 1 << 20, least_ring_bytes = page;
inline constexpr uint64_t ring_bytes_for(uint32_t ranks) {
    return std::bit_floor(std::clamp<uint64_t>(all_rings_bytes / ranks, least_ring_bytes, 256 << 10));
}

// An inbox: the bell, the ends of all rings, and from the next page on the rings.
inline size_t rings_offset(uint32_t ranks) { return whole_pages(sizeof(Counter) + ranks * sizeof(Ring)); }

// Tell a rank that there are new bytes or new room. The fence orders the preceding store of head or tail before the
// read of `sleepers`; a sleeper does the opposite (counts itself, fence, reads heads and tails), so one of the two sees
// the other: see publish() in wait.hpp. Release on its number: a sleeper that reads the new number sees the head or
// tail as well.
inline void ring_bell(Counter& bell) {
    order_all(bell.sleepers);
    if (bell.sleepers.load(std::memory_order_relaxed) == 0) return;
    bell.value.fetch_add(1, std::memory_order_release);
    wake_all(bell.value);
}

inline bool matches(const Operation& receive, uint32_t source, const MessageHeader& header) {
    return (receive.peer == any_source || receive.peer == source) &&
           (receive.tag == any_tag || receive.tag == header.tag) && receive.context == header.context;
}

inline bool sends(const Operation& operation) { return operation.kind == Operation::Kind::send; }

inline bool probes(const Operation& operation) { return operation.kind == Operation::Kind::probe; }
inline bool takes(const Operation& operation) { return operation.kind == Operation::Kind::take; }

inline std::string name_of(const Operation& operation) {
    const char* name = sends(operation) ? "send" : probes(operation) ? "probe" : "recv";
    return joined({operation.background ? "i" : "", name});
}

inline MessageHeader header_of(const Operation& send) {
    return {.elements = send.elements,
            .tag = static_cast<int32_t>(send.tag),
            .dtype = static_cast<uint8_t>(send.dtype),
            .context = send.context,
            .asks = send.asks};
}

inline std::string what(DType dtype, uint64_t elements) { return joined({name_of(dtype), "[", elements, "]"}); }

struct Channel::Inbound {
    uint32_t source = 0;
    Ring* ends = nullptr;
    const char* bytes = nullptr;
    uint64_t taken = 0;
    // The message that is arriving: into a receive's array, or a store; or into neither, if it was rejected.
    bool arriving = false;
    MessageHeader header;
    uint64_t total = 0, got = 0;
    bool offered = false;  // and is to be read out of its sender's process
    enum class Fetching : uint8_t { untried, works, fails } fetching = Fetching::untried;
    Operation* into = nullptr;
    Stored* stored = nullptr;
};

struct Channel::Stored {
    uint32_t source;
    MessageHeader header;
    std::unique_ptr<char[]> bytes;
    Inbound* from;  // while it is still arriving
};

struct Channel::Outbound {
    Ring* ends = nullptr;
    char* bytes = nullptr;
    Counter* bell = nullptr;
    uint64_t head = 0, tail = 0;  // tail as last seen: the receiver's line is only read when room seems to be short
    std::deque<Operation*> queue{};
    bool cut = false;  // ended in the middle of a message: nothing more can be sent
};

}  // namespace allfold
