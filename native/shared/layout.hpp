// The data that ranks share in shared memory. Everything here is written by its owner alone, except the counts of
// sleepers and the marks of detached ranks, which peers change.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace allfold {

// A hash of the layout and its meaning, which must be the same in two builds that read each other's arenas. Ranks
// compare it before they map anything (src/allfold/engines/shared_memory/rendezvous.py), and every arena begins with
// it.
extern const uint64_t layout_hash;  // layout_hash.cpp

// Two cache lines, not one: processors fetch neighbouring lines in pairs, so a busy neighbour would cause false
// sharing.
inline constexpr size_t line_bytes = 128;

static_assert(std::atomic<uint64_t>::is_always_lock_free, "atomics must work between processes");

// A number that only grows, and that other ranks wait for: see wait.hpp.
struct Counter {
    alignas(line_bytes) std::atomic<uint64_t> value;
    alignas(line_bytes) std::atomic<uint32_t> sleepers;
};

// How peers can access the arrays of a rank's call: not at all, in its arena, or by letting the kernel read its memory.
// A rank with arrays in its arena also announces whether it could fetch those of others.
enum class Reach : uint8_t { none, arena, arena_and_fetches, address };

// Everything about a call in which ranks must agree. src/allfold/engines/signature.py has the same, byte for byte;
// what is done with it is in collectives/signature.hpp.
struct Signature {
    uint64_t elements = 0;  // of the whole buffer
    uint64_t schedule = 0;  // the first bytes of its digest: two schedules may have one name
    uint64_t custom = 0;    // the digest of a user-defined operation; 0 for a built-in one
    int32_t root = 0;
    uint8_t collective = 0, dtype = 0, op = 0, unused = 0;
    uint32_t counts = 0;      // the digest of the slices' lengths; 0 where all are equally long
    char algorithm[28] = {};  // as the caller named it, as far as it fits; empty where the engine chose
    char op_name[16] = {};    // of a user-defined operation, as far as it fits
};

// A rank's call: for its peers to compare, to find its arrays, and to describe in an error.
struct CallRecord {
    Signature signature;              // of the whole call, if this one is a part of it: see Communicator::part_of
    int64_t input = -1, output = -1;  // offsets in the rank's arena, or addresses in its process; -1: no such array
    Reach reach = Reach::none;
    uint8_t unused[3] = {};
    uint32_t number = 0;            // of the whole call, as far as it fits; 0 if this one is no part of another
    uint64_t begun = 0, ended = 0;  // in ticks; `ended` is 0 while the call is in progress
};
inline constexpr size_t record_words = sizeof(CallRecord) / sizeof(uint64_t);
static_assert(sizeof(CallRecord) % sizeof(uint64_t) == 0);
static_assert(sizeof(CallRecord) + sizeof(uint64_t) == line_bytes);  // every call writes one: see SharedRecord

// A fence that ThreadSanitizer need not know about: everything around it is atomic.
template <std::memory_order order>
inline void fence() {
#if !defined(__SANITIZE_THREAD__)
    std::atomic_thread_fence(order);
#endif
}

// A record in shared memory, which its owner overwrites while others may read it: a sequence lock. The version is
// 2·call + 1 while the record of a call is being written, and 2·call + 2 once it is there.
//
// Writing: the fence orders the odd version before every word. Reading: the fence orders every word before the second
// read of the version. So a reader that saw a word of a later record sees, in its second read, a version that has
// changed.
struct alignas(line_bytes) SharedRecord {
    std::atomic<uint64_t> version;
    std::atomic<uint64_t> words[record_words];

    void store(uint64_t call, const CallRecord& record) {
        uint64_t plain[record_words];
        std::memcpy(plain, &record, sizeof plain);
        version.store(2 * call + 1, std::memory_order_relaxed);
        fence<std::memory_order_release>();
        for (size_t i = 0; i < record_words; ++i) words[i].store(plain[i], std::memory_order_relaxed);
        version.store(2 * call + 2, std::memory_order_release);
    }
    // Marks the end of the call: sets the last word, see CallRecord. A single word cannot be torn, and it belongs to
    // the present version.
    void end(uint64_t ticks) { words[record_words - 1].store(ticks, std::memory_order_relaxed); }
    // Reads the record of that call; false if it is not there yet or no longer there.
    bool load(uint64_t call, CallRecord& record) const {
        if (version.load(std::memory_order_acquire) != 2 * call + 2) return false;
        uint64_t plain[record_words];
        for (size_t i = 0; i < record_words; ++i) plain[i] = words[i].load(std::memory_order_relaxed);
        fence<std::memory_order_acquire>();
        if (version.load(std::memory_order_relaxed) != 2 * call + 2) return false;
        std::memcpy(&record, plain, sizeof plain);
        return true;
    }
};

