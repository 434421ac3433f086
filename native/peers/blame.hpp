// Finds the rank that an error names. A rank that gives up records in its arena which rank it lost. Ranks that notice
// that it gave up, or has ended since, read that record, so that all of them name the rank that failed first and not
// one that failed as a consequence. The record is in the arena, not in the post, because a rank may learn of a loss in
// one communicator and be waited for in another.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "peers/peers.hpp"
#include "shared/arena.hpp"
#include "shared/directory.hpp"
#include "shared/layout.hpp"

namespace allfold {

// "rank 3", "ranks 1, 2 and 5"
std::string list_of(const std::vector<uint32_t>& ranks);

class Blame {
  public:
    template <class Member>
    Blame(uint32_t rank, const std::vector<Member>& members) : rank_(rank) {
        for (const Member& member : members) {
            arenas_.push_back(member.arena);
            posts_.push_back(reinterpret_cast<Post*>(member.arena->at(member.post)));
        }
    }

    // This rank gives up because of `peer`. To be called before its standing changes, because peers look at the
    // standing first.
    void lost(uint32_t peer) const;

    // The same, where this rank knows it from outside this communicator, for instance from a call on the GPU: the rank
    // that it waits for here has nothing to do with it.
    void lost_elsewhere(const std::vector<uint32_t>& peers) const;

    // True if one of these ranks has recorded which rank caused it to give up.
    bool is_told_by(const std::vector<uint32_t>& ranks) const;

    // The rank that caused `rank` to give up, or that caused that one to give up, and so on. It is `rank` itself if no
    // other rank caused it, or if the other one still works in this communicator, having left only another one.
    uint32_t first(uint32_t rank) const;

    // What happened to these ranks: "rank 3 (process 4711) is gone: killed by signal 9 (Killed); rank 1 gave up because
    // of it".
    std::string sentence(const std::vector<uint32_t>& ranks) const;

    std::string named(uint32_t rank) const;

    std::string fate(uint32_t rank) const;

  private:
    Standing standing(uint32_t rank) const;
    // The exception that the rank has stored. Relaxed: it was written before its standing, which the caller has
    // acquired.
    std::vector<uint32_t> causes_of(uint32_t rank) const;
    bool is_alive(uint32_t rank) const;

    uint32_t rank_;
    std::vector<std::shared_ptr<Arena>> arenas_;
    std::vector<Post*> posts_;
};

}  // namespace allfold
