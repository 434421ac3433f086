// Which rank an error names. A rank that gives up records in its arena which rank it lost. Ranks that notice that it
// gave up, or has ended since, read that record, so that all of them name the rank that failed first and not one that
// failed as a consequence. The record is in the arena, not in the post, because a rank may learn of a loss in one
// communicator and be missed in another.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "shared/arena.hpp"
#include "shared/directory.hpp"
#include "shared/layout.hpp"
#include "shared/peers.hpp"

namespace allfold {

// "rank 3", "ranks 1, 2 and 5"
inline std::string list_of(const std::vector<uint32_t>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < ranks.size(); ++i) {
        if (i) text += i + 1 == ranks.size() ? " and " : ", ";
        text += std::to_string(ranks[i]);
    }
    return text;
}

class Blame {
  public:
    template <class Member>
    Blame(uint32_t rank, const std::vector<Member>& members) : rank_(rank) {
        for (const Member& member : members) {
            arenas_.push_back(member.arena);
            posts_.push_back(reinterpret_cast<const Post*>(member.arena->at(member.post)));
        }
    }

    // This rank gives up because of `peer`. To be called before its standing changes, because peers look at the
    // standing first.
    void lost(uint32_t peer) const {
        uint64_t identity = arenas_[first(peer)]->directory().identity.load(std::memory_order_relaxed);
        arenas_[rank_]->directory().lost.store(identity, std::memory_order_relaxed);
    }

    // The rank that caused `rank` to give up, or that caused that one to give up, and so on. It is `rank` itself if no
    // other rank caused it, or if the other one is still well in this communicator: it may have left another
    // communicator only.
    uint32_t first(uint32_t rank) const {
        std::vector<uint32_t> path{rank};
        while (true) {
            uint64_t lost = arenas_[path.back()]->directory().lost.load(std::memory_order_relaxed);
            auto found = std::find_if(arenas_.begin(), arenas_.end(), [&](auto& arena) {
                return lost != 0 && arena->directory().identity.load(std::memory_order_relaxed) == lost;
            });
            if (found == arenas_.end()) return path.back();
            auto next = static_cast<uint32_t>(found - arenas_.begin());
            if (next == rank_ || (standing(next) == Standing::open && is_alive(next))) return path.back();
            if (std::find(path.begin(), path.end(), next) != path.end()) break;
            path.push_back(next);
        }
        // They gave up because of each other, here and in another communicator. A rank that has left, or whose process
        // is gone, did more than give up, so it is the cause.
        auto absent = std::find_if(path.begin(), path.end(),
                                   [&](uint32_t one) { return standing(one) == Standing::left || !is_alive(one); });
        return absent == path.end() ? rank : *absent;
    }

    // What happened to these ranks: "rank 3 (process 4711) is gone: killed by signal 9 (Killed); rank 1 gave up because
    // of it".
    std::string sentence(const std::vector<uint32_t>& ranks) const {
        std::vector<uint32_t> firsts, followers;
        for (uint32_t rank : ranks)
            if (uint32_t one = first(rank); std::find(firsts.begin(), firsts.end(), one) == firsts.end())
                firsts.push_back(one);
        for (uint32_t rank : ranks)
            if (std::find(firsts.begin(), firsts.end(), rank) == firsts.end()) followers.push_back(rank);
        std::string text;
        for (uint32_t rank : firsts) text += (text.empty() ? "" : "; ") + fate(rank);
        if (!followers.empty()) text += "; " + list_of(followers) + " gave up because of it";
        return text;
    }

    std::string named(uint32_t rank) const {
        const Arena& arena = *arenas_[rank];
        return "rank " + std::to_string(rank) + " (process " + std::to_string(process_of(arena)) +
               (arena.sees_owner() ? ")" : " of another PID namespace)");
    }

    std::string fate(uint32_t rank) const {
        std::string name = "rank " + std::to_string(rank), how, words;
        Standing stands = standing(rank);
        for (const auto& character : posts_[rank]->last_words)
            if (char c = character.load(std::memory_order_relaxed)) words += c;
        if (stands == Standing::left && !words.empty()) return name + " has left: it is ending after " + words;
        if (stands == Standing::left) {
            uint64_t calls = posts_[rank]->last_call.load(std::memory_order_relaxed);
            return name + " has left: it closed its communicator" +
                   (calls ? " after call " + std::to_string(calls) : "");
        }
        // Whom a rank waits for when it gives up stays in its post.
        uint32_t waits = posts_[rank]->waiting_for.load(std::memory_order_relaxed);
        std::string whom = waits ? " for rank " + std::to_string(waits - 1) : "";
        // Why it gave up says more than that its process has ended since.
        if (stands == Standing::mismatch) return name + " gave up: the ranks made different calls";
        // It is the rank that the others had waited for.
        if (stands == Standing::late && waits == rank + 1)
            return name + " came too late: others had given up waiting for it";
        if (stands == Standing::late) return name + " gave up: it had waited too long" + whom;
        if (life_of(*arenas_[rank], &how) == Life::dead)
            return named(rank) + " is gone" + how + (words.empty() ? "" : " after " + words);
        if (!words.empty()) return name + " gave up: it is ending after " + words;
        return name + " gave up" + (waits ? " while it waited" + whom : "");
    }

  private:
    Standing standing(uint32_t rank) const {
        return static_cast<Standing>(posts_[rank]->standing.load(std::memory_order_acquire));
    }
    bool is_alive(uint32_t rank) const { return life_of(*arenas_[rank]) == Life::alive; }

    uint32_t rank_;
    std::vector<std::shared_ptr<Arena>> arenas_;
    std::vector<const Post*> posts_;
};

}  // namespace allfold
