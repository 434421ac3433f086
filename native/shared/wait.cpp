#include "shared/wait.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>

namespace allfold {

namespace {

uint32_t usable_cores() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int count = CPU_COUNT(&set);
    return count > 0 ? static_cast<uint32_t>(count) : 1;
}

// The kernel compares 32 bits; the low half of the counter changes with every publication.
uint32_t* futex_word(std::atomic<uint64_t>& value) {
    static_assert(std::endian::native == std::endian::little);
    return reinterpret_cast<uint32_t*>(&value);
}

}  // namespace

Patience Patience::for_ranks(uint32_t ranks) {
    if (ranks <= usable_cores()) return {2000, 200};
    return {2, 200};
}

void let_others_run() { sched_yield(); }

// glibc 2.35 and later register every thread with the kernel (rseq), which then keeps the number of its core in the
// thread's own memory. Weak: the same binary runs with older ones.
extern "C" {
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));
}

int32_t current_core() {
    if (!&__rseq_offset || !&__rseq_size || __rseq_size == 0) return -1;
    // struct rseq: cpu_id_start, then cpu_id, which is negative while the thread is not registered.
    auto* place = static_cast<const char*>(__builtin_thread_pointer()) + __rseq_offset + sizeof(uint32_t);
    return static_cast<int32_t>(reinterpret_cast<const std::atomic<uint32_t>*>(place)->load(std::memory_order_relaxed));
}

uint64_t ticks_per_microsecond() {
    static const uint64_t rate = [] {
        auto begin = Clock::now();
        uint64_t first = ticks();
        std::chrono::nanoseconds passed{};
        while (passed < std::chrono::microseconds(50)) passed = Clock::now() - begin;
        return std::max<uint64_t>((ticks() - first) * 1000 / static_cast<uint64_t>(passed.count()), 1);
    }();
    return rate;
}

bool sleepers_fence_for_all() {
    // Registered once per process, for all its threads. Old kernels and some sandboxes refuse.
    static const bool registered = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
    return registered;
}

void fence_for_all() {
    if (sleepers_fence_for_all()) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

void sleep_on(std::atomic<uint64_t>& value, uint64_t seen, Clock::duration at_most) {
    auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(at_most).count();
    if (nanoseconds <= 0) return;
    timespec limit{static_cast<time_t>(nanoseconds / 1000000000), static_cast<long>(nanoseconds % 1000000000)};
    // Not FUTEX_PRIVATE: the word is shared between processes.
    syscall(SYS_futex, futex_word(value), FUTEX_WAIT, static_cast<uint32_t>(seen), &limit, nullptr, 0);
}

void wake_all(std::atomic<uint64_t>& value) {
    syscall(SYS_futex, futex_word(value), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace allfold
