// What calls on GPUs need besides the engine: the ledger, between threads, and lanes, on a driver that is made of
// counters.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/lane.hpp"
#include "cuda/ledger.hpp"

using namespace allfold;

#define EXPECT(condition)                                                                 \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                 \
        }                                                                                 \
    } while (0)

namespace {

constexpr uint32_t ranks = 3;

struct Rows {
    std::unique_ptr<Ledger::Sheet> of[ranks];
    Rows() {
        for (auto& one : of) one = std::make_unique<Ledger::Sheet>();
    }
    Ledger ledger(uint32_t rank) {
        std::vector<Ledger::Sheet*> sheets;
        for (auto& one : of) sheets.push_back(one.get());
        return Ledger(rank, std::move(sheets));
    }
};

// Ranks make calls without waiting for each other, up to a few hundred apart, and compare all the while.
void calls_that_are_the_same_agree() {
    constexpr uint64_t calls = 20000;
    Rows rows;
    std::vector<std::thread> threads;
    std::atomic<uint64_t> made[ranks]{};
    for (uint32_t rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            Ledger ledger = rows.ledger(rank);
            for (uint64_t call = 1; call <= calls; ++call) {
                for (auto& other : made)
                    while (call > other.load() + 300) std::this_thread::yield();
                EXPECT(ledger.announce({call, call * 2, 3, 4, 5, 6}) == call);
                made[rank].store(call);
                EXPECT(ledger.compare() != Ledger::State::differing);
            }
            while (ledger.compare() == Ledger::State::waiting) std::this_thread::yield();
            EXPECT(ledger.compare() == Ledger::State::agreed && ledger.agreed() == calls);
        });
    for (auto& thread : threads) thread.join();
}

void calls_that_differ_are_found_by_all() {
    Rows rows;
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            Ledger ledger = rows.ledger(rank);
            ledger.announce({1, 100, 0, 0, 0, 0});
            ledger.announce({1, rank == 2 ? 101U : 100U, 0, 0, 0, 0});
            Ledger::State state;
            while ((state = ledger.compare()) == Ledger::State::waiting) std::this_thread::yield();
            EXPECT(state == Ledger::State::differing && ledger.agreed() == 1);
            auto next = ledger.next();
            EXPECT(next[0].first == Ledger::Seen::it && next[2].first == Ledger::Seen::it && next[0].second[1] == 100 &&
                   next[2].second[1] == 101);
        });
    for (auto& thread : threads) thread.join();
}

void a_rank_that_has_not_come_is_known() {
    Rows rows;
    Ledger first = rows.ledger(0), second = rows.ledger(1);
    first.announce({1, 1, 1, 1, 1, 1});
    second.announce({1, 1, 1, 1, 1, 1});
    EXPECT(first.compare() == Ledger::State::waiting);
    auto next = first.next();
    EXPECT(next[0].first == Ledger::Seen::it && next[1].first == Ledger::Seen::it &&
           next[2].first == Ledger::Seen::nothing);
}

void two_ranks_that_differ_are_found_before_the_third_comes() {
    Rows rows;
    Ledger first = rows.ledger(0), second = rows.ledger(1);
    first.announce({1, 1});
    second.announce({1, 2});
    EXPECT(first.compare() == Ledger::State::differing && second.compare() == Ledger::State::differing);
}

// A rank gives up and publishes progress that is not real; whoever sees the progress sees that the rank gave up.
void progress_of_a_rank_that_gave_up_is_not_believed() {
    for (int trial = 0; trial < 2000; ++trial) {
        Rows rows;
        Ledger first = rows.ledger(0), second = rows.ledger(1);
        std::atomic<uint32_t> progress{0};
        std::thread gives_up([&] {
            first.give_up(4);
            progress.store(1, std::memory_order_relaxed);
        });
        while (!progress.load(std::memory_order_relaxed)) std::this_thread::yield();
        EXPECT(second.uncovered(5) == 0U && !second.uncovered(4) && !first.uncovered(5));
        gives_up.join();
    }
}

// A driver ------------------------------------------------------------------------------------------------------------

int refusing = -1, captured = 0, events = 0, contexts = 0, operations = 0, copies = 0, kernels = 0, host_calls = 0,
    awaited = 0;
