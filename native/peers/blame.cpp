#include "peers/blame.hpp"

#include <algorithm>

#include "peers/peers.hpp"
#include "shared/text.hpp"

namespace allfold {

std::string list_of(const std::vector<uint32_t>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < ranks.size(); ++i) {
        if (i) text += i + 1 == ranks.size() ? " and " : ", ";
        text += std::to_string(ranks[i]);
    }
    return text;
}

void Blame::lost(uint32_t peer) const {
    uint64_t identity = arenas_[first(peer)]->directory().identity.load(std::memory_order_relaxed);
    arenas_[rank_]->directory().lost.store(identity, std::memory_order_relaxed);
}

void Blame::lost_elsewhere(const std::vector<uint32_t>& peers) const {
    for (uint32_t peer : peers)
        posts_[rank_]->because_of[peer / 64].fetch_or(uint64_t{1} << peer % 64, std::memory_order_relaxed);
    if (!peers.empty()) lost(peers.front());
}

bool Blame::is_told_by(const std::vector<uint32_t>& ranks) const {
    return std::any_of(ranks.begin(), ranks.end(), [&](uint32_t rank) { return !causes_of(rank).empty(); });
}

uint32_t Blame::first(uint32_t rank) const {
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
    // has ended, did more than give up, so it is the cause.
    auto absent = std::find_if(path.begin(), path.end(),
                               [&](uint32_t one) { return standing(one) == Standing::left || !is_alive(one); });
    return absent == path.end() ? rank : *absent;
}

std::string Blame::sentence(const std::vector<uint32_t>& ranks) const {
    std::vector<uint32_t> firsts, followers;
    for (uint32_t rank : ranks)
        if (uint32_t one = first(rank); std::find(firsts.begin(), firsts.end(), one) == firsts.end())
            firsts.push_back(one);
    for (uint32_t rank : ranks)
        if (std::find(firsts.begin(), firsts.end(), rank) == firsts.end()) followers.push_back(rank);
    std::string text;
    for (uint32_t rank : firsts) text += joined({text.empty() ? "" : "; ", fate(rank)});
    if (!followers.empty()) text += joined({"; ", list_of(followers), " gave up because of it"});
    return text;
}

std::string Blame::named(uint32_t rank) const {
    const Arena& arena = *arenas_[rank];
    return joined(
        {"rank ", rank, " (process ", process_of(arena), arena.sees_owner() ? ")" : " of another PID namespace)"});
}

std::string Blame::fate(uint32_t rank) const {
    std::string name = joined({"rank ", rank}), how, words;
    Standing stands = standing(rank);
    for (const auto& character : posts_[rank]->last_words)
        if (char c = character.load(std::memory_order_relaxed)) words += c;
    if (stands == Standing::left && !words.empty()) return joined({name, " has left: it is ending after ", words});
    if (stands == Standing::left) {
        uint64_t calls = posts_[rank]->last_call.load(std::memory_order_relaxed);
        return joined({name, " has left: it closed its communicator", calls ? joined({" after call ", calls}) : ""});
    }
    // The rank that a rank waits for when it gives up stays in its post.
    uint32_t waits = posts_[rank]->waiting_for.load(std::memory_order_relaxed);
    std::string whom = waits ? joined({" for rank ", waits - 1}) : "";
    // The reason why it gave up explains more than that its process has ended since.
    if (stands == Standing::mismatch) return name + " gave up: the ranks made different calls";
    // The others had waited for this rank.
    if (stands == Standing::late && waits == rank + 1)
        return name + " arrived too late: others had given up waiting for it";
    if (stands == Standing::late) return joined({name, " gave up: it had waited too long", whom});
    if (auto causes = causes_of(rank); !causes.empty()) return joined({name, " gave up because of ", list_of(causes)});
    if (life_of(*arenas_[rank], &how) == Life::dead)
        return joined({named(rank), " is gone", how, words.empty() ? "" : " after ", words});
    if (!words.empty()) return joined({name, " gave up: it is ending after ", words});
    return joined({name, " gave up", waits ? " while it waited" : "", whom});
}

Standing Blame::standing(uint32_t rank) const {
    return static_cast<Standing>(posts_[rank]->standing.load(std::memory_order_acquire));
}

std::vector<uint32_t> Blame::causes_of(uint32_t rank) const {
    std::vector<uint32_t> causes;
    for (uint32_t peer = 0; peer < posts_.size(); ++peer)
        if (posts_[rank]->because_of[peer / 64].load(std::memory_order_relaxed) >> peer % 64 & 1)
            causes.push_back(peer);
    return causes;
}

bool Blame::is_alive(uint32_t rank) const { return life_of(*arenas_[rank]) == Life::alive; }

}  // namespace allfold