// Why a rank makes no further calls: it saw a mismatch, was aborted or gave up for another reason, closed its
// communicator, or gave up because another rank was late.
enum class Standing : uint32_t { open, mismatch, aborted, left, late };

// The calls by which a rank may be ahead of another. More than the two that large arrays have work areas for: ranks
// that share a core then make several small calls in a row, if none needs an answer, and switch less often.
inline constexpr size_t calls_ahead = 7;
// A rank writes its record and chain before it waits for the ranks that are further behind (Communicator::enter), so a
// peer may still compare those of `calls_ahead` calls ago. The other records are for people: the flight recorder.
inline constexpr size_t records_kept = 256;
inline constexpr size_t most_ranks = 1024;              // of one communicator
inline constexpr size_t chains_kept = calls_ahead + 1;  // a power of two: numbers of calls may wrap around
inline constexpr size_t inline_bytes = 8;

// One rank's side of one communicator.
struct Post {
    // The rank's progress in instructions, over all calls; a release store after each one that a peer waits for. The
    // chain beside it, a hash of all calls the rank has made so far, is written before and read after it. It is in the
    // same cache line and costs no extra miss. Half of the hash is enough, and all have to fit.
    alignas(line_bytes) std::atomic<uint64_t> progress;
    std::atomic<uint32_t> chain[chains_kept];
    // The two work areas for the smallest messages, in the same line too: progress and data then cost one miss
    // together.
    char inline_work[2][inline_bytes];
    // The core that the rank ran on when it last published something, or -1: in the same line, which it writes anyway.
    std::atomic<int32_t> core;
    alignas(line_bytes) std::atomic<uint32_t> sleepers;
    // Hardly ever written: peers read the standing in every call that accesses arrays, and must find it in their
    // caches.
    alignas(line_bytes) std::atomic<uint32_t> standing;
    std::atomic<uint32_t> fences_for_all;  // see publish() in wait.hpp
    // A known number, and its address in this process: a peer that can fetch it from there can also fetch arrays.
    std::atomic<uint64_t> probe_word, probe_address;
    std::atomic<uint64_t> start_ticks, start_time;        // both clocks at the same moment; the time in ns since 1970
    alignas(line_bytes) std::atomic<uint64_t> last_call;  // the call that the rank has reached
    std::atomic<uint64_t> last_done;                      // the call that it has done its part of
    std::atomic<uint32_t> waiting_for;                    // the rank that it waits for, plus one, if the wait is long
    std::atomic<uint32_t> writing;  // odd while the rank writes into arrays of its peers: see Communicator::Writing
    // The progress of that rank that ends the wait. If it has been reached, the rank waits for something else, such as
    // its interpreter. Written before waiting_for.
    std::atomic<uint64_t> waiting_until;
    // By rank, one bit each: the ranks that caused it to give up, if it knows that from elsewhere. Written before the
    // standing.
    std::atomic<uint64_t> because_of[most_ranks / 64];
    // By rank, one bit each, set by that rank: it no longer touches the group's memory. See attachment.hpp.
    std::atomic<uint64_t> detached[most_ranks / 64];
    // The exception that the rank ends with, if it knows one. Written before the standing changes, and not after.
    std::atomic<char> last_words[256];
    // For the surviving ranks to agree on who they are: see engines/shared_memory/shrink.py.
    std::atomic<uint64_t> shrink[4 + 2 * most_ranks / 64];
    SharedRecord records[records_kept];
};
static_assert(offsetof(Post, core) + sizeof(Post::core) <= 64, "progress, chains, data and core share a line");

}  // namespace allfold
