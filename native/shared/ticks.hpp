// A clock that costs a few nanoseconds: the processor's own counter, the same on all cores. The reader of a record
// finds the length of a tick by reading both clocks at two moments.
#pragma once

#include <time.h>

#include <cstdint>

namespace allfold {

inline uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
#endif
}

// Measured once per process.
uint64_t ticks_per_microsecond();  // wait.cpp

inline uint64_t nanoseconds_since_1970() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace allfold
