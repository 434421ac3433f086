// Waiting for a number to grow: first spin, then yield, then sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "shared/ticks.hpp"

namespace allfold {

using Clock = std::chrono::steady_clock;

inline constexpr auto nap = std::chrono::milliseconds(20);  // the longest sleep before checking that peers are there

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    // isb waits about as long as a pause on x86; yield is a no-op on most cores.
    asm volatile("isb" ::: "memory");
#endif
}

// How long to spin before giving up the processor. With a core for every rank, spinning is the fastest, but only for a
// short time: the system may still have put two ranks on one core. With more ranks than cores, a spinning rank can keep
// the rank it waits for from running, so it yields at once.
inline constexpr uint32_t eager_looks = 64;

struct Patience {
    uint32_t looks;
    uint32_t yields;

    static Patience for_ranks(uint32_t ranks);
    // For ranks whose peers wait for another host, where cores are scarce: that takes long, and the thread that moves
    // the data may need the core.
    static constexpr Patience for_wires() { return {200, 2}; }
};

// The core that this thread runs on, or -1 where asking costs more than a load.
int32_t current_core();

// Sleep until the low half of `value` differs from `seen`, or the time is up; may also return early. wake_all() wakes.
void sleep_on(std::atomic<uint64_t>& value, uint64_t seen, Clock::duration at_most);
void wake_all(std::atomic<uint64_t>& value);
void let_others_run();

// Detects whether other programs keep the cores busy. A yield then lasts for their time slices, milliseconds, while a
// rank that sleeps gets its core back when it is woken. A communicator that has seen several such yields sleeps at once
// for a while, and then tries yielding again.
class Crowd {
  public:
    bool is_here() {
        uint32_t waits = waits_.load(std::memory_order_relaxed);
        if (waits == 0) return false;
        waits_.store(waits - 1, std::memory_order_relaxed);
        return true;
    }
    // Record whether a yield has taken long. A single long one may be due to a peer that works: only several among a
    // few yields show that the cores are busy.
    void yielded(bool long_one) {
        uint32_t seen = seen_.load(std::memory_order_relaxed);
        if (!long_one && seen == 0) return;
        seen = long_one ? seen + among : seen - 1;
        bool is_crowd = seen > (several - 1) * among;
        seen_.store(is_crowd ? 0 : seen, std::memory_order_relaxed);
        if (is_crowd) waits_.store(remembered, std::memory_order_relaxed);
    }

  private:
    static constexpr uint32_t remembered = 1000, several = 2, among = 400;
    // Threads of a rank may wait at the same time. Relaxed, and no read-modify-write: it orders nothing, and counting
    // one wait more or less makes no difference.
    std::atomic<uint32_t> waits_{0}, seen_{0};
};

// The yields of one wait. Each may take as long as other processes run: on a busy machine hundreds of them
// would take seconds, in which a rank notices neither its timeout nor the loss of a peer. So they end after a while.
class Yields {
  public:
    Yields(const Patience& patience, Crowd& crowd) : most_(crowd.is_here() ? 0 : patience.yields), crowd_(crowd) {}
    // Let others run; returns false at once when it is time to sleep.
    bool once() {
        if (done_ >= most_) return false;
        ++done_;
        uint64_t before = ticks();
        let_others_run();
        uint64_t took = ticks() - before;
        crowd_.yielded(took > long_yield());
        if (took > long_yield()) {
            done_ = most_;
        } else if ((all_ += took) > most_ticks()) {
            done_ = most_;
        }
        return true;
    }
    void restart() { done_ = 0; }

  private:
    // Longer than the work of a peer on the same core takes between two waits, shorter than the time slice of a program
    // that never waits.
    static uint64_t long_yield() { return 700 * ticks_per_microsecond(); }
    static uint64_t most_ticks() { return 5000 * ticks_per_microsecond(); }

    uint32_t most_, done_ = 0;
    uint64_t all_ = 0;
    Crowd& crowd_;
};

