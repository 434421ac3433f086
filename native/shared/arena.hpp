// One rank's shared memory: an anonymous file that peers map too. It has no name, so nobody else can open it, and it
// disappears with the last process that has it open. Its size is a limit, not a cost: pages exist only once they are
// touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "shared/fork.hpp"

namespace allfold {

struct Directory;

class Arena {
  public:
    explicit Arena(size_t bytes);         // one's own
    Arena(int descriptor, size_t bytes);  // a peer's; takes the descriptor
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // Offsets are the same in every process; addresses are not. Memory is zeroed and starts on a cache line pair.
    size_t allocate(size_t bytes);
    void release(size_t offset);

    // Children made by fork() get only the parts of an arena that are lent to them: arrays, which they share with the
    // parent.
    void lend_to_children(size_t offset);

    // Whether this process made it: then its addresses are valid here.
    bool is_own() const { return is_own_; }
    // Whether the number of the owner's process means the same here: both are in the same PID namespace, and /proc
    // shows it.
    bool sees_owner() const { return sees_owner_; }

    // False in a child forked from the process that owns this arena: most of it is not mapped there.
    bool is_here() const { return forks_ == forks(); }
    // Throws if it is not; the error names this call.
    void need_here(const char* name) const;

    Directory& directory() const { return *reinterpret_cast<Directory*>(base_); }
    char* at(size_t offset) const { return base_ + offset; }
    bool holds(const void* pointer, size_t bytes) const {
        auto address = reinterpret_cast<uintptr_t>(pointer), start = reinterpret_cast<uintptr_t>(base_);
        return address >= start && address - start <= size_ && bytes <= size_ - (address - start);
    }
    size_t offset_of(const void* pointer) const { return static_cast<const char*>(pointer) - base_; }
    int descriptor() const { return descriptor_; }
    size_t size() const { return size_; }
    size_t in_use() const;

  private:
    void map();
    void lock_it();

    uint32_t forks_ = forks();
    int32_t process_;
    int descriptor_ = -1, lock_ = -1;
    bool is_own_ = false, sees_owner_ = true;
    size_t size_ = 0;
    char* base_ = nullptr;
    mutable std::mutex mutex_;
    std::map<size_t, size_t> free_;  // offset → bytes, neighbours merged
    std::map<size_t, size_t> used_;
};

}  // namespace allfold
