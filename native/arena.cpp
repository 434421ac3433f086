#include "arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "directory.hpp"
#include "errors.hpp"

namespace allfold {

namespace {

constexpr size_t page = 4096;
constexpr size_t directory_bytes = (sizeof(Directory) + page - 1) / page * page;

[[noreturn]] void fail(const std::string& what) {
    throw EngineError(Fault::memory, "shared memory: " + what + ": " + std::strerror(errno));
}

}  // namespace

Arena::Arena(size_t bytes) : size_(std::max((bytes + page - 1) / page * page, directory_bytes + page)) {
    descriptor_ = memfd_create("allfold", MFD_CLOEXEC);
    if (descriptor_ < 0) fail("memfd_create failed");
    // The kernel makes it 0777. That nobody else reaches it is seen to by /proc; this holds even where that is not.
    fchmod(descriptor_, 0600);
    if (ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) {
        int error = errno;
        close(descriptor_);
        errno = error;
        fail("no room for " + std::to_string(size_) + " bytes");
    }
    map();
    free_[directory_bytes] = size_ - directory_bytes;
    directory().process.store(getpid(), std::memory_order_relaxed);
    struct stat facts{};
    fstat(descriptor_, &facts);
    directory().identity.store(facts.st_ino, std::memory_order_relaxed);
    directory().magic.store(directory_magic, std::memory_order_release);
}

Arena::Arena(int descriptor, size_t bytes) : descriptor_(descriptor), size_(bytes) { map(); }

void Arena::map() {
    void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
    if (base == MAP_FAILED) {
        int error = errno;
        close(descriptor_);
        errno = error;
        fail("cannot map " + std::to_string(size_) + " bytes (is RLIMIT_AS set? `ulimit -v` shows it)");
    }
    base_ = static_cast<char*>(base);
    // Huge pages where the system offers them for shared memory; it is free to decline.
    madvise(base, size_, MADV_HUGEPAGE);
    // A child made by fork() must not keep a dead rank's memory alive, nor write into it.
    madvise(base, size_, MADV_DONTFORK);
}

Arena::~Arena() {
    munmap(base_, size_);
    close(descriptor_);
}

size_t Arena::allocate(size_t bytes) {
    bytes = (bytes + page - 1) / page * page;
    if (bytes == 0) bytes = page;
    std::lock_guard lock(mutex_);
    for (auto [offset, length] : free_) {
        if (length < bytes) continue;
        free_.erase(offset);
        if (length > bytes) free_[offset + bytes] = length - bytes;
        used_[offset] = bytes;
        return offset;
    }
    throw EngineError(Fault::memory, "shared memory: no room for " + std::to_string(bytes) + " bytes; the arena has " +
                                         std::to_string(size_) + " in all (ALLFOLD_ARENA_BYTES sets that)");
}

void Arena::release(size_t offset) {
    std::lock_guard lock(mutex_);
    auto found = used_.find(offset);
    if (found == used_.end()) return;
    size_t length = found->second;
    used_.erase(found);
    // Give the pages back at once, and have them zeroed when they are used again.
    fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(length));
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + length == next->first) {
        length += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second == offset) {
            previous->second += length;
            return;
        }
    }
    free_[offset] = length;
}

size_t Arena::in_use() const {
    std::lock_guard lock(mutex_);
    size_t total = 0;
    for (auto [offset, length] : used_) total += length;
    return total;
}

}  // namespace allfold
