// Messages without Python, with ranks as threads. Exit status 0 if all tests pass, 1 otherwise.
#include "messages/channel.hpp"

#include <numeric>
#include <random>

#include "collectives/communicator.hpp"
#include "ranks.hpp"

using namespace allfold;
using namespace allfold::tests;
using namespace std::chrono_literals;

namespace {

// Whether long messages may be read out of the processes of their senders.
enum class Reading { permitted, refused, unwanted };

struct World {
    explicit World(uint32_t ranks, Reading reading = Reading::permitted) {
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            auto arena = std::make_shared<Arena>(16 << 20);
            size_t post = arena->allocate(Communicator::post_bytes());
            members.push_back({arena, post, arena->allocate(Channel::inbox_bytes(ranks))});
            auto& probe = *reinterpret_cast<Post*>(arena->at(post));
            probe.probe_address.store(reinterpret_cast<uint64_t>(&word));
            probe.probe_word.store(reading == Reading::refused ? word + 1 : word);
        }
        const bool fetches = reading != Reading::unwanted;
        for (uint32_t rank = 0; rank < ranks; ++rank)
            channels.push_back(
                std::make_unique<Channel>(rank, members, "the world", fetches, std::make_shared<FirstError>()));
    }

    uint64_t word = 42;
    std::vector<Channel::Member> members;
    std::vector<std::unique_ptr<Channel>> channels;
};

using Numbers = std::vector<int32_t>;

void set(Operation& operation, Operation::Kind kind, int64_t peer, int64_t tag, Numbers& numbers) {
    operation.kind = kind;
    operation.dtype = DType::int32;
    operation.peer = peer;
    operation.tag = tag;
    operation.data = reinterpret_cast<char*>(numbers.data());
    operation.elements = numbers.size();
}

void send(Channel& channel, int64_t peer, int64_t tag, Numbers numbers) {
    Operation operation;
    set(operation, Operation::Kind::send, peer, tag, numbers);
    channel.run(operation, 20s, [] {}, nullptr);
}

Message receive(Channel& channel, int64_t peer, int64_t tag, Numbers& numbers, Clock::duration timeout = 20s) {
    Operation operation;
    set(operation, Operation::Kind::receive, peer, tag, numbers);
    return channel.run(operation, timeout, [] {}, nullptr);
}

Numbers counting_from(int32_t first, size_t length) {
    Numbers numbers(length);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
}

// Send to one neighbour and receive from the other at the same time: messages shorter than the ring, and much longer.
void messages_pass_each_other(uint32_t ranks) {
    World world(ranks);
    run_ranks(ranks, [&](uint32_t rank) {
        uint32_t right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
        for (size_t length : {0, 1, 3, 100, 5000, 700001}) {
            Numbers came(length + 1, -1);
            Numbers out = counting_from(static_cast<int32_t>(rank), length);
            Operation sends;
            set(sends, Operation::Kind::send, right, 5, out);
            world.channels[rank]->start(sends);
            Message message = receive(*world.channels[rank], left, 5, came);
            world.channels[rank]->wait(sends, 20s, nullptr);
            expect(message.source == left && message.tag == 5 && message.elements == length,
                   "the message is described");
            expect(std::equal(came.begin(), came.end() - 1, counting_from(static_cast<int32_t>(left), length).begin()),
                   "what came is what was sent");
            expect(came.back() == -1, "nothing is written beyond the message");
        }
    });
}

void tags_are_kept_apart_and_in_order() {
    World world(2);
    run_ranks(2, [&](uint32_t rank) {
        Channel& channel = *world.channels[rank];
        if (rank == 0) {
            for (int32_t i = 0; i < 20; ++i) send(channel, 1, i % 2, {i});
            return;
        }
        for (int64_t tag : {1, 0})
            for (int32_t i = 0; i < 10; ++i) {
                Numbers came(1);
                receive(channel, any_source, tag, came);
                expect(came[0] == 2 * i + tag, "messages of a tag come in the order in which they were sent");
            }
    });
}

void anybody_may_be_received_from() {
    constexpr uint32_t ranks = 4;
    World world(ranks);
    run_ranks(ranks, [&](uint32_t rank) {
        if (rank) return send(*world.channels[rank], 0, rank, {static_cast<int32_t>(10 * rank)});
        int32_t sum = 0;
        for (uint32_t i = 1; i < ranks; ++i) {
            Numbers came(1);
            Message message = receive(*world.channels[0], any_source, any_tag, came);
            expect(came[0] == static_cast<int32_t>(10 * message.source) && message.tag == came[0] / 10,
                   "source and tag are those of the message");
            sum += came[0];
        }
        expect(sum == 60, "everybody's came once");
    });
}

// Many messages of all lengths between all ranks; every rank derives what to expect from the same seed.
void many_at_once(uint32_t ranks, int rounds, Reading reading) {
    World world(ranks, reading);
    run_ranks(ranks, [&](uint32_t rank) {
        std::mt19937 random(7);
        for (int round = 0; round < rounds; ++round) {
            std::vector<size_t> lengths(ranks * ranks);
            for (auto& length : lengths) length = random() % (random() % 8 ? 300 : 100000);
            std::vector<Numbers> out(ranks), in(ranks);
            std::vector<Operation> operations(2 * ranks);
            for (uint32_t peer = 0; peer < ranks; ++peer) {
                out[peer] = counting_from(static_cast<int32_t>(100 * rank + peer), lengths[rank * ranks + peer]);
                in[peer].resize(lengths[peer * ranks + rank]);
                set(operations[peer], Operation::Kind::receive, peer, round, in[peer]);
                set(operations[ranks + peer], Operation::Kind::send, peer, round, out[peer]);
            }
            for (auto& operation : operations) world.channels[rank]->start(operation);
            for (auto& operation : operations) world.channels[rank]->wait(operation, 30s, nullptr);
            for (uint32_t peer = 0; peer < ranks; ++peer)
                expect(in[peer] == counting_from(static_cast<int32_t>(100 * peer + rank), in[peer].size()),
                       "every message is whole");
        }
    });
}

