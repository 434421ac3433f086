// A stream of a GPU into which calls are put: many functions of the driver at once, without Python in between.
//
// The extension is not linked with the driver: Python has loaded it, and gives the addresses of its functions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace allfold {

// As in src/allfold/cuda/driver.py.
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

// What one call puts into a stream, in order.
struct Batch {
    struct Row {  // kind, then: word and value; target, source and bytes; kernel, blocks and place; function and
                  // argument
        int64_t kind, first, second, third;
    };
    enum Kind : int64_t { wait, write, copy, copy_in, fold, call };  // as in src/allfold/cuda/batch.py

    std::vector<Row> rows;
    std::vector<uint8_t> arguments;  // of all kernels, one after the other
    uint32_t threads;                // per block of a kernel
    bool waits;                      // for peers, in the stream
};

class Lane {
  public:
    struct Event {
        void* event;      // over when the stream has come to it
        uint32_t serial;  // what the word holds then, at least; 0: nobody writes it
    };
    using Functions = std::array<uint64_t, static_cast<size_t>(DriverFunction::count)>;

    // `word` is four bytes of the GPU's memory that hold 0.
    Lane(const Functions& functions, uint64_t context, uint64_t stream, uint64_t word);

    // Puts a batch into the stream, behind what the stream `before` holds, and returns an event that is over when the
    // batch is. With `holds`, what `before` gets from now on waits for it. `base` is added to all values of the batch,
    // which are numbers of 32 bits that wrap around.
    Event launch(const Batch& batch, uint32_t base, std::optional<uint64_t> before, bool holds);
    void follow(uint64_t before);
    Event mark();
    void hold(uint64_t later, Event event);
    bool is_over(Event event);
    void give_back(Event event);
    // Whether processes have the GPU one after the other. Then streams wait for a batch that waits by the word.
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
    void order(uint64_t before);
    void put(const Batch& batch, uint32_t base);
    size_t put_values(const Batch& batch, size_t from, uint32_t base);
    void copy_in(uint64_t target, uint64_t source, size_t bytes) const;
    Event record(bool by_word);

    const Functions functions_;
    void* const context_;
    void* const stream_;
    const uint64_t word_;
    std::atomic<bool> turns_ = false;
    uint32_t serial_ = 0;       // of the last event; wraps around
    std::mutex launching_;      // batches of two threads are not mixed
    std::mutex mutex_;          // events may be given back by any thread
    std::vector<void*> spare_;  // events that nobody waits for
};

}  // namespace allfold