bool is_over = true;
std::vector<void*> copied_in, waiting;  // streams

int status_of(DriverFunction function) { return refusing == static_cast<int>(function) ? 7 : 0; }

int wait_and_write(void*, unsigned count, void*, unsigned) {
    operations += static_cast<int>(count);
    return status_of(DriverFunction::wait_and_write);
}
int copy(uint64_t, uint64_t, size_t, void* stream) {
    copied_in.push_back(stream);
    return ++copies, status_of(DriverFunction::copy);
}
int copy_rows(const void*, void* stream) { return copy(0, 0, 0, stream), status_of(DriverFunction::copy_rows); }
int launch_kernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void** given,
                  void**) {
    EXPECT(std::memcmp(given[0], "second", 6) == 0);
    return ++kernels, status_of(DriverFunction::launch_kernel);
}
int call_host(void*, void*, void*) { return ++host_calls, status_of(DriverFunction::call_host); }
int create_event(void** event, unsigned) {
    if (int status = status_of(DriverFunction::create_event)) return status;
    *event = reinterpret_cast<void*>(static_cast<intptr_t>(++events));
    return 0;
}
int destroy_event(void*) { return 0; }
int record_event(void*, void*) { return status_of(DriverFunction::record_event); }
int query_event(void*) { return refusing == static_cast<int>(DriverFunction::query_event) ? 7 : is_over ? 0 : 600; }
int query_stream(void*) { return query_event(nullptr); }
int await_event(void* stream, void*, unsigned) {
    waiting.push_back(stream);
    return ++awaited, status_of(DriverFunction::await_event);
}
int is_capturing(void*, int* answer) {
    *answer = captured;
    return status_of(DriverFunction::is_capturing);
}
int push_context(void*) {
    int status = status_of(DriverFunction::push_context);
    contexts += !status;
    return status;
}
int pop_context(void** context) {
    *context = nullptr;
    --contexts;
    return 0;
}

int exchange_capture_mode(int* mode) {
    static int now = 0;
    std::swap(now, *mode);
    return 0;
}

template <class Function>
uint64_t address(Function* function) {
    return reinterpret_cast<uint64_t>(function);
}

Lane::Functions driver() {
    return {address(wait_and_write), address(copy),         address(copy_rows),
            address(launch_kernel),  address(call_host),    address(create_event),
            address(destroy_event),  address(record_event), address(query_event),
            address(query_stream),   address(await_event),  address(is_capturing),
            address(push_context),   address(pop_context),  address(exchange_capture_mode)};
}

Batch every_kind() {
    Batch batch{};
    batch.rows = {{Batch::wait, 64, 1, 0},   {Batch::write, 128, 2, 0}, {Batch::copy, 1, 2, 100},
                  {Batch::copy_in, 1, 2, 5}, {Batch::fold, 9, 1, 8},    {Batch::call, 3, 4, 0}};
    const char arguments[] = "first...second..";
    batch.arguments.assign(arguments, arguments + sizeof arguments);
    batch.threads = 256;
    return batch;
}

void a_batch_goes_into_the_stream() {
    Lane lane(driver(), 1, 2, 4, 3);
    Lane::Event event = lane.launch(every_kind(), 0, 5, true);
    EXPECT(operations == 2 && copies == 3 && kernels == 1 && host_calls == 1 && contexts == 0);  // an odd copy is two
    EXPECT(lane.is_over(event));
    is_over = false;
    EXPECT(!lane.is_over(event));
    is_over = true;
    lane.give_back(event);
    for (int times = 0; times < 100; ++times) lane.give_back(lane.launch(every_kind(), 0, 5, true));
    EXPECT(events <= 2);  // they are used again
}

void copies_aside_go_into_the_second_stream() {
    Lane lane(driver(), 1, 2, 4, 3);
    Batch batch = every_kind();
    batch.rows = {{Batch::meet, 0, 0, 0},
                  {Batch::copy | Batch::aside, 1, 2, 100},
                  {Batch::copy, 1, 2, 100},
                  {Batch::copy_in | Batch::aside, 1, 2, 4},
                  {Batch::meet, 0, 0, 0}};
    copied_in.clear();
    waiting.clear();
    lane.give_back(lane.launch(batch, 0, 5, true));
    auto stream = [](intptr_t number) { return reinterpret_cast<void*>(number); };
    EXPECT((copied_in == std::vector{stream(4), stream(2), stream(4)}));
    // Behind the stream before, then each behind the other, twice; at last the stream before behind the call.
    EXPECT((waiting == std::vector{stream(2), stream(4), stream(2), stream(4), stream(2), stream(5)}));
}

