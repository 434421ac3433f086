// Messages without Python, with ranks as threads: over TCP, or with the word `ucx` over the host's UCX (on the loopback
// interface). Exit status 0 if all tests pass, 1 otherwise.
#include "wire/tcp.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>

#include "ranks.hpp"
#include "wire/ucx.hpp"

using namespace allfold;
using namespace allfold::tests;
using namespace std::chrono_literals;

namespace {

using Bytes = std::vector<uint8_t>;
using State = WireTransfer::State;

// Two ends of a connection.
std::array<int, 2> connected() {
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* place = reinterpret_cast<sockaddr*>(&address);
    int dialing = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = bind(listening, place, length) == 0 && listen(listening, 1) == 0 &&
                getsockname(listening, place, &length) == 0 && connect(dialing, place, length) == 0;
    int accepted = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    expect(good && accepted >= 0, "a connection on the loopback interface");
    close(listening);
    return {dialing, accepted};
}

State wait(Wire& wire, const WireTransfer* transfer, Clock::duration most = 60s) {
    auto deadline = Clock::now() + most;
    while (true) {
        uint64_t seen = wire.turn();
        if (transfer->is_over() || Clock::now() >= deadline) return transfer->state();
        wire.sleep(seen, deadline);
    }
}

bool over_ucx = false;

using Ends = std::vector<std::vector<int>>;  // by rank, and by the rank that each is connected to

Ends connected(int ranks) {
    Ends ends(static_cast<size_t>(ranks), std::vector<int>(static_cast<size_t>(ranks), -1));
    for (size_t one = 0; one < ends.size(); ++one)
        for (size_t other = 0; other < one; ++other) {
            auto pair = connected();
            ends[one][other] = pair[0];
            ends[other][one] = pair[1];
        }
    return ends;
}

std::vector<std::shared_ptr<Wire>> mesh(const Ends& ends) {
    const int ranks = static_cast<int>(ends.size());
    std::vector<std::shared_ptr<Wire>> wires;
    if (over_ucx) {
        static auto context = std::make_shared<ucx::Context>(ucx::Context::Settings{
            {"TLS", "tcp,self"}, {"NET_DEVICES", "lo"}, {"TCP_TX_SEG_SIZE", "128k"}, {"TCP_RX_SEG_SIZE", "128k"}});
        std::vector<std::shared_ptr<ucx::Worker>> workers;
        std::vector<std::string> addresses;
        for (int rank = 0; rank < ranks; ++rank) {
            workers.push_back(std::make_shared<ucx::Worker>(context));
            addresses.push_back(workers.back()->address);
        }
        for (size_t rank = 0; rank < ends.size(); ++rank)
            wires.push_back(ucx_wire(std::move(workers[rank]), static_cast<int>(rank), ends[rank], addresses, 65536));
        // Afterwards all are connected, and a short send is over at once.
        for (bool sends : {true, false})
            for (auto& wire : wires)
                for (int peer = 0; peer < ranks; ++peer) {
                    if (peer == wire->rank()) continue;
                    WireTransfer* hello = sends ? wire->send(peer, nullptr, 0, 0) : wire->receive(peer, nullptr, 0, 0);
                    expect(wait(*wire, hello) == State::done, "they are connected");
                    wire->release(hello);
                }
        return wires;
    }
    for (int rank = 0; rank < ranks; ++rank) wires.push_back(tcp_wire(rank, ends[static_cast<size_t>(rank)], 8));
    return wires;
}

std::vector<std::shared_ptr<Wire>> mesh(int ranks) { return mesh(connected(ranks)); }

void expect_end(Wire& wire, WireTransfer* transfer, State state, const std::string& what) {
    bool is_right = wait(wire, transfer) == state;
    expect(is_right, what + " (" + (transfer->is_over() ? transfer->why() : "not over") + ")");
    wire.release(transfer);
}

Bytes pattern(size_t length, uint32_t seed) {
    Bytes bytes(length);
    uint32_t state = seed * 2654435761u + 1;
    for (auto& one : bytes) one = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
    return bytes;
}

const std::vector<size_t> lengths = {0,       1,       24,        16383,        16384,   16385,
                                     65536,   262143,  262144,    262145,       1 << 20, (1 << 20) + 7,
                                     300'000, 700'001, 3'000'000, (2 << 20) + 1};

// Everybody sends to everybody, with two tags, from two threads each; receives come early, late and in another order.
void messages_of_all_lengths(int ranks) {
    auto wires = mesh(ranks);
    run_ranks(static_cast<uint32_t>(2 * ranks), [&](uint32_t worker) {
        int rank = static_cast<int>(worker) / 2;
        Wire& wire = *wires[static_cast<size_t>(rank)];
        uint64_t tag = worker % 2;
        std::mt19937 random(worker);
        struct Pair {
            Bytes sent, room;
            WireTransfer *send = nullptr, *receive = nullptr;
        };
        std::vector<std::vector<Pair>> all(static_cast<size_t>(ranks));
        auto seed = [&](int from, int to, size_t number) {
            return static_cast<uint32_t>(1000 * from + 100 * to + 50 * static_cast<int>(tag)) +
                   static_cast<uint32_t>(number);
        };
        for (int peer = 0; peer < ranks; ++peer) {
            if (peer == rank) continue;
            auto& pairs = all[static_cast<size_t>(peer)];
            pairs.resize(lengths.size());
            auto post = [&](size_t number) {
                pairs[number].room.assign(lengths[number] + 8, 0xEE);
                pairs[number].receive =
                    wire.receive(peer, pairs[number].room.data(), lengths[number] + number % 2, tag);
            };
            size_t early = random() % (lengths.size() + 1);
            for (size_t number = 0; number < early; ++number) post(number);
            for (size_t number = 0; number < lengths.size(); ++number) {
                pairs[number].sent = pattern(lengths[number], seed(rank, peer, number));
                pairs[number].send = wire.send(peer, pairs[number].sent.data(), lengths[number], tag);
            }
            for (size_t number = early; number < lengths.size(); ++number) post(number);
        }
        for (int peer = ranks - 1; peer >= 0; --peer)
            for (size_t number = 0; number < all[static_cast<size_t>(peer)].size(); ++number) {
                Pair& pair = all[static_cast<size_t>(peer)][number];
                expect(wait(wire, pair.receive) == State::done, "a message arrives");
                expect(pair.receive->peer() == peer && pair.receive->bytes() == lengths[number], "as it was sent");
                Bytes right = pattern(lengths[number], seed(peer, rank, number));
                expect(std::equal(right.begin(), right.end(), pair.room.begin()), "with its data");
                expect(pair.room[lengths[number]] == 0xEE, "and nothing behind them");
                wire.release(pair.receive);
                expect_end(wire, pair.send, State::done, "a message was sent");
            }
    });
}

void anybody_may_be_received_from() {
    auto wires = mesh(4);
    run_ranks(4, [&](uint32_t rank) {
        Wire& wire = *wires[rank];
        for (uint64_t turn = 0; turn < 20; ++turn) {
            if (rank != 0) {
                Bytes sent(turn % 2 ? 400'000 : 8, static_cast<uint8_t>(rank));
                expect_end(wire, wire.send(0, sent.data(), sent.size(), turn), State::done, "it was sent");
                continue;
            }
            std::array<bool, 4> come{};
            for (int i = 0; i < 3; ++i) {
                Bytes room(400'000);
                WireTransfer* receive = wire.receive(Wire::any_peer, room.data(), room.size(), turn);
                expect(wait(wire, receive) == State::done, "something came");
                expect(room[0] == receive->peer() && !come[room[0]], "from whom it says");
                come[room[0]] = true;
                wire.release(receive);
            }
        }
    });
}

void what_is_left_harms_nobody() {
    auto wires = mesh(2);
    Bytes sent = pattern(5'000'000, 1), room(sent.size()), other(100);
    // Receives are left before, while and after their message comes; the next ones get the next messages.
    wires[1]->release(wires[1]->receive(0, room.data(), room.size(), 1));
    WireTransfer* send = wires[0]->send(1, sent.data(), sent.size(), 1);
    WireTransfer* half = wires[1]->receive(0, room.data(), room.size(), 1);
    for (int i = 0; i < 3; ++i) {
        wires[0]->progress();
        wires[1]->progress();
    }
    wires[1]->release(half);
    std::fill(room.begin(), room.end(), 7);
    // Sends that are left arrive as they were.
    wires[0]->release(send);
    std::fill(sent.begin(), sent.end(), 9);
    Bytes next = pattern(5'000'000, 2);
    WireTransfer* second = wires[0]->send(1, next.data(), next.size(), 2);
    wires[0]->release(second);
    Bytes right = next;
    std::fill(next.begin(), next.end(), 9);
    Bytes second_room(right.size());
    expect_end(*wires[1], wires[1]->receive(0, second_room.data(), second_room.size(), 2), State::done, "the next");
    expect(second_room == right, "a send that was left arrives as it was");
    expect(std::count(room.begin(), room.end(), 7) == static_cast<long>(room.size()), "nobody writes into it");
}

void until_it_has_begun(const std::vector<std::shared_ptr<Wire>>& wires, const Bytes& room) {
    auto deadline = Clock::now() + 60s;
    while (room[0] == 0 && room[1] == 0 && Clock::now() < deadline) {
        wires[0]->progress();
        wires[1]->progress();
    }
}

// A receive in the middle of its message, and a send that nobody has asked for: nobody uses their memory afterwards,
// and the other end sees that the connection is gone.
void what_is_given_up_over_ucx_ends() {
    for (bool sends : {false, true}) {
        auto wires = mesh(3);
        Bytes sent = pattern(100'000'000, 1), room(sent.size());
        wires[1]->release(wires[1]->receive(0, room.data(), room.size(), 1));
        WireTransfer* send = wires[0]->send(1, sent.data(), sent.size(), 1);
        WireTransfer* receive = wires[1]->receive(0, room.data(), room.size(), sends ? 2 : 1);
        if (sends) {
            wires[0]->release(send);
            std::fill(sent.begin(), sent.end(), 9);
            expect_end(*wires[1], receive, State::failed, "nothing comes");
        } else {
            until_it_has_begun(wires, room);
            expect(!receive->is_over(), "it has begun, and is not over");
            wires[1]->release(receive);
            std::fill(room.begin(), room.end(), 7);
            expect_end(*wires[0], send, State::failed, "it does not arrive");
            expect(std::count(room.begin(), room.end(), 7) == static_cast<long>(room.size()), "nobody writes into it");
        }
        expect(wires[0]->lost(1) && !wires[0]->lost(2), "that connection is gone");
        Bytes word(8, 3), heard(8);
        expect_end(*wires[2], wires[2]->send(1, word.data(), 8, 1), State::done, "the others go on");
        expect_end(*wires[1], wires[1]->receive(2, heard.data(), 8, 1), State::done, "and are heard");
    }
}

// A rank that leaves says goodbye on its socket when UCX has taken its last message. The data may take longer.
void a_long_message_outlasts_a_goodbye_over_ucx() {
    Ends ends = connected(2);
    auto wires = mesh(ends);
    Bytes sent = pattern(30'000'000, 1), room(sent.size());
    WireTransfer* send = wires[0]->send(1, sent.data(), sent.size(), 1);
    WireTransfer* receive = wires[1]->receive(0, room.data(), room.size(), 1);
    until_it_has_begun(wires, room);
    expect(!receive->is_over(), "it has begun, and is not over");
    const std::array<uint64_t, 2> goodbye = {2, 0};  // messages, with the one that connects; none is given up
    bool is_said = write(ends[0][1], goodbye.data(), sizeof goodbye) == sizeof goodbye;
    expect(is_said && shutdown(ends[0][1], SHUT_WR) == 0, "a goodbye");
    expect_end(*wires[1], receive, State::done, "it comes as a whole");
    expect(room == sent, "as it was sent");
    wires[0]->release(send);
}

// A rank that gives up in the middle of a message says so, and nobody waits for the rest.
void a_message_that_is_cut_off_over_ucx_fails() {
    auto wires = mesh(2);
    Bytes sent = pattern(100'000'000, 1), room(sent.size());
    WireTransfer* send = wires[0]->send(1, sent.data(), sent.size(), 1);
    WireTransfer* receive = wires[1]->receive(0, room.data(), room.size(), 1);
    until_it_has_begun(wires, room);
    expect(!receive->is_over(), "it has begun, and is not over");
    wires[0]->cut();
    expect_end(*wires[1], receive, State::failed, "its other end is cut");
    expect_end(*wires[0], send, State::failed, "and so is the send");
}

void background_moves_what_nobody_waits_for() {
    auto wires = mesh(2);
    Bytes sent = pattern(20'000'000, 1), room(sent.size());
    WireTransfer* send = wires[0]->send(1, sent.data(), sent.size(), 1);
    WireTransfer* receive = wires[1]->receive(0, room.data(), room.size(), 1);
    auto deadline = Clock::now() + 60s;
    while (!(send->is_over() && receive->is_over()) && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
    expect(receive->state() == State::done && room == sent, "it moves while nobody is inside");
    wires[0]->release(send);
    wires[1]->release(receive);
}

void words_and_cuts_end_sleeps() {
    auto wires = mesh(3);
    Bytes room(8);
    int bell = eventfd(0, EFD_CLOEXEC);
    wires[0]->watch(bell);
    auto sleeps = [&](const std::function<void()>& until) {
        uint64_t seen = wires[0]->turn();
        std::thread other(until);
        auto deadline = Clock::now() + 60s;
        while (wires[0]->turn() == seen && Clock::now() < deadline) wires[0]->sleep(seen, deadline);
        expect(wires[0]->turn() != seen, "a sleep was ended");
        other.join();
    };
    sleeps([&] { wires[0]->wake(); });
    for (int i = 0; i < 3; ++i)
        sleeps([&] {
            uint64_t one = 1;
            expect(write(bell, &one, sizeof one) == sizeof one, "a bell rings");
        });
    WireTransfer* waits = wires[0]->receive(1, room.data(), room.size(), 1);
    WireTransfer* any = wires[0]->receive(Wire::any_peer, room.data(), room.size(), 1);
    std::thread other([&] { wait(*wires[0], any); });
    sleeps([&] { wires[0]->cut(); });
    other.join();
    for (WireTransfer* one :
         {waits, any, wires[0]->send(1, room.data(), 8, 1), wires[0]->receive(1, room.data(), 8, 1)})
        expect_end(*wires[0], one, State::failed, "after a cut it fails");
    WireTransfer* peers = wires[1]->receive(0, room.data(), room.size(), 1);
    expect_end(*wires[1], peers, State::failed, "the other end sees it");
    expect(wires[1]->lost(0) && !wires[1]->lost(2), "who is lost");
    close(bell);
}

void who_has_gone_has_sent_before() {
    auto wires = mesh(3);
    Bytes sent = pattern(60'000, 3), room(sent.size());
    wires[1]->release(wires[1]->send(0, sent.data(), 1000, 1));
    expect_end(*wires[1], wires[1]->send(0, sent.data(), sent.size(), 2), State::done, "it was sent");
    wires[1].reset();
    WireTransfer* never = wires[0]->receive(1, room.data(), room.size(), 9);
    WireTransfer* any = wires[0]->receive(Wire::any_peer, room.data(), room.size(), 9);
    expect_end(*wires[0], never, State::failed, "nothing more comes");
    expect(!any->is_over(), "somebody else may send");
    expect_end(*wires[0], wires[0]->receive(1, room.data(), room.size(), 2), State::done, "what came before");
    expect(room == sent, "is right");
    wires[2].reset();
    expect_end(*wires[0], any, State::failed, "nobody is left");
}

// Whatever the other end sends: no crash, no wait that lasts, and the other connections go on.
void garbage_ends_its_connection_only() {
    std::mt19937 random(7);
    for (int turn = 0; turn < 300; ++turn) {
        auto bad = connected(), good = connected();
        auto wire = tcp_wire(0, {-1, bad[0], good[0]}, 8);
        auto peer = tcp_wire(2, {good[1], -1, -1}, 8);
        Bytes room(4096), garbage(24 * (1 + random() % 40));
        WireTransfer* waits = wire->receive(1, room.data(), room.size(), 5);
        WireTransfer* asks = wire->send(1, garbage.data(), 0, 5);
        Bytes long_one(tcp_longest_at_once + 30'000);
        WireTransfer* long_send = wire->send(1, long_one.data(), long_one.size(), 5);
        for (auto& one : garbage) one = static_cast<uint8_t>(random());
        // Most look like messages at first: kinds that exist, with odd numbers, tags and lengths.
        if (turn % 4 != 0)
            for (size_t at = 0; at + 24 <= garbage.size(); at += 24) {
                uint32_t kind = 0xA11F0D00 + random() % 6, id = random() % 3;
                uint64_t tag = random() % 2 ? 5 : random() % 3;
                uint64_t length =
                    std::array<uint64_t, 6>{0, 16, 4096, tcp_longest_at_once + 30'000, ~0ull, 1ull << 40}[random() % 6];
                std::memcpy(&garbage[at], &kind, 4);
                std::memcpy(&garbage[at + 4], &id, 4);
                std::memcpy(&garbage[at + 8], &tag, 8);
                std::memcpy(&garbage[at + 16], &length, 8);
            }
        size_t cut = random() % 2 ? garbage.size() : random() % garbage.size();
        expect(send(bad[1], garbage.data(), cut, MSG_NOSIGNAL) >= 0 || cut == 0, "garbage is sent");
        Bytes word = pattern(1000, static_cast<uint32_t>(turn)), heard(1000);
        WireTransfer* said = peer->send(0, word.data(), word.size(), 5);
        expect_end(*wire, wire->receive(2, heard.data(), heard.size(), 5), State::done, "the others go on");
        expect(heard == word, "with what they said");
        shutdown(bad[1], SHUT_WR);
        wait(*wire, waits);
        WireTransfer* last = wire->receive(1, room.data(), room.size(), 77);
        expect_end(*wire, last, State::failed, "its connection ends");
        expect(wait(*wire, long_send) != State::under_way && waits->is_over(), "and so do its transfers");
        for (WireTransfer* one : {waits, asks, long_send}) wire->release(one);
        peer->release(said);
        close(bad[1]);
    }
}

void a_message_that_is_too_long_is_a_failure() {
    for (size_t length : {100u, 400'000u})
        for (bool early : {false, true}) {
            auto wires = mesh(2);
            Bytes sent(length), room(50);
            WireTransfer* receive = early ? wires[1]->receive(0, room.data(), room.size(), 1) : nullptr;
            WireTransfer* send = wires[0]->send(1, sent.data(), sent.size(), 1);
            if (!early) {
                std::this_thread::sleep_for(2ms);  // it has come by then, or not: both must do
                receive = wires[1]->receive(0, room.data(), room.size(), 1);
            }
            expect(wait(*wires[1], receive) == State::failed, "it does not fit");
            expect(std::string(receive->why()).find("room for 50") != std::string::npos, receive->why());
            wires[1]->release(receive);
            expect(wires[1]->lost(0), "its connection is closed");
            wait(*wires[0], send);
            wires[0]->release(send);
        }
}

// Somebody who sends and sends fills our memory up to a limit, and no further until something is wanted.
void what_is_kept_has_a_limit() {
    auto pair = connected();
    auto wire = tcp_wire(0, {-1, pair[0]}, 8);
    Bytes message(24 + tcp_longest_at_once);
    uint32_t kind = 0xA11F0D01;
    uint64_t tag = 1, length = tcp_longest_at_once;
    std::memcpy(&message[0], &kind, 4);
    std::memcpy(&message[8], &tag, 8);
    std::memcpy(&message[16], &length, 8);
    size_t sent = 0, most = 4 * tcp_most_kept;
    auto quiet = Clock::now();
    auto fill = [&] {
        while (sent < most && Clock::now() < quiet + 300ms) {
            size_t at = sent % message.size();
            ssize_t written = send(pair[1], &message[at], message.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (written > 0) {
                sent += static_cast<size_t>(written);
                quiet = Clock::now();
            } else {
                std::this_thread::sleep_for(1ms);
            }
        }
    };
    fill();
    expect(sent < 2 * tcp_most_kept, "it stops: " + std::to_string(sent));
    // What is wanted lies behind all that.
    Bytes room(8);
    WireTransfer* receive = wire->receive(1, room.data(), room.size(), 2);
    most = sent - sent % message.size() + message.size();
    quiet = Clock::now() + 30s;
    fill();
    tag = 2, length = 8;
    std::memcpy(&message[8], &tag, 8);
    std::memcpy(&message[16], &length, 8);
    expect(send(pair[1], message.data(), 32, MSG_NOSIGNAL) == 32, "it can send again");
    expect_end(*wire, receive, State::done, "and what was wanted comes");
    close(pair[1]);
}

// What the other end has not read may be lost if this end is closed; it says so until then.
void what_has_not_arrived_is_known() {
    auto pair = connected();
    auto wire = tcp_wire(0, {-1, pair[0]}, 8);
    expect(!wire->is_draining(), "nothing was sent");
    Bytes note(tcp_longest_at_once), room(1 << 20);
    constexpr size_t count = 100;
    for (size_t i = 0; i < count; ++i) wire->release(wire->send(1, note.data(), note.size(), 1));
    expect(wire->is_draining(), "more was sent than the other end has room for");
    size_t left = count * (24 + note.size());
    while (left > 0) {
        ssize_t got = recv(pair[1], room.data(), room.size(), 0);
        expect(got > 0, "all of it arrives");
        left -= static_cast<size_t>(got);
    }
    auto limit = Clock::now() + 30s;
    while (wire->is_draining() && Clock::now() < limit) std::this_thread::sleep_for(1ms);
    expect(!wire->is_draining(), "all of it has arrived");
    close(pair[1]);
}

// Two ends that have filled each other's memory with what nobody wants yet wait for a long message all the same.
void a_wait_ends_behind_what_is_kept() {
    auto wires = mesh(2);
    Bytes note(tcp_longest_at_once), data = pattern(4 * tcp_longest_at_once, 5), room(data.size());
    // One receive is posted before all that, and one long send begins before it is asked for.
    WireTransfer* receive = wires[1]->receive(0, room.data(), room.size(), 2);
    WireTransfer* answer = wires[1]->send(0, data.data(), data.size(), 3);
    for (size_t sent = 0; sent < 3 * tcp_most_kept; sent += note.size())
        for (auto& wire : wires) wire->release(wire->send(1 - wire->rank(), note.data(), note.size(), 1));
    WireTransfer* send = wires[0]->send(1, data.data(), data.size(), 2);
    std::thread other([&] {
        Bytes came(data.size());
        expect_end(*wires[0], wires[0]->receive(1, came.data(), came.size(), 3), State::done, "the answer comes");
        expect(came == data, "as it was sent");
        expect_end(*wires[0], send, State::done, "a long send ends");
    });
    expect_end(*wires[1], answer, State::done, "a long send ends whose word was behind");
    expect_end(*wires[1], receive, State::done, "a receive ends that was posted before");
    other.join();
    expect(room == data, "with what was sent");
}

void a_forked_child_has_nothing_of_it() {
    auto wires = mesh(2);
    Bytes word(8, 3), room(8);
    pid_t child = fork();
    if (child == 0) {
        WireTransfer* send = wires[0]->send(1, word.data(), word.size(), 1);
        bool good = send->state() == State::failed && wires[0]->lost(1) && !wires[0]->progress();
        wires[0]->cut();
        wires.clear();
        _exit(good ? 0 : 1);
    }
    int status = 1;
    expect(waitpid(child, &status, 0) == child && status == 0, "the child is refused");
    expect_end(*wires[0], wires[0]->send(1, word.data(), word.size(), 1), State::done, "its parent goes on");
    expect_end(*wires[1], wires[1]->receive(0, room.data(), room.size(), 1), State::done, "and so do its peers");
    expect(room == word, "as if there was no child");
}

}  // namespace

int main(int count, char** words) {
    over_ucx = count > 1 && std::string(words[1]) == "ucx";
    a_forked_child_has_nothing_of_it();
    for (int ranks : {1, 2, 3}) messages_of_all_lengths(ranks);
    anybody_may_be_received_from();
    background_moves_what_nobody_waits_for();
    words_and_cuts_end_sleeps();
    who_has_gone_has_sent_before();
    a_message_that_is_too_long_is_a_failure();
    if (over_ucx) {
        what_is_given_up_over_ucx_ends();
        a_long_message_outlasts_a_goodbye_over_ucx();
        a_message_that_is_cut_off_over_ucx_fails();
    } else {
        what_is_left_harms_nobody();
        garbage_ends_its_connection_only();
        what_is_kept_has_a_limit();
        what_has_not_arrived_is_known();
        a_wait_ends_behind_what_is_kept();
    }
    if (failures) return 1;
    std::puts("the wire: all is well");
    return 0;
}
