// The communicator without Python: programs written by hand, ranks as threads. Exit status 0 if all tests pass, 1
// otherwise.
#include "collectives/communicator.hpp"

#include <numeric>

#include "ranks.hpp"

using namespace allfold;
using namespace allfold::tests;
using namespace std::chrono_literals;

namespace {

// All-reduce in two instructions: every rank copies its array to where all can read it, waits for all, and folds the
// copies in rank order.
Program everybody_reads_everything(uint32_t rank, uint32_t ranks) {
    Program program;
    program.name = "all_reduce/by hand/None/private";
    program.schedule = 17;
    program.rank = rank;
    program.ranks = ranks;
    program.lengths.assign(ranks, 2);
    program.chunks = 1;
    program.work_slots = 1;
    program.inputs.assign(ranks, {0, 0});
    program.outputs.assign(ranks, {0, 1});
    program.sources = {{0, 1, 1 + ranks}, {{rank, Space::output, 0}}};
    for (uint32_t peer = 0; peer < ranks; ++peer) program.sources.items.push_back({peer, Space::work, 0});
    program.destinations = {{0, 1, 2}, {{rank, Space::work, 0}, {rank, Space::output, 0}}};
    program.waits.starts = {0, 0, ranks - 1};
    for (uint32_t peer = 0; peer < ranks; ++peer)
        if (peer != rank) program.waits.items.push_back({peer, 1});
    program.reuse.starts = {0, 0, 0};
    program.length_of = {0, 0};
    program.complete = {0, 1};
    program.announce = {1, 1};
    check_program(program);
    return program;
}

struct World {
    explicit World(uint32_t ranks) {
        collectives = {{.name = "all_reduce", .takes_op = true, .in_place = true, .carries_data = true}};
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            auto arena = std::make_shared<Arena>(16 << 20);
            size_t post = arena->allocate(Communicator::post_bytes());
            members.push_back({arena, post, arena->allocate(Communicator::work_bytes())});
        }
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            communicators.push_back(std::make_unique<Communicator>(rank, members, "the world", false, 1));
            programs.push_back(everybody_reads_everything(rank, ranks));
        }
    }

    void all_reduce(uint32_t rank, std::vector<float>& array, Clock::duration timeout = 20s,
                    const std::function<void()>& interrupted = nullptr) {
        Call call{};
        call.collective = Collective{0};
        call.op = static_cast<uint8_t>(Op::sum);
        call.dtype = DType::float32;
        call.elements = array.size();
        call.output = array.data();
        call.algorithm = "";
        call.private_program = &programs[rank];
        call.fold = find_fold(Op::sum, DType::float32);
        call.timeout = timeout;
        communicators[rank]->run(call, nullptr, interrupted);
    }

    std::vector<Communicator::Member> members;
    std::vector<std::unique_ptr<Communicator>> communicators;
    std::vector<Program> programs;
};

void sums_are_right(uint32_t ranks, int calls) {
    World world(ranks);
    run_ranks(ranks, [&](uint32_t rank) {
        for (int call = 0; call < calls; ++call) {
            // No elements, one that fits a cache line, some that fit a segment, and some that need several.
            size_t lengths[] = {0, 1, 2, 3, 17, 1000, 131072, 300001};
            std::vector<float> array(lengths[call % 8]);
            for (size_t i = 0; i < array.size(); ++i) array[i] = static_cast<float>((i * (rank + 1) + call) % 1000);
            world.all_reduce(rank, array);
            for (size_t i = 0; i < array.size(); ++i) {
                float sum = 0;
                for (uint32_t peer = 0; peer < ranks; ++peer) sum += static_cast<float>((i * (peer + 1) + call) % 1000);
                if (array[i] != sum) return expect(false, "element " + std::to_string(i) + " is the sum");
            }
        }
        expect(world.communicators[rank]->calls() == static_cast<uint64_t>(calls), "calls are counted");
    });
}

void ranks_that_disagree_hear_of_it() {
    World world(3);
    run_ranks(3, [&](uint32_t rank) {
        std::vector<float> array(rank == 1 ? 5 : 4);
        expect_fault(Fault::mismatch, "rank 1 with float32[5]", [&] { world.all_reduce(rank, array); });
        expect_fault(Fault::mismatch, "broken by an earlier error", [&] { world.all_reduce(rank, array); });
    });
}

void a_rank_that_does_not_come_is_named() {
    World world(2);
    std::vector<float> array(4);
    expect_fault(Fault::timeout, "rank 1 did not arrive within 0.1 s", [&] { world.all_reduce(0, array, 100ms); });
}

void a_rank_that_left_is_named() {
    World world(2);
    world.communicators[1]->retire(Standing::left);
    std::vector<float> array(4);
    expect_fault(Fault::rank_lost, "rank 1 has left", [&] { world.all_reduce(0, array); });
    expect_fault(Fault::usage, "this communicator is closed", [&] { world.all_reduce(1, array); });
}

