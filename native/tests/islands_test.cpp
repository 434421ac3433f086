// Message programs and fronts between threads: results, bytes, mismatches, and waits that end.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "islands/message_run.hpp"
#include "local_wire.hpp"

using namespace allfold;
using namespace std::chrono_literals;

namespace {

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (0)

using Kind = MessageProgram::Kind;
using enum MessageSpace;

// Every rank sends each other rank (or the root) its array of one chunk; who receives folds all of them in rank order.
MessageProgram exchange(uint32_t rank, uint32_t ranks, std::optional<uint32_t> root = {}) {
    MessageProgram program;
    program.rank = rank;
    program.ranks = ranks;
    program.chunks = 1;
    program.carries_data = true;
    program.input = program.output = {0, 1};
    program.sources.starts = program.into.starts = program.lengths.starts = program.places.starts = {0};
    auto add = [&](Kind kind, uint32_t number, std::vector<ChunkPlace> sources = {}) {
        program.instructions.push_back({kind, kind == Kind::fold, number, 0, 1, {output, 0, 0}});
        program.sources.items.insert(program.sources.items.end(), sources.begin(), sources.end());
        program.sources.starts.push_back(static_cast<uint32_t>(program.sources.items.size()));
        program.into.starts.push_back(0);
    };
    auto message = [&](bool sends, uint32_t peer) {
        program.messages.push_back({sends, sends, peer});
        program.lengths.items.push_back(0);
        program.lengths.starts.push_back(static_cast<uint32_t>(program.lengths.items.size()));
        if (sends) program.places.items.push_back({output, 0, 0});
        program.places.starts.push_back(static_cast<uint32_t>(program.places.items.size()));
        return static_cast<uint32_t>(program.messages.size() - 1);
    };
    std::vector<uint32_t> receives, sends;
    for (uint32_t peer = 0; peer < ranks; ++peer)
        if (peer != rank && root.value_or(rank) == rank) add(Kind::post, receives.emplace_back(message(false, peer)));
    for (uint32_t peer = 0; peer < ranks; ++peer)
        if (peer != rank && root.value_or(peer) == peer) add(Kind::send, sends.emplace_back(message(true, peer)));
    for (uint32_t number : receives) add(Kind::await, number);
    for (uint32_t number : sends) add(Kind::sent, number);
    std::vector<ChunkPlace> sources;
    for (uint32_t peer = 0, at = 0; peer < ranks && !receives.empty(); ++peer)
        sources.push_back(peer == rank ? ChunkPlace{output, 0, 0} : ChunkPlace{arrived, receives[at++], 0});
    if (!receives.empty()) add(Kind::fold, 0, sources);
    check_messages(program);
    return program;
}

struct Group {
    explicit Group(uint32_t ranks, std::optional<uint32_t> root = {})
        : wires(LocalWire::group(static_cast<int>(ranks))), links(ranks) {
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            programs.push_back(exchange(rank, ranks, root));
            links[rank].wire = wires[rank].get();
            links[rank].local.assign(ranks, -1);
        }
    }
    template <class Work>
    void each(Work work) {
        std::vector<std::thread> threads;
        for (uint32_t rank = 0; rank < links.size(); ++rank) threads.emplace_back([&, rank] { work(rank); });
        for (auto& thread : threads) thread.join();
    }
    MessageRun run(uint32_t rank, std::vector<int64_t>& data, uint32_t tag, Clock::duration limit) {
        MessageArrays arrays;
        arrays.output = reinterpret_cast<char*>(data.data());
        arrays.output_elements = data.size();
        return MessageRun(programs[rank], links[rank], ChunkDivision(data.size(), 1), arrays, DType::int64, Op::sum, 1,
                          tag, Waiting{Clock::now() + limit, nullptr});
    }

    std::vector<std::shared_ptr<LocalWire>> wires;
    std::vector<PeerLinks> links;
    std::vector<MessageProgram> programs;
};

std::vector<int64_t> own(uint32_t rank, size_t elements) {
    std::vector<int64_t> data(elements);
    for (size_t i = 0; i < elements; ++i) data[i] = static_cast<int64_t>((rank + 1) * (i + 1));
    return data;
}

bool is_sum(const std::vector<int64_t>& data, uint32_t ranks) {
    for (size_t i = 0; i < data.size(); ++i)
        if (data[i] != static_cast<int64_t>((i + 1) * ranks * (ranks + 1) / 2)) return false;
    return true;
}

// Two segments under way at once, of all lengths, nothing included.
void test_results() {
    for (uint32_t ranks : {2u, 3u, 5u}) {
        Group group(ranks);
        group.each([&](uint32_t rank) {
            for (size_t elements : {0, 1, 7, 5000}) {
                auto first = own(rank, elements), second = own(rank, elements + 1);
                MessageRun one = group.run(rank, first, 10, 30s), other = group.run(rank, second, 11, 30s);
                one.start();
                other.start();
                one.finish();
                other.finish();
                CHECK(is_sum(first, ranks) && is_sum(second, ranks));
            }
        });
    }
}

constexpr Fronts::Limits limits{16, 8, 256, 4096, 1, 2};

void lead(Group& group) {
    for (uint32_t rank = 0; rank < group.links.size(); ++rank) {
        std::vector<int> peers;
        for (uint32_t peer = 0; peer < group.links.size(); ++peer)
            if (peer != rank) peers.push_back(static_cast<int>(peer));
        group.links[rank].fronts.emplace(*group.wires[rank], peers, limits);
    }
}

