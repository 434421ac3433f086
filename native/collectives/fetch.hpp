// Reading the memory of another process: the kernel copies, once, from its array into ours (cross-memory attach).
// Systems may forbid it (ptrace_scope, seccomp, other users), so callers test it first.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "peers/peers.hpp"

namespace allfold {

// Returns 0 or an errno. The address is one in the process that made the arena. Threads of this process are read
// directly; they cannot be recognized by PID, because in another PID namespace another process may have the same.
inline int fetch(const Arena& arena, uint64_t address, void* target, size_t bytes) {
    auto* to = static_cast<char*>(target);
    if (arena.is_own()) {
        std::memcpy(to, reinterpret_cast<const void*>(address), bytes);
        return 0;
    }
    while (bytes > 0) {  // a call moves at most 2 GiB
        iovec local{to, bytes}, remote{reinterpret_cast<void*>(address), bytes};
        ssize_t moved = process_vm_readv(process_of(arena), &local, 1, &remote, 1, 0);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return moved < 0 ? errno : EFAULT;
        to += moved;
        address += static_cast<uint64_t>(moved);
        bytes -= static_cast<size_t>(moved);
    }
    return 0;
}

// True if peers that may read this process can read this array. The kernel lets no process read some kinds of memory:
// memfd_secret, a driver's mappings (CUDA's pinned memory) and write-only mappings. Reading from this process itself
// goes through the same checks. An array is usually in one mapping, so its ends are enough (less than 1 µs).
inline bool is_fetchable(const void* array, size_t bytes) {
    if (bytes == 0) return true;
    char seen[2];
    auto* first = const_cast<char*>(static_cast<const char*>(array));
    iovec local{seen, sizeof seen}, remote[] = {{first, 1}, {first + bytes - 1, 1}};
    ssize_t moved;
    do moved = process_vm_readv(getpid(), &local, 1, remote, 2, 0);
    while (moved < 0 && errno == EINTR);
    return moved == sizeof seen;
}

}  // namespace allfold
