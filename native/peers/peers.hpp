// Tests whether the process of a peer still exists, and finds out how it ended.
#pragma once

#include <cstdint>
#include <string>

#include "shared/arena.hpp"
#include "shared/directory.hpp"

namespace allfold {

enum class Life { alive, dead };

// Written by the arena's owner before any peer has the arena: known even if the rank died before it was ready.
inline int32_t process_of(const Arena& arena) { return arena.directory().process.load(std::memory_order_relaxed); }

// The PID namespace of this process, a number that no other one has at the same time; 0 without /proc.
uint64_t pid_namespace();

// True if the PID in this directory means the same in this process.
bool sees_processes_of(const Directory& directory);

// A process that has ended but was not yet waited for still answers kill(pid, 0); /proc shows that it is a zombie. Only
// for zombies does /proc show how they ended; `how` stays empty once the process has been reaped.
Life life_of_process(int32_t process, std::string* how = nullptr);

// True if the owner of an arena, of which `descriptor` is any descriptor, holds its lock: see Arena::lock_it.
Life life_by_lock(const Directory& directory, int descriptor);

// Where the owner's PID means the same here, /proc is asked: it also shows how a process ended, and works even if a
// program closes all descriptors.
Life life_of(const Arena& arena, std::string* how = nullptr);

// True if the process exists but does not run: SIGSTOP, or a debugger holds it. Unknown in another PID namespace.
bool is_stopped(const Arena& arena);

}  // namespace allfold
