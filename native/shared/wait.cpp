#include "shared/wait.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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
