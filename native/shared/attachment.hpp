// Decides when the memory of a group may be reused: once no rank can access it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "peers/blame.hpp"
#include "peers/peers.hpp"
#include "shared/arena.hpp"
#include "shared/layout.hpp"

namespace allfold {

// One rank's permission to touch the memory of a group: posts, work areas and inboxes of all its ranks. Everything that
// touches it holds this, so its end comes after the last access. The end is marked in the post of every rank, not in
// this rank's own: each owner then reads only its own post, which no other rank frees.
class Attachment {
  public:
    struct Member {
        std::shared_ptr<Arena> arena;
        size_t post;  // its offset in the arena
    };

    Attachment(uint32_t rank, std::vector<Member> members) : rank_(rank), members_(std::move(members)) {}
    ~Attachment() {
        // A forked child has only a copy of this, and does not have the arenas mapped.
        if (!members_[rank_].arena->is_here()) return;
        // Release: an owner that sees the mark frees the memory after all accesses of this rank.
        for (const Member& member : members_)
            post_of(*member.arena, member.post).detached[rank_ / 64].fetch_or(bit(rank_), std::memory_order_release);
    }
    Attachment(const Attachment&) = delete;

    // True if `rank` no longer touches the memory that the owner of this post has lent to the group: it has marked
    // that, or its process has ended.
    static bool has_ended(const Post& post, uint32_t rank, const Arena& arena_of_rank) {
        // Acquire: pairs with the release in the destructor.
        if (post.detached[rank / 64].load(std::memory_order_acquire) & bit(rank)) return true;
        return life_of(arena_of_rank) == Life::dead;
    }

    static Post& post_of(const Arena& arena, size_t post) { return *reinterpret_cast<Post*>(arena.at(post)); }

  private:
    static uint64_t bit(uint32_t rank) { return uint64_t{1} << rank % 64; }

    uint32_t rank_;
    std::vector<Member> members_;
};

}  // namespace allfold
