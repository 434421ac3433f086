// The first pages of every arena: a directory of its contents, for peers and for `allfold doctor`, which inspects it
// from outside.
#pragma once

#include <cstring>

#include "shared/layout.hpp"

namespace allfold {

inline constexpr size_t entries_kept = 128;
inline constexpr size_t answer_bytes = 16 << 10;

// One communicator that the arena's owner is a rank of.
struct Entry {
    std::atomic<uint64_t> post;   // its offset; 0: the entry is free. Written last, with release.
    std::atomic<uint64_t> group;  // the same number on all ranks of the group, and on no other group
    std::atomic<uint32_t> rank, size;
    std::atomic<char> label[104];
};

struct Directory {
    std::atomic<uint64_t> magic;
    std::atomic<int32_t> process;         // as its owner sees it: another PID namespace has another number for it
    std::atomic<uint64_t> pid_namespace;  // of the owner; 0: unknown
    std::atomic<uint32_t> locked;         // the owner holds the lock that shows that it is alive: see Arena::lock_it
    std::atomic<uint64_t> identity;       // of this arena and no other
    std::atomic<uint64_t>
        lost;  // the identity of the rank that its owner lost last, in any communicator: see blame.hpp
    // Asking the owner for its stack: a process increments the question; a thread of the owner then writes the answer
    // and sets its number to that of the question.
    std::atomic<uint32_t> answers;  // there is such a thread
    Counter question;
    Counter answer;
    std::atomic<uint32_t> answered_bytes;
    std::atomic<char> text[answer_bytes];
    Entry entries[entries_kept];
};

}  // namespace allfold
