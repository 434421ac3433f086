#include "peers/peers.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shared/text.hpp"

namespace allfold {

uint64_t pid_namespace() {
    struct stat facts{};
    return stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

// True if /proc shows the PID namespace of this process, and not an outer one in which processes have other numbers.
// This process then has one number there; in an outer namespace it has one for each.
static bool proc_shows_own_namespace() {
    char text[4096];
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (file < 0) return true;  // without /proc, nothing can be misleading
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    const char* numbers = std::strstr(text, "\nNSpid:\t");
    if (!numbers) return true;
    numbers += std::strlen("\nNSpid:\t");
    return std::strcspn(numbers, "\t") >= std::strcspn(numbers, "\n");
}

bool sees_processes_of(const Directory& directory) {
    return directory.pid_namespace.load(std::memory_order_relaxed) == pid_namespace() && proc_shows_own_namespace();
}

Life life_of_process(int32_t process, std::string* how) {
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
        *how = signal ? joined({": killed by signal ", signal, " (", strsignal(signal), ")"})
                      : joined({": it ended with status ", status >> 8});
    }
    return Life::dead;
}

Life life_by_lock(const Directory& directory, int descriptor) {
    // Without a lock this is unknown. A lost rank is then noticed at the timeout.
    if (!directory.locked.load(std::memory_order_relaxed)) return Life::alive;
    struct flock whole{};
    whole.l_type = F_WRLCK;
    bool is_free = fcntl(descriptor, F_OFD_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
    return is_free ? Life::dead : Life::alive;
}

Life life_of(const Arena& arena, std::string* how) {
    if (arena.is_own()) return Life::alive;
    return arena.sees_owner() ? life_of_process(process_of(arena), how)
                              : life_by_lock(arena.directory(), arena.descriptor());
}

bool is_stopped(const Arena& arena) {
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
