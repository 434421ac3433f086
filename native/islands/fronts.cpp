#include "islands/fronts.hpp"

#include <algorithm>
#include <cstring>

#include "shared/errors.hpp"
#include "shared/layout.hpp"

namespace allfold {

namespace {

constexpr int fronts_ahead = 2;  // receives that are posted before their calls

}  // namespace

Fronts::Fronts(Wire& wire, std::vector<int> peers, const Limits& limits)
    : wire_(wire), peers_(std::move(peers)), limits_(limits), by_rank_(static_cast<size_t>(wire.size())) {
    for (int peer : peers_)
        for (int i = 0; i < fronts_ahead; ++i) post(peer, {std::vector<char>(head() + limits_.along)});
}

Fronts::~Fronts() {
    auto leave = [&](WireTransfer* transfer) {
        if (transfer) wire_.release(transfer);
    };
    for (Peer& peer : by_rank_) {
        for (Room& room : peer.posted) leave(room.transfer);
        for (Room& room : peer.following) leave(room.transfer);
    }
    for (auto* all : {&sent_, &long_sent_})
        for (WireTransfer* transfer : *all) leave(transfer);
}

Fronts::Peer& Fronts::at(int peer) {
    if (peer < 0 || peer >= wire_.size()) throw EngineError(Fault::usage, "a header from a rank that does not exist");
    return by_rank_[static_cast<size_t>(peer)];
}

void Fronts::post(int peer, Room room) {
    room.transfer = wire_.receive(peer, room.memory.data(), room.memory.size(), limits_.front_tag);
    at(peer).posted.push_back(std::move(room));
}

void Fronts::post_following(int peer, Room room) {
    room.transfer = wire_.receive(peer, room.memory.data(), room.memory.size(), limits_.long_tag);
    at(peer).following.push_back(std::move(room));
}

void Fronts::await(Room& room, const Waiting& waiting) {
    waiting.await(wire_, *room.transfer);
    wire_.release(room.transfer);
    room.transfer = nullptr;
}

void Fronts::await_all(std::vector<WireTransfer*>& transfers, const Waiting& waiting) {
    while (!transfers.empty()) {
        waiting.await(wire_, *transfers.back());
        wire_.release(transfers.back());
        transfers.pop_back();
    }
}

void Fronts::begin(const char* said, const Waiting& waiting) {
    settle(waiting);  // the last call did not have to wait for them
    said_ = said;
    used_ = 0;
}

void Fronts::send(int peer, const char* data, size_t bytes) {
    if (bytes > limits_.most) throw EngineError(Fault::usage, "the data are too long to follow a header");
    const size_t along = bytes > limits_.along ? 0 : bytes;
    if (used_ == 0 || fronts_[used_ - 1].data != data || fronts_[used_ - 1].bytes != along) {
        if (used_ == fronts_.size()) fronts_.push_back({std::vector<char>(head() + limits_.along), nullptr, 0});
        Sent& front = fronts_[used_++];
        front.data = data;
        front.bytes = along;
        std::memcpy(front.memory.data(), said_, limits_.said);
        if (along) std::memcpy(front.memory.data() + head(), data, along);
    }
    sent_.push_back(wire_.send(peer, fronts_[used_ - 1].memory.data(), head() + along, limits_.front_tag));
    if (bytes > along) long_sent_.push_back(wire_.send(peer, data, bytes, limits_.long_tag));
}

void Fronts::expect(int peer, size_t bytes) {
    if (bytes > limits_.along && at(peer).following.empty()) post_following(peer, {std::vector<char>(limits_.most)});
}

const char* Fronts::receive(int peer, const Waiting& waiting) {
    Peer& from = at(peer);
    while (!from.unheard.empty()) compare_next(peer, waiting);
    if (from.posted.empty()) post(peer, {std::vector<char>(head() + limits_.along)});
    Room& room = from.posted.front();
    await(room, waiting);
    from.used.push_back(std::move(room));
    from.posted.pop_front();
    return from.used.back().memory.data();
}

void Fronts::check_same(const char* came, const char* said, int peer) const {
    if (std::memcmp(came, said, limits_.digest) != 0)
        throw CallsDiffer{peer, std::string(came, limits_.said), std::string(said, limits_.said)};
}

void Fronts::go_ahead(int peer, const Waiting& waiting) {
    Peer& from = at(peer);
    from.unheard.emplace_back(said_, limits_.said);
    while (from.unheard.size() > calls_ahead ||
           (!from.unheard.empty() && !from.posted.empty() && from.posted.front().transfer->is_over()))
        compare_next(peer, waiting);
}

// Compares the oldest call that has not been compared, and posts the receive of a later header.
void Fronts::compare_next(int peer, const Waiting& waiting) {
    Peer& from = at(peer);
    if (from.posted.empty()) post(peer, {std::vector<char>(head() + limits_.along)});
    await(from.posted.front(), waiting);  // after an error it stays there: the wire may still write to its memory
    Room room = std::move(from.posted.front());
    from.posted.pop_front();
    const std::string own = std::move(from.unheard.front());
    from.unheard.pop_front();
    check_same(room.memory.data(), own.data(), peer);
    post(peer, std::move(room));
}

const char* Fronts::data(const char* said, int peer, size_t bytes, const Waiting& waiting) {
    if (bytes <= limits_.along) return said + head();
    expect(peer, bytes);
    Peer& from = at(peer);
    await(from.following.front(), waiting);
    from.followed.push_back(std::move(from.following.front()));
    from.following.pop_front();
    return from.followed.back().memory.data();
}

// A peer that needed nothing from this rank may have made all of its calls, and left: its headers have come, and nobody
// misses what was sent to it. Whoever needs a lost peer waits for something from it, or is told by the heartbeats.
void Fronts::settle(const Waiting& waiting) {
    while (!sent_.empty()) {
        waiting.settle(wire_, *sent_.back());
        wire_.release(sent_.back());
        sent_.pop_back();
    }
}

void Fronts::sent(const Waiting& waiting) { await_all(long_sent_, waiting); }

void Fronts::refill() {
    for (int peer : peers_) {
        Peer& from = at(peer);
        while (!from.used.empty()) {
            post(peer, std::move(from.used.back()));
            from.used.pop_back();
        }
        while (!from.followed.empty()) {
            post_following(peer, std::move(from.followed.back()));
            from.followed.pop_back();
        }
    }
}

}  // namespace allfold
