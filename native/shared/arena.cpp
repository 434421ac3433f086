#include "shared/arena.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <vector>

#include "shared/directory.hpp"
#include "shared/errors.hpp"
#include "shared/text.hpp"

namespace allfold {

namespace {

constexpr size_t directory_bytes = whole_pages(sizeof(Directory));

// All arenas of this process, so that a forked child can close their descriptors: open descriptors would keep the
// memory of ended ranks alive. The lock is taken before the fork and released on both sides of it.
std::mutex all_mutex;
std::set<int*> all_descriptors;

void watch_forks() {
    static const bool watching = [] {
        auto before = [] { all_mutex.lock(); };
        auto in_parent = [] { all_mutex.unlock(); };
        auto in_child = [] {
            for (int* descriptor : all_descriptors) {
                close(*descriptor);
                *descriptor = -1;
            }
            all_descriptors.clear();
            all_mutex.unlock();
        };
        return pthread_atfork(before, in_parent, in_child) == 0;
    }();
    (void)watching;
}

[[noreturn]] void fail(const std::string& what) {
    throw EngineError(Fault::memory, joined({"shared memory: ", what, ": ", std::strerror(errno)}));
}

}  // namespace

Arena::Arena(size_t bytes) : size_(std::max(whole_pages(bytes), directory_bytes + page)) {
    descriptor_ = memfd_create("allfold", MFD_CLOEXEC);
    if (descriptor_ < 0) fail("memfd_create failed");
    // The kernel creates it with mode 0777. /proc already keeps other users out; this also protects where /proc does
    // not.
    fchmod(descriptor_, 0600);
    if (ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) {
        int error = errno;
        close(descriptor_);
        errno = error;
        fail(joined({"no room for ", size_, " bytes"}));
    }
    map();
    free_[directory_bytes] = size_ - directory_bytes;
    is_own_ = true;
    directory().process.store(getpid(), std::memory_order_relaxed);
    directory().pid_namespace.store(pid_namespace(), std::memory_order_relaxed);
    lock_it();
    struct stat facts{};
    fstat(descriptor_, &facts);
    directory().identity.store(facts.st_ino, std::memory_order_relaxed);
    directory().magic.store(layout_hash, std::memory_order_release);
}

Arena::Arena(int descriptor, size_t bytes) : descriptor_(descriptor), size_(bytes) {
    map();
    sees_owner_ = sees_processes_of(directory());
}

// Peers in another PID namespace cannot ask the kernel about this process, but they can ask for this lock. It belongs
// to an open file of this process alone (the descriptor of the memory is handed to peers, and theirs is the same open
// file), so the kernel drops it when this process ends. Forked children close theirs at once. Where /proc is missing
// there is no lock.
void Arena::lock_it() {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor_);
    lock_ = open(path, O_RDWR | O_CLOEXEC);
    if (lock_ < 0) return;
    {
        std::lock_guard lock(all_mutex);
        all_descriptors.insert(&lock_);
    }
    struct flock whole{};
    whole.l_type = F_WRLCK;
    directory().locked.store(fcntl(lock_, F_OFD_SETLK, &whole) == 0, std::memory_order_relaxed);
}

void Arena::map() {
    process_ = getpid();
    void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
    if (base == MAP_FAILED) {
        int error = errno;
        close(descriptor_);
        errno = error;
        fail(joined({"cannot map ", size_,
                     " bytes (is RLIMIT_AS set? `ulimit -v` shows it; ALLFOLD_ARENA_BYTES=64M asks for less)"}));
    }
    base_ = static_cast<char*>(base);
    advise(0, size_);
    watch_forks();
    std::lock_guard lock(all_mutex);
    all_descriptors.insert(&descriptor_);
}

void Arena::advise(size_t offset, size_t bytes) {
    // Huge pages where the system offers them for shared memory; it is free to decline.
    madvise(base_ + offset, bytes, MADV_HUGEPAGE);
    // A child made by fork() must not keep a dead rank's memory alive, nor write into it.
    madvise(base_ + offset, bytes, MADV_DONTFORK);
}

Arena::~Arena() {
    if (!is_here()) return;  // in a child, these addresses may be used by something else
    munmap(base_, size_);
    std::lock_guard lock(all_mutex);
    all_descriptors.erase(&descriptor_);
    close(descriptor_);
    if (lock_ < 0) return;
    all_descriptors.erase(&lock_);
    close(lock_);
}