void a_stream_that_holds_nothing_gets_nothing_until_it_may() {
    Lane lane(driver(), 1, 2, 4, 3);
    is_over = false;
    EXPECT(!lane.stop_if_idle());
    is_over = true;
    EXPECT(lane.stop_if_idle() && contexts == 0);
    std::atomic<bool> launched = false;
    std::thread other([&] {
        lane.give_back(lane.launch(every_kind(), 0, 5, true));
        launched = true;
    });
    EXPECT(!launched);
    lane.go_on();
    other.join();
    EXPECT(launched && lane.stop_if_idle());
    lane.go_on();
}

// Where processes take turns, streams wait for what waits for peers by the word: one more write here, one more wait
// there.
void where_processes_take_turns_streams_wait_for_a_word() {
    Lane lane(driver(), 1, 2, 4, 3);
    for (bool turns : {false, true})
        for (bool waits : {false, true}) {
            lane.set_turns(turns);
            Batch batch = every_kind();
            batch.waits = waits;
            operations = awaited = 0;
            Lane::Event event = lane.launch(batch, 0, 5, true);
            const bool by_word = turns && waits;
            EXPECT((event.serial != 0) == by_word && operations == (by_word ? 4 : 2) && awaited == (by_word ? 1 : 2));
            lane.hold(6, event);
            EXPECT(operations == (by_word ? 5 : 2) && awaited == (by_word ? 1 : 3));
            lane.give_back(event);
        }
    lane.set_turns(true);
    EXPECT(lane.mark().serial == 2);
}

void what_the_driver_refuses_is_said_and_nothing_is_lost() {
    Lane lane(driver(), 1, 2, 4, 3);
    lane.give_back(lane.launch(every_kind(), 0, 5, true));
    const int before = events;
    for (refusing = 0; refusing < static_cast<int>(DriverFunction::count); ++refusing) {
        auto function = static_cast<DriverFunction>(refusing);
        bool never = function == DriverFunction::pop_context || function == DriverFunction::exchange_capture_mode ||
                     function == DriverFunction::destroy_event || function == DriverFunction::query_event ||
                     function == DriverFunction::create_event || function == DriverFunction::query_stream;
        bool refused = false;
        try {
            lane.give_back(lane.launch(every_kind(), 0, 5, true));
        } catch (const DriverError& error) {
            refused = true;
            EXPECT(error.function == function && error.status == 7);
        }
        EXPECT(refused != never && contexts == 0);
    }
    refusing = static_cast<int>(DriverFunction::query_event);
    bool refused = false;
    try {
        lane.is_over({});
    } catch (const DriverError&) {
        refused = true;
    }
    refusing = -1;
    EXPECT(refused);
    lane.give_back(lane.launch(every_kind(), 0, 5, true));
    EXPECT(events <= before + 1);  // an event whose stream never got to wait for it may stay behind
    captured = 1;
    bool is_captured = false;
    try {
        lane.launch(every_kind(), 0, 5, false);
    } catch (const CapturedStream&) {
        is_captured = true;
    }
    captured = 0;
    EXPECT(is_captured && contexts == 0);
}

}  // namespace

int main() {
    calls_that_are_the_same_agree();
    calls_that_differ_are_found_by_all();
    a_rank_that_has_not_come_is_known();
    two_ranks_that_differ_are_found_before_the_third_comes();
    progress_of_a_rank_that_gave_up_is_not_believed();
    a_batch_goes_into_the_stream();
    copies_aside_go_into_the_second_stream();
    a_stream_that_holds_nothing_gets_nothing_until_it_may();
    where_processes_take_turns_streams_wait_for_a_word();
    what_the_driver_refuses_is_said_and_nothing_is_lost();
    std::puts("cuda: good");
}
