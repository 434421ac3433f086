// Whether the process of a peer still exists.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace allfold {

enum class Life { alive, dead };

// A process that has ended but was not yet waited for still answers kill(pid, 0); /proc says that it is a zombie.
inline Life life_of(int32_t process) {
    if (process <= 0 || process == getpid()) return Life::alive;
    char path[32], text[512];
    std::snprintf(path, sizeof path, "/proc/%d/stat", process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return kill(process, 0) == 0 || errno == EPERM ? Life::alive : Life::dead;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return Life::dead;
    text[length] = 0;
    const char* name_end = std::strrchr(text, ')');  // the name before it may hold anything
    return name_end && (name_end[2] == 'Z' || name_end[2] == 'X') ? Life::dead : Life::alive;
}

}  // namespace allfold
