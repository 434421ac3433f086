// The basis of the engine, without Python: shared memory that is allocated and freed, and numbers that threads wait
// for. Exit status 0 if all tests pass, 1 otherwise. ThreadSanitizer watches the data that is passed between threads.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ranks.hpp"
#include "shared/arena.hpp"
#include "shared/errors.hpp"
#include "shared/layout.hpp"
#include "shared/wait.hpp"

using namespace allfold;
using namespace allfold::tests;

namespace {

void arena_gives_and_takes_back() {
    Arena arena(1 << 20);
    size_t first = arena.allocate(10), second = arena.allocate(5000), third = arena.allocate(4096);
    expect(second >= first + 10 && third >= second + 5000, "allocations do not overlap");
    expect(arena.in_use() == 4 * 4096, "in_use counts whole pages");
    std::memset(arena.at(second), 1, 5000);
    arena.release(second);
    expect(arena.allocate(8000) == second, "what was given back is given out again");
    expect(arena.at(second)[0] == 0 && arena.at(second)[4999] == 0, "and is zero again");
    arena.release(first);
    arena.release(third);
    arena.release(second);
    expect(arena.in_use() == 0, "everything was given back");
    expect(arena.allocate((1 << 20) - first) == first, "and is one piece again");
    expect(arena.holds(arena.at(0), 1 << 20) && !arena.holds(arena.at(0), (1 << 20) + 1), "holds knows the end");
    expect_fault(Fault::memory, "no room for 4096 bytes", [&] { arena.allocate(1); });
}

const std::atomic<int32_t> nowhere{-1};  // the core of a thread that does not say where it runs

// Two threads pass a plain number back and forth, with the patience to spin, to yield, or to sleep at once. A lost
// wake-up would cost a second each time, and the rounds would take too long.
void numbers_are_handed_over(Patience patience, int rounds) {
    Counter ping{}, pong{};
    uint64_t plain = 0;
    auto asleep = [] { return Clock::duration(std::chrono::seconds(1)); };
    auto began = Clock::now();
    std::thread other([&] {
        Crowd crowd;
        for (int i = 1; i <= rounds; ++i) {
            await(ping.value, ping.sleepers, nowhere, i, patience, crowd, [] {}, asleep);
            expect(plain == uint64_t(2 * i - 1), "what was written before is seen");
            plain = 2 * i;
            publish(pong.value, pong.sleepers, i);
        }
    });
    Crowd crowd;
    for (int i = 1; i <= rounds; ++i) {
        plain = 2 * i - 1;
        publish(ping.value, ping.sleepers, i);
        await(pong.value, pong.sleepers, nowhere, i, patience, crowd, [] {}, asleep);
        expect(plain == uint64_t(2 * i), "what came back is seen");
    }
    other.join();
    expect(Clock::now() - began < std::chrono::seconds(60), "nobody slept through a wake-up");
    expect(ping.sleepers.load() == 0 && pong.sleepers.load() == 0, "nobody is counted as asleep at the end");
}

// However many yields are allowed, a wait comes to notice what may have gone wrong: their time is limited too.
void nobody_yields_for_long() {
    std::atomic<uint64_t> never{0};
    std::atomic<uint32_t> sleepers{0};
    Crowd crowd;
    auto began = Clock::now();
    try {
        await(
            never, sleepers, nowhere, 1, Patience{0, 50'000'000}, crowd, [] {},
            []() -> Clock::duration { throw std::runtime_error("enough"); });
    } catch (const std::runtime_error&) {
        expect(Clock::now() - began < std::chrono::seconds(5), "a wait notices soon that nothing comes");
    }
}

// All threads wait for all others, round after round, with more threads than cores.
void all_meet(uint32_t ranks, int rounds) {
    std::vector<std::unique_ptr<Counter>> counters;
    for (uint32_t i = 0; i < ranks; ++i) counters.push_back(std::make_unique<Counter>());
    std::vector<uint64_t> plain(ranks * 16);
    auto work = [&](uint32_t rank) {
        const Patience patience = Patience::for_ranks(ranks);
        Crowd crowd;
        for (int round = 1; round <= rounds; ++round) {
            plain[rank * 16] = round;
            publish(counters[rank]->value, counters[rank]->sleepers, 2 * round - 1);
            for (uint32_t peer = 0; peer < ranks; ++peer) {
                await(
                    counters[peer]->value, counters[peer]->sleepers, nowhere, 2 * round - 1, patience, crowd, [] {},
                    [] { return Clock::duration(std::chrono::seconds(1)); });
                expect(plain[peer * 16] == uint64_t(round), "all see all");
            }
            publish(counters[rank]->value, counters[rank]->sleepers, 2 * round);
            for (uint32_t peer = 0; peer < ranks; ++peer)
                await(
                    counters[peer]->value, counters[peer]->sleepers, nowhere, 2 * round, patience, crowd, [] {},
                    [] { return Clock::duration(std::chrono::seconds(1)); });
        }
    };
    run_ranks(ranks, work);
}

// One thread writes the records of call after call into the same place while others read: they always get one record,
// never parts of two.
void records_are_never_torn(uint64_t calls) {
    auto made_for = [](uint64_t call) {
        CallRecord record;
        record.signature.elements = 3 * call;
        record.signature.schedule = ~call;
        record.input = static_cast<int64_t>(5 * call);
        record.output = static_cast<int64_t>(7 * call);
        char* algorithm = record.signature.algorithm;
        std::snprintf(algorithm, sizeof record.signature.algorithm, "%030llu", static_cast<unsigned long long>(call));
        record.begun = 11 * call;
        return record;
    };
    auto shared = std::make_unique<SharedRecord>();
    std::atomic<uint64_t> last{0};
    std::atomic<uint64_t> seen{0};
    std::vector<std::thread> readers;
    for (int i = 0; i < 2; ++i)
        readers.emplace_back([&] {
            for (uint64_t call = 0; call < calls; call = last.load(std::memory_order_relaxed)) {
                CallRecord came;
                // The record that is there, or the next one, which is being written.
                for (uint64_t wanted : {call, call + 1}) {
                    if (wanted == 0 || !shared->load(wanted, came)) continue;
                    CallRecord record = made_for(wanted);
                    expect(std::memcmp(&came, &record, sizeof record) == 0, "a record comes out as it went in");
                    seen.fetch_add(1, std::memory_order_relaxed);
                }
            }
        });
    for (uint64_t call = 1; call <= calls; ++call) {
        shared->store(call, made_for(call));
        last.store(call, std::memory_order_relaxed);
        if (call % 64 == 0) let_others_run();
    }
    for (auto& reader : readers) reader.join();
    CallRecord came;
    expect(shared->load(calls, came) && !shared->load(calls - 1, came) && !shared->load(calls + 1, came),
           "the last one is there");
    expect(seen.load() > 0, "somebody saw a record");
}

// A forked child has the parent's objects but not its shared memory: it may destroy them, but not use them.
void a_forked_child_is_not_the_rank() {
    auto arena = std::make_unique<Arena>(1 << 20);
    size_t lent = arena->allocate(4096), kept = arena->allocate(4096);
    arena->lend_to_children(lent);
    std::memset(arena->at(lent), 5, 4096);
    int descriptor = arena->descriptor();
    pid_t child = fork();
    if (child == 0) {
        bool good = !arena->is_here() && arena->at(lent)[17] == 5 && fcntl(descriptor, F_GETFD) == -1;
        try {
            arena->allocate(1);
            good = false;
        } catch (const EngineError& error) {
            good &= error.fault == Fault::usage;
        }
        arena->release(kept);     // has no effect
        arena->at(lent)[17] = 6;  // it is shared memory
        arena.reset();
        _exit(good ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child sees what was lent to it and nothing else");
    expect(arena->is_here() && arena->at(lent)[17] == 6 && arena->in_use() == 8192, "the parent goes on as before");
}

}  // namespace

int main() {
    arena_gives_and_takes_back();
    numbers_are_handed_over({4000, 20}, 2000);
    numbers_are_handed_over({0, 20}, 2000);
    numbers_are_handed_over({0, 0}, 2000);
    nobody_yields_for_long();
    all_meet(7, 200);
    records_are_never_torn(200000);
    a_forked_child_is_not_the_rank();
    if (failures) return 1;
    std::puts("the engine's footing: all is well");
    return 0;
}
