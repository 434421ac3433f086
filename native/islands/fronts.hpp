// Fronts: the headers that the leaders of islands exchange in every call, with its signature and small data.
//
// The receives of the next headers are always posted, each long enough for the longest. So whatever calls ranks make, a
// header is received as a header, and a small call crosses in one message. Longer data follow in a message of their
// own. A leader that needs nothing of another one goes on without its header, a few calls ahead at most: it compares
// the header when it comes, or in the next call that waits for that leader.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "islands/waiting.hpp"
#include "wire/wire.hpp"

namespace allfold {

// The leader of another island makes a different call: its header, and this rank's for the same call, which may be an
// earlier one.
struct CallsDiffer {
    int peer;
    std::string said, own;
};

class Fronts {
  public:
    struct Limits {
        size_t said;  // bytes of a header: a digest of `digest` bytes, and the signature
        size_t digest;
        size_t along;  // at most this much data is sent in the same message
        size_t most;   // at most this much follows in another one
        uint32_t front_tag, long_tag;
    };

    // Posts the receives of the first headers. `wire` outlives it.
    Fronts(Wire& wire, std::vector<int> peers, const Limits& limits);
    ~Fronts();
    Fronts(const Fronts&) = delete;

    const std::vector<int>& peers() const { return peers_; }
    const Limits& limits() const { return limits_; }
    // The length of the message with the header, in a call with this many bytes of data.
    size_t bytes_with(size_t data) const { return head() + (data <= limits_.along ? data : 0); }

    // Begins a call of this rank. Waits until the headers of the last one have been sent.
    void begin(const char* said, const Waiting& waiting);
    // Waits until the headers of this call have been sent, with their data, or cannot be.
    void settle(const Waiting& waiting);
    // Sends the header to a peer, with data, which must not change until `sent` has returned.
    void send(int peer, const char* data, size_t bytes);
    // Posts the receive of data that follow a peer's header, unless they are short enough to be sent with it.
    void expect(int peer, size_t bytes);
    // A peer's header for this call; valid until `refill`. Compares those of earlier calls first.
    const char* receive(int peer, const Waiting& waiting);
    // Throws CallsDiffer unless a peer's header is the same as this rank's.
    void check_same(const char* came, const char* said, int peer) const;
    // Goes on without a peer's header for this call.
    void go_ahead(int peer, const Waiting& waiting);
    // The data of its call, sent with the header or after it; valid until `refill`.
    const char* data(const char* said, int peer, size_t bytes, const Waiting& waiting);
    // Waits until the data of this call may be overwritten.
    void sent(const Waiting& waiting);
    // At the end of a call: posts the receives of later headers.
    void refill();

  private:
    struct Room {
        std::vector<char> memory;
        WireTransfer* transfer = nullptr;
    };
    struct Peer {
        std::deque<Room> posted;
        std::vector<Room> used, followed;  // received into in this call, and may still be read
        std::deque<Room> following;        // at most one
        std::deque<std::string> unheard;  // this rank's headers of the calls for which the peer's has not been compared
    };

    Peer& at(int peer);
    void post(int peer, Room room);
    void post_following(int peer, Room room);
    void await(Room& room, const Waiting& waiting);
    void compare_next(int peer, const Waiting& waiting);
    void await_all(std::vector<WireTransfer*>& transfers, const Waiting& waiting);
    size_t head() const { return (limits_.said + 63) / 64 * 64; }  // the data behind it are folded where they arrive

    Wire& wire_;
    std::vector<int> peers_;
    Limits limits_;
    std::vector<Peer> by_rank_;
    const char* said_ = nullptr;
    struct Sent {  // a header with data: peers that are sent the same data share it
        std::vector<char> memory;
        const char* data;
        size_t bytes;
    };
    std::deque<Sent> fronts_;
    size_t used_ = 0;  // of these, in this call
    std::vector<WireTransfer*> sent_, long_sent_;
};

}  // namespace allfold