// Small calls with their data in the front, behind it, and with none.
void test_fronts() {
    for (uint32_t ranks : {2u, 4u}) {
        Group group(ranks);
        lead(group);
        group.each([&](uint32_t rank) {
            for (char call = 0; call < 20; ++call) {
                auto data = own(rank, call % 3 == 0 ? 500 : call % 3);
                char said[16] = "the same call";
                said[7] = call;
                group.run(rank, data, 0, 30s).along(said);
                group.links[rank].fronts->refill();
                CHECK(is_sum(data, ranks));
            }
        });
    }
}

// Only the root receives data, but all ranks exchange headers: who has no message for another one hears of its call.
void test_fronts_with_a_root() {
    constexpr uint32_t ranks = 4, root = 2;
    Group group(ranks, root);
    lead(group);
    std::atomic<int> heard = 0;
    auto call = [&](uint32_t rank, char number, size_t elements, char mark) {
        auto data = own(rank, elements);
        char said[16] = "the same call";
        said[6] = mark;
        said[7] = number;
        group.run(rank, data, 0, 30s).along(said);
        group.links[rank].fronts->refill();
        CHECK(rank == root ? is_sum(data, ranks) : data == own(rank, elements));
    };
    group.each([&](uint32_t rank) {
        char number = 0;
        try {
            for (; number < 20; ++number) call(rank, number, number % 3 == 0 ? 500 : number % 3, ' ');
            // Rank 3 makes a different call. The root waits for its data and hears at once, the others in one of the
            // calls that follow.
            for (; number < 40; ++number) call(rank, number, 1, number == 20 && rank == 3 ? 'x' : ' ');
        } catch (const CallsDiffer& differ) {
            CHECK(differ.own[7] == 20 && differ.said[7] == 20);
            CHECK(rank == 3 ? differ.own[6] == 'x' : differ.peer == 3 && differ.said[6] == 'x');
            CHECK(rank == root ? number == 20 : number <= 28);
            ++heard;
            group.wires[rank]->cut();  // as a rank does that fails, so that nobody waits for it
        } catch (const WireLost&) {    // another one had heard before
        }
        CHECK(number < 40);
    });
    CHECK(heard > 0);
}

// Whatever the lengths of their data: every rank hears that the others make another call, and what they say of it.
void test_mismatch() {
    for (size_t elements : {1, 500}) {
        Group group(2);
        lead(group);
        std::atomic<int> heard = 0;
        group.each([&](uint32_t rank) {
            auto data = own(rank, rank ? elements : 1);
            char said[16] = "0 call of rank";
            said[0] = said[15] = static_cast<char>('0' + rank);
            try {
                group.run(rank, data, 0, 30s).along(said);
            } catch (const CallsDiffer& differ) {
                CHECK(differ.peer == static_cast<int>(1 - rank));
                CHECK(differ.said[15] == static_cast<char>('1' - rank));
                ++heard;
            }
            CHECK(data == own(rank, rank ? elements : 1));  // nothing is believed
        });
        CHECK(heard == 2);
    }
}

// A wait for a rank that does not come ends when somebody cuts the wire.
void test_cut() {
    Group group(2);
    std::atomic<bool> lost = false;
    std::thread waits([&] {
        auto data = own(0, 10);
        MessageRun run = group.run(0, data, 10, 30s);
        run.start();
        try {
            run.finish();
        } catch (const WireLost&) {
            lost = true;
        }
    });
    group.wires[0]->cut();
    waits.join();
    CHECK(lost);
}

// A damaged program is refused, whatever is wrong with it.
void test_damage() {
    auto refused = [](auto damage) {
        MessageProgram program = exchange(0, 3);
        damage(program);
        try {
            check_messages(program);
        } catch (const EngineError&) {
            return true;
        }
        return false;
    };
    CHECK(!refused([](MessageProgram&) {}));
    CHECK(refused([](MessageProgram& one) { one.messages[0].peer = 3; }));
    CHECK(refused([](MessageProgram& one) { one.messages[0].peer = 0; }));
    CHECK(refused([](MessageProgram& one) { one.instructions.pop_back(); }));
    CHECK(refused([](MessageProgram& one) { one.instructions[0].number = 9; }));
    CHECK(refused([](MessageProgram& one) { one.instructions.back().destination = {input, 0, 0}; }));
    CHECK(refused([](MessageProgram& one) { one.instructions.back().destination = {work, 0, 0}; }));
    CHECK(refused([](MessageProgram& one) { one.instructions.back().destination = {output, 1, 0}; }));
    CHECK(refused([](MessageProgram& one) { one.instructions.back().length_of = 3; }));
    CHECK(refused([](MessageProgram& one) { one.sources.items.back().part = 1; }));
    CHECK(refused([](MessageProgram& one) { one.sources.items.back().at = 2; }));
    CHECK(refused([](MessageProgram& one) { one.lengths.items[0] = 3; }));
    CHECK(refused([](MessageProgram& one) { one.places.starts.back() = 7; }));
}

}  // namespace

int main() {
    test_results();
    test_fronts();
    test_fronts_with_a_root();
    test_mismatch();
    test_cut();
    test_damage();
    std::puts("ok");
}
