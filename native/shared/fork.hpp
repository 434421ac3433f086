// Processes that were forked off a rank. A child has the parent's memory but not its threads, and shares the parent's
// place among the ranks without being one: it must neither touch what the ranks share nor end what its parent goes on
// using.
#pragma once

#include <atomic>
#include <cstdint>

namespace allfold {

// How many forks lie between this process and the one that loaded the extension. Whatever was made at another number
// belongs to another process. Relaxed: it changes in a child before anything else runs there.
inline std::atomic<uint32_t> fork_count{0};

inline uint32_t forks() { return fork_count.load(std::memory_order_relaxed); }

}  // namespace allfold
