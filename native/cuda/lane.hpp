// A stream of a GPU into which calls are put: many functions of the driver at once, without Python in between.
//
// The extension is not linked with the driver: Python loads it, and passes the addresses of its functions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace allfold {

// As in src/allfold/engines/stream/driver.py.
enum class DriverFunction : size_t {
    wait_and_write,
    copy,
    copy_rows,
    launch_kernel,
    call_host,
    create_event,
    destroy_event,
    record_event,
    query_event,
    query_stream,
    await_event,
    is_capturing,
    push_context,
    pop_context,
    exchange_capture_mode,
    count
};

struct DriverError {
    DriverFunction function;
    int status;
};

struct CapturedStream {};

// What one call puts into the streams of a lane, in order.
struct Batch {
    struct Row {  // kind, then: word and value; target, source and bytes; kernel, blocks and place; function and
                  // argument
        int64_t kind, first, second, third;
    };
    // As in src/allfold/engines/stream/batch.py. `meet`: each of the two streams waits for what the other one holds.
    enum Kind : int64_t { wait, write, copy, copy_in, fold, call, meet };
    static constexpr int64_t aside = 8;  // added to the kind of a copy: it goes into the second stream

    std::vector<Row> rows;
    std::vector<uint8_t> arguments;  // of all kernels, one after the other
    uint32_t threads;                // per block of a kernel
    bool waits;                      // for peers, in the stream
};

// Calls go into one stream, whose order is their order. A second one is for copies that run while a call of the first
// one does. A batch that uses it ends with `meet`, so that all its work is done when that of the first stream is.
class Lane {
  public:
    struct Event {
        void* event;      // done when the stream has reached it
        uint32_t serial;  // the least value of the word then; 0: it is not written
    };
    using Functions = std::array<uint64_t, static_cast<size_t>(DriverFunction::count)>;

    // `word` is four bytes of the GPU's memory that hold 0.
    Lane(const Functions& functions, uint64_t context, uint64_t stream, uint64_t aside, uint64_t word);

    // Puts a batch into the stream, after the present work of the stream `before`, and returns an event that is done
    // when the batch is. With `holds`, later work of `before` waits for it. `base` is added to all values of the batch,
    // which are numbers of 32 bits that wrap around.
    Event launch(const Batch& batch, uint32_t base, std::optional<uint64_t> before, bool holds);
    void follow(uint64_t before);
    // Throws if this stream is being captured.
    void check(uint64_t stream) const;
    // True if both streams are empty; then they stay empty until `go_on`, on the same thread. Some functions of the
    // driver (to free memory, to load kernels) return only when all streams are empty, and meanwhile nothing can be put
    // into a stream. If a stream waits for a peer, that takes too long.
    bool stop_if_idle();
    void go_on() { launching_.unlock(); }
    Event mark();
    void hold(uint64_t later, Event event);
    bool is_over(Event event);
    void give_back(Event event);
    // `turns`: processes take turns on the GPU. Then streams wait for the word, not the event, of a batch that waits.
    void set_turns(bool turns) { turns_ = turns; }
    uint64_t stream() const { return reinterpret_cast<uint64_t>(stream_); }

  private:
    class Within;

    template <class... Arguments>
    int raw(DriverFunction function, Arguments... arguments) const;
    template <class... Arguments>
    void call(DriverFunction function, Arguments... arguments) const;

    void* take();
    void await(void* later, Event event) const;
    void order(void* later, void* before);
    void refuse_captured(void* stream) const;
    void put(const Batch& batch, uint32_t base);
    size_t put_values(const Batch& batch, size_t from, uint32_t base);
    void copy_in(uint64_t target, uint64_t source, size_t bytes, void* stream) const;
    Event record(bool by_word);

    const Functions functions_;
    void* const context_;
    void* const stream_;
    void* const aside_;
    const uint64_t word_;
    std::atomic<bool> turns_ = false;
    uint32_t serial_ = 0;       // of the last event; wraps around
    std::mutex launching_;      // so that batches of two threads do not mix
    std::mutex mutex_;          // any thread may give back events
    std::vector<void*> spare_;  // events that are not in use
};

}  // namespace allfold
