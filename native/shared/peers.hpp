// Whether the process of a peer still exists, and how it ended.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "shared/arena.hpp"
#include "shared/directory.hpp"

namespace allfold {

enum class Life { alive, dead };

// Written by the arena's owner before any peer has the arena: known even if the rank died before it was ready.
inline int32_t process_of(const Arena& arena) { return arena.directory().process.load(std::memory_order_relaxed); }

// The PID namespace of this process, a number that no other one has at the same time; 0 without /proc.
inline uint64_t pid_namespace() {
    struct stat facts{};
    return stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

// Whether /proc shows the PID namespace of this process, and not one around it in which processes have other numbers.
// This process then has one number there; seen from outside it has one for each namespace.
inline bool proc_shows_own_namespace() {
    char text[4096];
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (file < 0) return true;  // there is no /proc to mislead us
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    const char* numbers = std::strstr(text, "\nNSpid:\t");
    if (!numbers) return true;
    numbers += std::strlen("\nNSpid:\t");
    return std::strcspn(numbers, "\t") >= std::strcspn(numbers, "\n");
}

// Whether the PID in this directory means the same in this process.
inline bool sees_processes_of(const Directory& directory) {
    return directory.pid_namespace.load(std::memory_order_relaxed) == pid_namespace() && proc_shows_own_namespace();
}

// A process that has ended but was not yet waited for still answers kill(pid, 0); /proc says that it is a zombie. /proc
// tells only of zombies how they ended; `how` stays empty once the process has been reaped.
inline Life life_of_process(int32_t process, std::string* how = nullptr) {
    if (process <= 0 || process == getpid()) return Life::alive;
    char path[32], text[1024];
    std::snprintf(path, sizeof path, "/proc/%d/stat", process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return kill(process, 0) == 0 || errno == EPERM ? Life::alive : Life::dead;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return Life::dead;
    text[length] = 0;
    const char* name_end = std::strrchr(text, ')');  // the name before it may contain anything
    if (!name_end || (name_end[2] != 'Z' && name_end[2] != 'X')) return Life::alive;
    if (how && name_end[2] == 'Z') {
        const char* last = std::strrchr(text, ' ');  // the exit status is the last number of all
        int status = last ? std::atoi(last + 1) : 0;
        int signal = status & 0x7f;
        *how = signal ? std::string(": killed by signal ") + std::to_string(signal) + " (" + strsignal(signal) + ")"
                      : ": it ended with status " + std::to_string(status >> 8);
    }
    return Life::dead;
}

// Whether the owner of an arena, of which `descriptor` is any descriptor, holds its lock: see Arena::lock_it.
inline Life life_by_lock(const Directory& directory, int descriptor) {
    // Without a lock nobody can say. A rank that is gone is then missed when time is up.
    if (!directory.locked.load(std::memory_order_relaxed)) return Life::alive;
    struct flock whole{};
    whole.l_type = F_WRLCK;
    bool is_free = fcntl(descriptor, F_OFD_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
    return is_free ? Life::dead : Life::alive;
}

// Where the owner's PID means the same here, /proc is asked: it also tells how a process ended, and does not mind a
// program that closes all descriptors.
inline Life life_of(const Arena& arena, std::string* how = nullptr) {
    if (arena.is_own()) return Life::alive;
    return arena.sees_owner() ? life_of_process(process_of(arena), how)
                              : life_by_lock(arena.directory(), arena.descriptor());
}

// Whether the process exists but does not run: SIGSTOP, or a debugger holds it. Not known of another PID namespace.
inline bool is_stopped(const Arena& arena) {
    if (!arena.sees_owner()) return false;
    int32_t process = process_of(arena);
    char path[32], text[512];
    std::snprintf(path, sizeof path, "/proc/%d/stat", process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    const char* name_end = std::strrchr(text, ')');
    return name_end && (name_end[2] == 'T' || name_end[2] == 't');
}

}  // namespace allfold
