// One rank's shared memory: an anonymous file that peers map too. It has no name, so nobody else can open it, and it
// disappears with the last process that has it open. Its size is a limit, not a cost: pages exist only once they are
// touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "shared/fork.hpp"

namespace allfold {

struct Directory;

inline constexpr size_t page = 4096;
inline constexpr size_t whole_pages(size_t bytes) { return (bytes + page - 1) / page * page; }

class Arena {
  public:
    explicit Arena(size_t bytes);         // this process's own
    Arena(int descriptor, size_t bytes);  // a peer's; takes the descriptor
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // Offsets are the same in every process; addresses are not. Memory is zeroed and starts on a cache line pair.
    size_t allocate(size_t bytes);
    void release(size_t offset);

    // After a failed call, for an array that a peer may still be writing into. The first gives the array pages of its
    // own, with the same contents; peers keep the old ones, and from now on the array is an ordinary one. False if
    // there is no memory for that. The second keeps the allocation that the array is in from being used again until
    // `post`, another allocation, is released.
    bool take_back(void* pointer, size_t bytes);
    void quarantine(const void* pointer, size_t post);

    // Children made by fork() get only the parts of an arena that are lent to them: arrays, which they share with the
    // parent.
    void lend_to_children(size_t offset);

    // True if this process created it: then its addresses are valid here.
    bool is_own() const { return is_own_; }
    // True if the owner's PID means the same process here: both are in the same PID namespace, and /proc shows it.
    bool sees_owner() const { return sees_owner_; }

    // False in a child forked from the process that owns this arena: most of it is not mapped there.
    bool is_here() const { return forks_ == forks(); }
    // Throws in such a child; the error names this call.
    void need_here(const char* name) const;

    Directory& directory() const { return *reinterpret_cast<Directory*>(base_); }
    char* at(size_t offset) const { return base_ + offset; }
    // True if these bytes are in the arena, where peers can access them.
    bool holds(const void* pointer, size_t bytes) const {
        auto address = reinterpret_cast<uintptr_t>(pointer), start = reinterpret_cast<uintptr_t>(base_);
        bool inside = address >= start && address - start <= size_ && bytes <= size_ - (address - start);
        // Relaxed: the thread that took an array back is the one that returned it to its owner.
        if (inside && has_taken_back_.load(std::memory_order_relaxed)) [[unlikely]]
            return !is_taken_back(address - start, bytes);
        return inside;
    }
    size_t offset_of(const void* pointer) const { return static_cast<const char*>(pointer) - base_; }
    int descriptor() const { return descriptor_; }
    size_t size() const { return size_; }
    size_t in_use() const;

  private:
    struct Allocation {
        size_t bytes;
        uint32_t claims = 1;  // its owner's, and one per quarantine
        bool is_owned = true;
    };

    void map();
    void advise(size_t offset, size_t bytes);
    bool is_taken_back(size_t offset, size_t bytes) const;
    void drop_claim(std::map<size_t, Allocation>::iterator allocation);
    void lock_it();

    uint32_t forks_ = forks();
    int32_t process_;
    int descriptor_ = -1, lock_ = -1;
    bool is_own_ = false, sees_owner_ = true;
    size_t size_ = 0;
    char* base_ = nullptr;
    mutable std::mutex mutex_;
    std::map<size_t, size_t> free_;  // offset → bytes, neighbours merged
    std::map<size_t, Allocation> used_;
    std::multimap<size_t, size_t> quarantined_;  // post → allocation
    std::map<size_t, size_t> taken_back_;        // offset → bytes, whole pages
    std::atomic<bool> has_taken_back_{false};
};

}  // namespace allfold