void a_call_can_be_aborted_and_interrupted() {
    World world(2);
    std::vector<float> array(4);
    std::thread other([&] {
        std::this_thread::sleep_for(50ms);
        world.communicators[0]->retire(Standing::aborted);
    });
    expect_fault(Fault::rank_lost, "this communicator was aborted", [&] { world.all_reduce(0, array); });
    other.join();
    world.all_reduce(1, array);  // rank 0 had already done its part
    expect_fault(Fault::rank_lost, "rank 0 gave up", [&] { world.all_reduce(1, array); });

    World another(2);
    bool interrupted = false;
    try {
        another.all_reduce(0, array, 20s, [] { throw std::runtime_error("enough"); });
    } catch (const std::runtime_error& error) {
        interrupted = std::string(error.what()) == "enough";
    }
    expect(interrupted, "an interrupt ends a wait");
}

// Rank 2 waits for rank 1, and is then held up itself, as by a thread that keeps the interpreter's lock. Rank 1 comes:
// from then on everybody waits for rank 2, although it still seems to wait for rank 1.
void a_rank_that_does_not_notice_the_end_of_its_wait_is_named() {
    World world(3);
    std::atomic<bool> is_held_up{false}, is_over{false};
    run_ranks(3, [&](uint32_t rank) {
        std::vector<float> array(300001);  // in several segments: none of them gets further than the slowest
        auto held_up = [&] {
            is_held_up = true;
            while (!is_over) std::this_thread::yield();
        };
        while (rank == 1 && !is_held_up) std::this_thread::yield();
        if (rank == 2) {
            expect_fault(Fault::timeout, "rank 0 gave up", [&] { world.all_reduce(rank, array, 20s, held_up); });
        } else {
            expect_fault(Fault::timeout, "rank 2 arrived but did not do its part",
                         [&] { world.all_reduce(rank, array, rank == 0 ? 500ms : 20s); });
            if (rank == 1) is_over = true;
        }
    });
}

// Threads of one rank take turns; a thread that waits too long throws.
void threads_of_one_rank_take_turns() {
    World world(2);
    constexpr int threads = 3, calls = 200;
    run_ranks(2, [&](uint32_t rank) {
        std::vector<std::thread> own;
        for (int i = 0; i < threads; ++i)
            own.emplace_back([&] {
                for (int call = 0; call < calls; ++call) {
                    std::vector<float> array(100, 1);
                    world.all_reduce(rank, array);
                    expect(array[99] == 2, "calls of several threads do not mix");
                }
            });
        for (auto& thread : own) thread.join();
    });
    std::vector<float> array(4), another(4);
    std::thread waits(
        [&] { expect_fault(Fault::timeout, "rank 1 did not arrive", [&] { world.all_reduce(0, array, 500ms); }); });
    while (!world.communicators[0]->is_in_call()) std::this_thread::yield();
    expect_fault(Fault::timeout, "another call of this rank was still in progress",
                 [&] { world.all_reduce(0, another, 50ms); });
    waits.join();
}

void programs_that_lead_outside_are_refused() {
    auto refused = [](const std::string& words, const std::function<void(Program&)>& spoil) {
        Program program = everybody_reads_everything(0, 2);
        spoil(program);
        expect_fault(Fault::usage, words, [&] { check_program(program); });
    };
    refused("cannot be run", [](Program& p) { p.sources.items[1].rank = 2; });
    refused("cannot be run", [](Program& p) { p.sources.items[1].index = 1; });
    refused("cannot be run", [](Program& p) { p.sources.starts[1] = 99; });
    refused("cannot be run", [](Program& p) { p.destinations.items.pop_back(); });
    refused("cannot be run", [](Program& p) { p.waits.items[0].count = 3; });
    refused("cannot be run", [](Program& p) { p.waits.items[0].rank = 0x7fffffff; });
    refused("cannot be run", [](Program& p) { p.length_of[1] = 1; });
    refused("cannot be run", [](Program& p) { p.outputs[1] = {1, 0}; });
    refused("cannot be run", [](Program& p) { p.work_slots = 1 << 30; });
    refused("cannot be run", [](Program& p) { p.lengths = {2}; });
}

void instructions_are_recorded() {
    World world(2);
    std::vector<Event> events[2];
    run_ranks(2, [&](uint32_t rank) {
        world.communicators[rank]->trace_to(&events[rank], 1s);
        std::vector<float> array(10, 1);
        world.all_reduce(rank, array);
        world.communicators[rank]->trace_to(nullptr, 1s);
        world.all_reduce(rank, array);
    });
    for (auto& of_rank : events) {
        expect(of_rank.size() == 2, "two instructions, of the one call that was traced");
        for (const Event& event : of_rank)
            expect(event.call == 1 && event.start <= event.ready && event.ready <= event.end, "times are in order");
    }
}

}  // namespace

int main() {
    for (uint32_t ranks : {1, 2, 3, 5}) sums_are_right(ranks, 160);
    ranks_that_disagree_hear_of_it();
    a_rank_that_does_not_come_is_named();
    a_rank_that_left_is_named();
    a_call_can_be_aborted_and_interrupted();
    a_rank_that_does_not_notice_the_end_of_its_wait_is_named();
    threads_of_one_rank_take_turns();
    programs_that_lead_outside_are_refused();
    instructions_are_recorded();
    if (failures) return 1;
    std::puts("the communicator: all is well");
    return 0;
}
