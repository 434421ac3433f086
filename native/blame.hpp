// Who is to be named. A rank that gives up leaves in its post for whom it did; those who notice that it gave up look there,
// so that everybody names the rank that was lost first, and not the one that heard of it first.
#pragma once

#include <string>
#include <vector>

#include "arena.hpp"
#include "directory.hpp"
#include "layout.hpp"
#include "peers.hpp"

namespace allfold {

// Written by the arena's owner before anybody else has the arena: known even of a rank that died before it was ready.
inline int32_t process_of(const Arena& arena) { return arena.directory().process.load(std::memory_order_relaxed); }

// The rank for whom `rank` gave up, or for whom that one did, and so on; `rank` itself if it gave up for nobody.
inline uint32_t first_lost(const std::vector<Post*>& posts, uint32_t rank) {
    for (size_t hops = 0; hops < posts.size(); ++hops) {
        uint32_t lost = posts[rank]->lost.load(std::memory_order_relaxed);
        if (lost == 0 || lost > posts.size()) break;
        rank = lost - 1;
    }
    return rank;
}

inline std::string named(uint32_t rank, const Arena& arena) {
    return "rank " + std::to_string(rank) + " (process " + std::to_string(process_of(arena)) + ")";
}

// "rank 3 (process 4711) is gone; rank 1 gave up because of it", as far as that is known.
inline std::string gave_up(const std::vector<Post*>& posts, uint32_t rank, const Arena& first_arena, uint32_t first) {
    std::string one = "rank " + std::to_string(rank) + " gave up";
    if (first == rank) return one;
    std::string how;
    bool left = static_cast<Standing>(posts[first]->standing.load(std::memory_order_relaxed)) == Standing::left;
    life_of(process_of(first_arena), &how);
    return named(first, first_arena) + (left ? " has left" : " is gone" + how) + "; " + one + " because of it";
}

}  // namespace allfold
