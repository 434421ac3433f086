// The part of a wire that matches messages with receives, and keeps track of lost peers.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shared/text.hpp"
#include "wire/event_wire.hpp"
#include "wire/matching.hpp"

namespace allfold {

struct MatchedTransfer : WireTransfer {
    bool sends = false;
    bool was_left = false;  // released before its end; the wire deletes it then
    uint8_t* memory = nullptr;
    size_t size = 0;
    uint64_t tag = 0, number = 0;  // the order in which receives were posted
    int wanted = Wire::any_peer;
};

struct MatchedPeer {
    int rank = -1;
    int descriptor = -1;  // of the socket that is connected to it
    // Relaxed: it says only that nothing more will arrive. What arrived before is found under the lock.
    std::atomic<bool> lost{false};
    std::string why;

    bool is_lost() const { return lost.load(std::memory_order_relaxed); }
};

// `Peer` and `Transfer` extend the structs above. `Message`: one that arrived before its receive.
template <class Peer, class Transfer, class Message>
class MatchedWire : public EventWire {
  public:
    WireTransfer* send(int peer, const void* data, size_t bytes, uint64_t tag) final {
        Transfer* transfer = made(peer, const_cast<void*>(data), bytes, tag);
        transfer->sends = true;
        if (!is_here()) return refuse(transfer, forked);
        if (peer < 0 || peer >= size()) return refuse(transfer, no_such_rank);
        std::lock_guard lock(mutex_);
        Peer& to = peers_[static_cast<size_t>(peer)];
        if (to.is_lost()) return refuse(transfer, to.why.c_str());
        begin_send(to, transfer);
        announce(transfer);
        return transfer;
    }

    WireTransfer* receive(int peer, void* data, size_t bytes, uint64_t tag) final {
        Transfer* transfer = made(peer, data, bytes, tag);
        if (!is_here()) return refuse(transfer, forked);
        if (peer != any_peer && (peer < 0 || peer >= size())) return refuse(transfer, no_such_rank);
        std::lock_guard lock(mutex_);
        if (int found = matching_.peer_with(peer, tag); found != any_peer) {
            take_kept(peers_[static_cast<size_t>(found)], transfer, matching_.take_message(found, tag));
        } else if (peer == any_peer) {
            if (open_ == 0) return refuse(transfer, is_cut_ ? given_up : all_gone);
            matching_.post(transfer);
            for (Peer& from : peers_) was_posted(from);
        } else {
            Peer& from = peers_[static_cast<size_t>(peer)];
            if (from.is_lost()) return refuse(transfer, from.why.c_str());
            matching_.post(transfer);
            was_posted(from);
        }
        announce(transfer);
        return transfer;
    }

    void release(WireTransfer* given) final {
        auto* transfer = static_cast<Transfer*>(given);
        if (!is_here()) return;     // in a forked child locks may be held forever; leaking the memory is harmless
        if (transfer->is_over()) {  // the wire has forgotten it
            delete transfer;
            return;
        }
        std::lock_guard lock(mutex_);
        bool is_known = !transfer->is_over() && (transfer->sends || !matching_.withdraw(transfer));
        if (is_known) leave(transfer);
        if (!transfer->was_left) delete transfer;
    }

    void cut() final {
        if (!is_here()) return;
        std::lock_guard lock(mutex_);
        if (is_cut_) return;
        is_cut_ = true;
        for (Peer& peer : peers_) {
            if (!peer.is_lost()) say_goodbye(peer);
            lose(peer, given_up);
            matching_.drop_messages(peer.rank);
        }
        fail_all(any_peer, given_up);
        ++ended_;
        announce();
    }

    bool lost(int peer) const final { return !is_here() || peers_.at(static_cast<size_t>(peer)).is_lost(); }

