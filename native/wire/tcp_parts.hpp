// The state of a connection: headers, waiting messages, and the progress of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "wire/matched_wire.hpp"
#include "wire/tcp.hpp"

namespace allfold::tcp {

// The header of every message. Both ends have the same byte order; they have checked that before.
struct Header {
    enum Kind : uint32_t {
        message = 0xA11F0D01,  // `length` bytes with `tag` follow
        ask = 0xA11F0D02,      // a message of `length` bytes with `tag` waits to be asked for as `id`
        go = 0xA11F0D03,       // send the message `id`, in pieces that name `tag`
        piece = 0xA11F0D04,    // `length` bytes more of the message that was asked for as `id`
    };
    uint32_t kind;
    uint32_t id;
    uint64_t tag;
    uint64_t length;
};
static_assert(sizeof(Header) == 24);

inline constexpr size_t longest_piece = 1 << 20;
inline constexpr uint64_t longest_message = uint64_t{1} << 48;
inline constexpr size_t staging_bytes = 16 << 10;
// Bytes of one connection that are moved before the others get their turn, and waiting threads check their transfers.
inline constexpr size_t most_at_once = 4 << 20;

struct Transfer final : MatchedTransfer {
    size_t moved = 0;
    uint32_t asked_as = 0;            // the other end's name for a long send
    std::unique_ptr<uint8_t[]> copy;  // of the data that a released send still needs
};

// A message that arrived before its receive: its data, or a note that it waits on the other end.
struct Kept {
    uint64_t tag = 0;
    size_t length = 0;
    size_t come = 0;
    bool waits = false;
    uint32_t id = 0;
    std::unique_ptr<uint8_t[]> data;
};

// A long message on its way, after it was asked for.
struct Incoming {
    Transfer* to;  // nullptr: its receive was released
    size_t length, come = 0;
};

// A header, and what follows it: part of the memory of a transfer.
struct Outgoing {
    Header header;
    Transfer* of;  // nullptr: nothing follows
    size_t from, bytes;
    size_t gone = 0;  // of both
};

struct Connection : MatchedPeer {
    bool is_ending = false;  // the kernel reported it: read until the socket is empty
    bool is_busy = false;    // in the list of those that have more to move
    bool is_paused = false;
    int write_error = 0;

    std::unique_ptr<uint8_t[]> staging;  // data read together with a header
    size_t begin = 0, end = 0;

    // Where the rest of a body is being read: into a transfer, into memory that keeps it, or nowhere.
    size_t body_left = 0;
    Transfer* body_to = nullptr;
    Kept* body_kept = nullptr;
    Incoming* body_of = nullptr;
    uint32_t body_id = 0;

    size_t kept_bytes = 0, may_keep = tcp_most_kept;
    std::unordered_map<uint32_t, Incoming> incoming;
    uint32_t next_incoming = 0;

    std::deque<Outgoing> outgoing;
    std::deque<Transfer*> long_sends;  // the other end has asked for them
    std::unordered_map<uint32_t, Transfer*> waiting_sends;
    uint32_t next_send = 0;
};

}  // namespace allfold::tcp