// A full fence: orders everything before it before everything after it, with respect to another thread's order_all() on
// the same `sleepers`.
inline void order_all([[maybe_unused]] std::atomic<uint32_t>& sleepers) {
#if defined(__SANITIZE_THREAD__)
    // ThreadSanitizer does not know fences. Two read-modify-writes of one number are ordered one after the other, and
    // the later one sees everything before the earlier one: the same guarantee at a higher cost.
    sleepers.fetch_add(0, std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// True if a thread that goes to sleep in this process lets the kernel run a fence in all threads that could wake it
// (membarrier). If that holds for all ranks, publishing needs no fence.
bool sleepers_fence_for_all();
void fence_for_all();

// A fence between a store and a read of what others store: order_all(), or only the compiler's order where those others
// let the kernel run a fence here (`fenced_by_others`).
inline void order_before_look(std::atomic<uint32_t>& sleepers, bool fenced_by_others) {
#if defined(__SANITIZE_THREAD__)
    fenced_by_others = false;  // ThreadSanitizer does not see what the kernel does
#endif
    if (fenced_by_others)
        std::atomic_signal_fence(std::memory_order_seq_cst);
    else
        order_all(sleepers);
}

// Publish `value` to the ranks that wait for it.
//
// Release: everything written before is visible to a reader of the new value. The fence after it orders the store
// before the read of `sleepers`. A sleeper does the opposite (counts itself, fence, reads the value), so one of the two
// sees the other: either we wake it, or it does not go to sleep. Without the fence both could read too early.
//
// The fence waits until the store has reached every cache, twice in every call, although peers hardly ever sleep. With
// `fenced_by_sleepers` the sleeper pays instead: between counting itself and looking at the value it has the kernel run
// a fence on every processor that runs a rank. If our store comes before that fence, the sleeper sees it; if our read
// comes after it, we see the sleeper; and the compiler keeps the two in this order.
inline void publish(std::atomic<uint64_t>& value, std::atomic<uint32_t>& sleepers, uint64_t number,
                    bool fenced_by_sleepers = false) {
    value.store(number, std::memory_order_release);
    order_before_look(sleepers, fenced_by_sleepers);
    if (sleepers.load(std::memory_order_relaxed) != 0) wake_all(value);
}

// Wait until `value` is at least `target`. `core`: where its owner last ran. If that is this thread's own core,
// spinning would only keep the owner from running. `before_blocking()` is called when spinning was not enough.
// `on_stall()` is called now and then while nothing happens: it returns the longest time to sleep, and ends the wait by
// throwing. Returns the last value seen.
template <typename BeforeBlocking, typename OnStall>
inline uint64_t await(std::atomic<uint64_t>& value, std::atomic<uint32_t>& sleepers, const std::atomic<int32_t>& core,
                      uint64_t target, const Patience& patience, Crowd& crowd, BeforeBlocking&& before_blocking,
                      OnStall&& on_stall) {
    // Acquire: pairs with the release in publish(), so that what the peer wrote before is visible.
    uint64_t seen;
    auto there = [&] { return (seen = value.load(std::memory_order_acquire)) >= target; };
    if (there()) [[likely]]
        return seen;
    for (uint32_t look = 0; look < patience.looks; ++look) {
        // At first without a pause instruction: a pause takes as long as a cache line from another core.
        if (look >= eager_looks) {
            if (look % eager_looks == 0) {
                int32_t here = current_core();
                if (here >= 0 && core.load(std::memory_order_relaxed) == here) break;
            }
            relax();
        }
        if (there()) return seen;
    }
    before_blocking();
    Yields yields(patience, crowd);
    while (yields.once())
        if (there()) return seen;
    while (true) {
        Clock::duration at_most = on_stall();
        sleepers.fetch_add(1, std::memory_order_relaxed);
        order_all(sleepers);  // see publish()
        fence_for_all();
        if (!there()) sleep_on(value, seen, at_most);
        sleepers.fetch_sub(1, std::memory_order_relaxed);
        if (there()) return seen;
    }
}

}  // namespace allfold