void what_does_not_fit_is_an_error_of_the_receiver(size_t length) {
    World world(2);
    run_ranks(2, [&](uint32_t rank) {
        Channel& channel = *world.channels[rank];
        Numbers room(1);
        Operation waits;  // while it does, long messages are offered
        set(waits, Operation::Kind::receive, 1 - rank, 9, room);
        channel.start(waits);
        if (rank == 0) {
            send(channel, 1, 1, Numbers(length));
            send(channel, 1, 1, {42});
        } else {
            Numbers came(2);
            expect_fault(Fault::mismatch, "rank 0 sent int32[" + std::to_string(length) + "]",
                         [&] { receive(channel, 0, 1, came); });
            receive(channel, 0, 1, came);
            expect(came[0] == 42, "what came after it is whole");
        }
        send(channel, 1 - rank, 9, {1});
        channel.wait(waits, 20s, nullptr);
    });
}

// A sender gives up and uses its array again, before, while or after its receiver reads it: what was sent arrives.
void offers_are_taken_back() {
    World world(2);
    constexpr int rounds = 60;
    std::atomic<int> given_up = 0;
    run_ranks(2, [&](uint32_t rank) {
        Channel& channel = *world.channels[rank];
        std::mt19937 random(rank + 1);
        for (int32_t round = 0; round < rounds; ++round) {
            Numbers never(1), numbers = counting_from(round, 1'500'000);
            if (rank == 1) {
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
                Numbers came(numbers.size());
                receive(channel, 0, round, came, 30s);
                expect(came == numbers, "what was sent has come");
                send(channel, 0, 1000 + round, {1});
                continue;
            }
            Operation waits, sending;
            set(waits, Operation::Kind::receive, 1, 1000 + round, never);
            channel.start(waits);
            set(sending, Operation::Kind::send, 1, round, numbers);
            try {
                channel.run(sending, std::chrono::microseconds(random() % 2000), [] {}, nullptr);
            } catch (const EngineError& error) {
                expect(error.fault == Fault::timeout, "it took too long");
                if (sending.started)
                    ++given_up;
                else
                    send(channel, 1, round, counting_from(round, numbers.size()));
            }
            std::fill(numbers.begin(), numbers.end(), -1);
            channel.wait(waits, 30s, nullptr);
        }
    });
    expect(given_up > 0, "some were given up");
}

void wrong_arguments_and_waits_that_take_too_long() {
    World world(2);
    Channel& channel = *world.channels[0];
    Numbers numbers(3);
    expect_fault(Fault::usage, "destination must be a rank from 0 to 1, not 2", [&] { send(channel, 2, 0, numbers); });
    expect_fault(Fault::usage, "source must be a rank", [&] { receive(channel, -1, 0, numbers); });
    expect_fault(Fault::usage, "tag must be", [&] { send(channel, 1, -1, numbers); });
    expect_fault(Fault::timeout, "recv", [&] { receive(channel, 1, 0, numbers, 50ms); });
    Operation waits;
    set(waits, Operation::Kind::receive, 1, 3, numbers);
    channel.start(waits);
    expect_fault(Fault::timeout, "", [&] { channel.wait(waits, 50ms, nullptr); });
    send(*world.channels[1], 0, 3, {1, 2, 3});
    channel.wait(waits, 20s, nullptr);
    expect(numbers == Numbers({1, 2, 3}), "a message goes on after a wait that took too long");
}

void who_leaves_is_named_and_ends_what_is_under_way() {
    World world(2);
    Numbers numbers(3), others(3);
    Operation waits;
    set(waits, Operation::Kind::receive, 1, 3, numbers);
    world.channels[0]->start(waits);
    world.channels[0]->close();
    expect_fault(Fault::rank_lost, "this communicator was closed",
                 [&] { world.channels[0]->wait(waits, 20s, nullptr); });

    World another(2);
    auto* post = reinterpret_cast<Post*>(another.members[1].arena->at(another.members[1].post));
    post->standing.store(static_cast<uint32_t>(Standing::left));
    expect_fault(Fault::rank_lost, "rank 1 has left", [&] { receive(*another.channels[0], 1, 0, others); });
}

}  // namespace

int main() {
    for (uint32_t ranks : {1, 2, 3}) messages_pass_each_other(ranks);
    tags_are_kept_apart_and_in_order();
    anybody_may_be_received_from();
    for (Reading reading : {Reading::permitted, Reading::refused, Reading::unwanted}) many_at_once(3, 40, reading);
    for (size_t length : {3, 500'000}) what_does_not_fit_is_an_error_of_the_receiver(length);
    offers_are_taken_back();
    wrong_arguments_and_waits_that_take_too_long();
    who_leaves_is_named_and_ends_what_is_under_way();
    if (failures) return 1;
    std::puts("the messages: all is well");
    return 0;
}
