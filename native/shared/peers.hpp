// Whether the process of a peer still exists, and how it ended.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace allfold {

enum class Life { alive, dead };

// A process that has ended but was not yet waited for still answers kill(pid, 0); /proc says that it is a zombie. /proc
// tells only of zombies how they ended; `how` stays empty once the process has been reaped.
inline Life life_of(int32_t process, std::string* how = nullptr) {
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

// Whether the process exists but does not run: SIGSTOP, or a debugger holds it.
inline bool is_stopped(int32_t process) {
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
