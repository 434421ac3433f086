// Processes forked from a rank. A child has the parent's memory but not its threads. It is not a rank itself: it must
// neither touch what the ranks share nor shut down what its parent still uses.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace allfold {

// The number of forks between this process and the one that loaded the extension. Objects made at another count belong
// to another process. Relaxed: it changes in a child before anything else runs there.
inline std::atomic<uint32_t> fork_count{0};

// Registered when the extension is loaded, before all other handlers: a child runs them in the order of registration,
// and they may ask for the count.
inline const bool forks_are_counted =
    pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); }) == 0;

inline uint32_t forks() { return fork_count.load(std::memory_order_relaxed); }

}  // namespace allfold