  protected:
    // `descriptors`: -1 where there is no connection.
    MatchedWire(int rank, const std::vector<int>& descriptors)
        : EventWire(rank, static_cast<int>(descriptors.size())), peers_(descriptors.size()),
          matching_(descriptors.size()) {
        for (size_t i = 0; i < peers_.size(); ++i) {
            Peer& peer = peers_[i];
            peer.rank = static_cast<int>(i);
            peer.descriptor = descriptors[i];
            if (peer.descriptor >= 0) {
                ++open_;
            } else {
                peer.lost = true;
                peer.why = "there is no connection to " + name_of(peer);
            }
        }
    }

    // All of these are called under the lock.
    //
    // Begin to send to a peer that is not lost; end the transfer if that fails.
    virtual void begin_send(Peer& peer, Transfer* transfer) = 0;
    // A receive takes a message that arrived before it.
    virtual void take_kept(Peer& peer, Transfer* receive, Message message) = 0;
    // A receive from this peer, or from any, was posted.
    virtual void was_posted(Peer&) {}
    // A transfer is released before its end. Either the wire forgets it, or it `was_left` to `finish`.
    virtual void leave(Transfer* transfer) = 0;
    // This end is about to be cut.
    virtual void say_goodbye(Peer&) {}
    // Fail all transfers to and from a peer that was just lost.
    virtual void was_lost(Peer& peer) = 0;

    void close_descriptors() final {
        for (Peer& peer : peers_)
            if (peer.descriptor >= 0) close(peer.descriptor);
    }

    void finish(Transfer* transfer, WireTransfer::State state, int peer, size_t bytes, const char* why) {
        if (transfer->was_left) {
            delete transfer;
        } else if (!transfer->is_over()) {
            transfer->end(state, peer, bytes, why);
            ++ended_;
        }
    }
    void done(Transfer* transfer, const Peer& peer, size_t bytes) {
        finish(transfer, WireTransfer::State::done, peer.rank, bytes, "");
    }
    // `why`: lives as long as the wire.
    void fail(Transfer* transfer, const Peer& peer, const std::string& why) {
        finish(transfer, WireTransfer::State::failed, peer.rank, 0, why.c_str());
    }

    void lose(Peer& peer, const std::string& why) {
        if (peer.is_lost()) return;
        peer.why = why;
        peer.lost.store(true, std::memory_order_relaxed);
        ++ended_;
        --open_;
        shutdown(peer.descriptor, SHUT_RDWR);
        fail_all(peer.rank, peer.why.c_str());
        was_lost(peer);
        if (open_ == 0) fail_all(any_peer, all_gone);
    }

    // The reasons why peers are lost.
    static std::string name_of(const Peer& peer) { return joined({"rank ", peer.rank}); }
    static std::string has_closed(const Peer& peer) { return name_of(peer) + " has closed the connection"; }
    static std::string broken(const Peer& peer, const char* why) {
        return joined({"the connection to ", name_of(peer), " has ended: ", why});
    }
    static std::string too_long(const Peer& peer, size_t length, const Transfer* receive) {
        return joined({name_of(peer), " sent ", length, " bytes where a receive has room for ", receive->size,
                       ", and its connection was closed"});
    }

    std::vector<Peer> peers_;
    Matching<Transfer, Message> matching_;
    bool is_cut_ = false;

  private:
    static constexpr const char* given_up = "it was cancelled";
    static constexpr const char* all_gone = "all other ranks are lost";
    static constexpr const char* forked = "this process was forked from a rank";
    static constexpr const char* no_such_rank = "there is no such rank";

    static Transfer* made(int peer, void* data, size_t bytes, uint64_t tag) {
        auto* transfer = new Transfer;
        transfer->wanted = peer;
        transfer->memory = static_cast<uint8_t*>(data);
        transfer->size = bytes;
        transfer->tag = tag;
        return transfer;
    }

    static WireTransfer* refuse(Transfer* transfer, const char* why) {
        transfer->end(WireTransfer::State::failed, transfer->wanted, 0, why);
        return transfer;
    }

    void fail_all(int peer, const char* why) {
        for (Transfer* one : matching_.withdraw_all(peer))
            finish(one, WireTransfer::State::failed, one->wanted, 0, why);
    }

    int open_ = 0;  // peers that are not lost
};

}  // namespace allfold
