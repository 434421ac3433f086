// Matches messages and receives: by peer and tag, each in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "wire/wire.hpp"

namespace allfold {

// `Receive` has a `tag`, a `number` and the peer that is `wanted`, or Wire::any_peer. `Message` can be moved.
template <class Receive, class Message>
class Matching {
  public:
    explicit Matching(size_t peers) : peers_(peers) {}

    // The receive that a message is for, which is then no longer posted; nullptr if there is none.
    Receive* take_receive(int peer, uint64_t tag) {
        auto& posted = of(peer).posted;
        auto own = posted.find(tag), any = any_.find(tag);
        bool has_own = own != posted.end(), has_any = any != any_.end();
        if (!has_own && !has_any) return nullptr;
        if (has_own && (!has_any || own->second.front()->number < any->second.front()->number))
            return take_first(posted, own);
        return take_first(any_, any);
    }

    void post(Receive* receive) {
        receive->number = next_number_++;
        (receive->wanted == Wire::any_peer ? any_ : of(receive->wanted).posted)[receive->tag].push_back(receive);
    }

    void keep(int peer, uint64_t tag, Message message) {
        of(peer).kept[tag].push_back({next_number_++, std::move(message)});
    }

    // The wanted peer whose first message with this tag arrived first; any_peer if there is none.
    int peer_with(int wanted, uint64_t tag) const {
        auto found = Wire::any_peer;
        uint64_t number = UINT64_MAX;
        int first = wanted == Wire::any_peer ? 0 : wanted;
        int last = wanted == Wire::any_peer ? static_cast<int>(peers_.size()) - 1 : wanted;
        for (int peer = first; peer <= last; ++peer) {
            auto& kept = peers_[static_cast<size_t>(peer)].kept;
            if (auto at = kept.find(tag); at != kept.end() && at->second.front().number < number) {
                found = peer;
                number = at->second.front().number;
            }
        }
        return found;
    }
    Message take_message(int peer, uint64_t tag) {
        auto& kept = of(peer).kept;
        return take_first(kept, kept.find(tag)).message;
    }
    void drop_messages(int peer) { of(peer).kept.clear(); }
    // Drops the last message of a tag if `is_it` says so.
    template <class IsIt>
    void drop_last(int peer, uint64_t tag, IsIt is_it) {
        auto& kept = of(peer).kept;
        auto at = kept.find(tag);
        if (at == kept.end() || !is_it(at->second.back().message)) return;
        at->second.pop_back();
        if (at->second.empty()) kept.erase(at);
    }

    // Withdraw a receive. True if it was posted.
    bool withdraw(Receive* receive) {
        auto& posted = receive->wanted == Wire::any_peer ? any_ : of(receive->wanted).posted;
        auto at = posted.find(receive->tag);
        if (at == posted.end() || std::erase(at->second, receive) == 0) return false;
        if (at->second.empty()) posted.erase(at);
        return true;
    }
    // Withdraw all receives that are posted for a peer, or for any peer.
    std::vector<Receive*> withdraw_all(int peer) {
        std::vector<Receive*> found;
        auto& posted = peer == Wire::any_peer ? any_ : of(peer).posted;
        for (auto& [tag, list] : posted) found.insert(found.end(), list.begin(), list.end());
        posted.clear();
        return found;
    }

  private:
    struct Kept {
        uint64_t number;  // the order of arrival
        Message message;
    };
    struct Peer {
        std::unordered_map<uint64_t, std::deque<Receive*>> posted;
        std::unordered_map<uint64_t, std::deque<Kept>> kept;
    };

    Peer& of(int peer) { return peers_[static_cast<size_t>(peer)]; }

    template <class Map>
    static auto take_first(Map& map, typename Map::iterator at) {
        auto first = std::move(at->second.front());
        at->second.pop_front();
        if (at->second.empty()) map.erase(at);
        return first;
    }

    std::vector<Peer> peers_;
    std::unordered_map<uint64_t, std::deque<Receive*>> any_;
    uint64_t next_number_ = 0;
};

}  // namespace allfold
