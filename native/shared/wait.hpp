// Waiting for a number to grow: first by looking, then by letting others run, then asleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace allfold {

using Clock = std::chrono::steady_clock;

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    // isb waits about as long as a pause on x86; yield is a no-op on most cores.
    asm volatile("isb" ::: "memory");
#endif
}

// How long to look before letting go of the processor. With a core for everyone, looking is the fastest; but the system
// may have put two ranks on one core all the same, so even then it is not for long. With more ranks than cores whoever
// looks keeps the one it waits for from running, so it lets go at once.
inline constexpr uint32_t eager_looks = 64;

struct Patience {
    uint32_t looks;
    uint32_t yields;

    static Patience for_ranks(uint32_t ranks);
};

// Sleep until `value` is no longer `seen` in its low half, or the time is up, or for no reason. Wakes come from wake().
void sleep_on(std::atomic<uint64_t>& value, uint64_t seen, Clock::duration at_most);
void wake_all(std::atomic<uint64_t>& value);
void let_others_run();

// Orders what stands before it before what stands after it, against another thread's order_all() on the same
// `sleepers`.
inline void order_all([[maybe_unused]] std::atomic<uint32_t>& sleepers) {
#if defined(__SANITIZE_THREAD__)
    // ThreadSanitizer does not know fences. Two read-modify-writes of one number are ordered one after the other, and
    // the later one sees all that was before the earlier one: the same promise, at a higher price.
    sleepers.fetch_add(0, std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Whether whoever goes to sleep in this process has the kernel put a fence into all threads that could wake it
// (membarrier). Where that holds for all ranks, publishing needs no fence of its own.
bool sleepers_fence_for_all();
void fence_for_all();

// Make `value` known to whoever waits for it.
//
// Release: what was written before is visible to whoever reads the new value. The fence after it orders the store
// before the look at `sleepers`; a sleeper does the opposite (counts itself, fence, looks at the value), so one of the
// two sees the other: either we wake it, or it does not go to sleep. Without the fence both could look too early.
//
// The fence waits until the store has reached every cache, twice in every call, for the sake of somebody who hardly
// ever sleeps. With `fenced_by_sleepers` the sleeper pays instead: between counting itself and looking at the value it
// has the kernel run a fence on every processor that runs a rank. If our store comes before that fence, the sleeper
// sees it; if our look comes after it, we see the sleeper; and the compiler keeps the two in this order.
inline void publish(std::atomic<uint64_t>& value, std::atomic<uint32_t>& sleepers, uint64_t number,
                    bool fenced_by_sleepers = false) {
    value.store(number, std::memory_order_release);
#if defined(__SANITIZE_THREAD__)
    fenced_by_sleepers = false;  // ThreadSanitizer does not see what the kernel does
#endif
    if (fenced_by_sleepers)
        std::atomic_signal_fence(std::memory_order_seq_cst);
    else
        order_all(sleepers);
    if (sleepers.load(std::memory_order_relaxed) != 0) wake_all(value);
}

// Wait until `value` is at least `target`. `before_blocking()` is called when looking alone did not do; `on_stall()`
// now and then while nothing happens: it gives the longest time to sleep, and ends the wait by throwing. Returns what
// was seen at last.
template <typename BeforeBlocking, typename OnStall>
inline uint64_t await(std::atomic<uint64_t>& value, std::atomic<uint32_t>& sleepers, uint64_t target,
                      const Patience& patience, BeforeBlocking&& before_blocking, OnStall&& on_stall) {
    // Acquire: pairs with the release in publish(), so that what the peer wrote before is there to be read.
    uint64_t seen;
    auto there = [&] { return (seen = value.load(std::memory_order_acquire)) >= target; };
    if (there()) [[likely]]
        return seen;
    for (uint32_t look = 0; look < patience.looks; ++look) {
        // At first without a pause: it takes as long as the news from another core.
        if (look >= eager_looks) relax();
        if (there()) return seen;
    }
    before_blocking();
    for (uint32_t turn = 0; turn < patience.yields; ++turn) {
        let_others_run();
        if (there()) return seen;
    }
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