void Arena::need_here(const char* name) const {
    if (is_here()) return;
    throw EngineError(Fault::usage,
                      joined({name, ": this process was forked from rank process ", process_,
                              " and cannot use its communicators; create one in this process, or make the call in the "
                              "parent"}));
}

void Arena::lend_to_children(size_t offset) {
    std::lock_guard lock(mutex_);
    // If the kernel refuses (too many mappings), the array is not available in children.
    madvise(base_ + offset, used_.at(offset).bytes, MADV_DOFORK);
}

size_t Arena::allocate(size_t bytes) {
    need_here("shared memory");
    bytes = whole_pages(bytes);
    if (bytes == 0) bytes = page;
    std::lock_guard lock(mutex_);
    for (auto [offset, length] : free_) {
        if (length < bytes) continue;
        free_.erase(offset);
        if (length > bytes) free_[offset + bytes] = length - bytes;
        used_[offset] = {bytes};
        return offset;
    }
    throw EngineError(Fault::memory, joined({"shared memory: no room for ", bytes, " bytes; the arena has ", size_,
                                             " in all (ALLFOLD_ARENA_BYTES sets that)"}));
}

void Arena::release(size_t offset) {
    if (!is_here()) return;  // the parent still uses it
    std::lock_guard lock(mutex_);
    auto found = used_.find(offset);
    if (found == used_.end() || !found->second.is_owned) return;
    found->second.is_owned = false;
    auto [first, last] = quarantined_.equal_range(offset);
    std::vector<size_t> quarantined;
    for (auto one = first; one != last; ++one) quarantined.push_back(one->second);
    quarantined_.erase(first, last);
    // Where the owner had pages of its own, the shared ones are mapped again. If that fails, the allocation is never
    // reused.
    for (auto taken = taken_back_.lower_bound(offset);
         taken != taken_back_.end() && taken->first < offset + found->second.bytes;) {
        auto [begin, bytes] = *taken;
        if (mmap(base_ + begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, descriptor_,
                 static_cast<off_t>(begin)) == MAP_FAILED) {
            ++found->second.claims;
            break;
        }
        advise(begin, bytes);
        taken = taken_back_.erase(taken);
    }
    madvise(base_ + offset, found->second.bytes, MADV_DONTFORK);
    drop_claim(found);
    for (size_t one : quarantined) drop_claim(used_.find(one));
}

void Arena::drop_claim(std::map<size_t, Allocation>::iterator allocation) {
    if (--allocation->second.claims > 0) return;
    size_t offset = allocation->first, length = allocation->second.bytes;
    used_.erase(allocation);
    // Return the pages to the system at once; they are zero when they are reused.
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

void Arena::quarantine(const void* pointer, size_t post) {
    std::lock_guard lock(mutex_);
    auto after = used_.upper_bound(offset_of(pointer));
    if (after == used_.begin()) return;
    auto allocation = std::prev(after);
    ++allocation->second.claims;
    quarantined_.emplace(post, allocation->first);
}

bool Arena::take_back(void* pointer, size_t bytes) {
    std::lock_guard lock(mutex_);
    size_t begin = offset_of(pointer) / page * page, end = whole_pages(offset_of(pointer) + bytes);
    void* copy = mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return false;
    std::memcpy(copy, base_ + begin, end - begin);
    // The kernel replaces the mapping atomically: no other thread finds these addresses unmapped.
    if (mremap(copy, end - begin, end - begin, MREMAP_MAYMOVE | MREMAP_FIXED, base_ + begin) == MAP_FAILED) {
        munmap(copy, end - begin);
        return false;
    }
    size_t& taken = taken_back_[begin];
    taken = std::max(taken, end - begin);
    has_taken_back_.store(true, std::memory_order_relaxed);
    return true;
}

bool Arena::is_taken_back(size_t offset, size_t bytes) const {
    std::lock_guard lock(mutex_);
    for (auto [begin, length] : taken_back_)
        if (begin < offset + bytes && offset < begin + length) return true;
    return false;
}

size_t Arena::in_use() const {
    std::lock_guard lock(mutex_);
    size_t total = 0;
    for (const auto& [offset, allocation] : used_) total += allocation.bytes;
    return total;
}

}  // namespace allfold
