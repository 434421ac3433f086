#include "cuda/lane.hpp"

namespace allfold {

namespace {
constexpr int not_ready = 600;
constexpr unsigned without_timing = 2;
constexpr int relaxed_capture = 2;

struct ValueOperation {  // the driver's CUstreamBatchMemOpParams, for 32 bits
    enum Kind : uint32_t { wait = 1, write = 2 };
    Kind kind;
    uint64_t address, value;
    uint32_t flags;  // 0: a wait lasts until the word is at least the value; a write comes when all before is visible
    uint64_t alias, unused;
};
static_assert(sizeof(ValueOperation) == 48);

struct CopyOfRows {  // the driver's CUDA_MEMCPY2D
    enum Kind : int { in_main_memory = 1, on_device = 2 };
    size_t source_x, source_y;
    Kind source_kind;
    uint64_t source_host, source_device, source_array;
    size_t source_pitch, target_x, target_y;
    Kind target_kind;
    uint64_t target_host, target_device, target_array;
    size_t target_pitch, width, height;
};
}  // namespace

template <class... Arguments>
int Lane::raw(DriverFunction function, Arguments... arguments) const {
    return reinterpret_cast<int (*)(Arguments...)>(functions_[static_cast<size_t>(function)])(arguments...);
}

template <class... Arguments>
void Lane::call(DriverFunction function, Arguments... arguments) const {
    if (int status = raw(function, arguments...)) throw DriverError{function, status};
}

// The driver's functions work in the context that is current on the thread. While a CUDA graph is being captured, some
// of them (the query of an event) would invalidate the capture, even on another thread, unless the thread has declared
// that it does not take part. Nothing here does (a stream that is being captured is rejected).
class Lane::Within {
  public:
    explicit Within(const Lane& lane) : lane_(lane) {
        lane.call(DriverFunction::push_context, lane.context_);
        lane.raw(DriverFunction::exchange_capture_mode, &mode_);
    }
    ~Within() {
        lane_.raw(DriverFunction::exchange_capture_mode, &mode_);
        void* context;
        lane_.raw(DriverFunction::pop_context, &context);
    }
    Within(const Within&) = delete;

  private:
    const Lane& lane_;
    int mode_ = relaxed_capture;  // then the thread's own one
};

Lane::Lane(const Functions& functions, uint64_t context, uint64_t stream, uint64_t aside, uint64_t word)
    : functions_(functions), context_(reinterpret_cast<void*>(context)), stream_(reinterpret_cast<void*>(stream)),
      aside_(reinterpret_cast<void*>(aside)), word_(word) {}

Lane::Event Lane::launch(const Batch& batch, uint32_t base, std::optional<uint64_t> before, bool holds) {
    std::lock_guard lock(launching_);
    Within within(*this);
    if (before) order(stream_, reinterpret_cast<void*>(*before));
    put(batch, base);
    Event event = record(turns_ && batch.waits);
    if (before && holds) await(reinterpret_cast<void*>(*before), event);
    return event;
}

void Lane::follow(uint64_t before) {
    Within within(*this);
    order(stream_, reinterpret_cast<void*>(before));
}

void Lane::check(uint64_t stream) const {
    Within within(*this);
    refuse_captured(reinterpret_cast<void*>(stream));
}

bool Lane::stop_if_idle() {
    std::unique_lock lock(launching_, std::try_to_lock);
    if (!lock) return false;
    Within within(*this);
    for (void* stream : {stream_, aside_}) {
        int status = raw(DriverFunction::query_stream, stream);
        if (status == not_ready) return false;
        if (status) throw DriverError{DriverFunction::query_stream, status};
    }
    lock.release();
    return true;
}

Lane::Event Lane::mark() {
    std::lock_guard lock(launching_);
    Within within(*this);
    return record(turns_);
}

void Lane::hold(uint64_t later, Event event) {
    Within within(*this);
    await(reinterpret_cast<void*>(later), event);
}

bool Lane::is_over(Event event) {
    Within within(*this);
    int status = raw(DriverFunction::query_event, event.event);
    if (status && status != not_ready) throw DriverError{DriverFunction::query_event, status};
    return status == 0;
}

void Lane::give_back(Event event) {
    std::lock_guard lock(mutex_);
    spare_.push_back(event.event);
}

void* Lane::take() {
    {
        std::lock_guard lock(mutex_);
        if (!spare_.empty()) {
            void* event = spare_.back();
            spare_.pop_back();
            return event;
        }
    }
    void* event;
    call(DriverFunction::create_event, &event, without_timing);
    return event;
}

void Lane::refuse_captured(void* stream) const {
    int captured = 0;
    call(DriverFunction::is_capturing, stream, &captured);
    if (captured) throw CapturedStream{};
}

void Lane::order(void* later, void* before) {
    refuse_captured(before);
    void* event = take();
    // A wait is for what was recorded when the wait was requested, so the event can be reused at once.
    try {
        call(DriverFunction::record_event, event, before);
        call(DriverFunction::await_event, later, event, 0U);
    } catch (...) {
        give_back({event, 0});
        throw;
    }
    give_back({event, 0});
}

Lane::Event Lane::record(bool by_word) {
    Event event{take(), 0};
    try {
        if (by_word) {
            event.serial = ++serial_ ? serial_ : ++serial_;
            ValueOperation write{ValueOperation::write, word_, event.serial, 0, 0, 0};
            call(DriverFunction::wait_and_write, stream_, 1U, &write, 0U);
        }
        call(DriverFunction::record_event, event.event, stream_);
    } catch (...) {
        give_back(event);
        throw;
    }
    return event;
}

// While a stream waits for an event, followed by a kernel or a time stamp, its process keeps its time slice on the GPU
// to the end: two milliseconds in which the processes it waits for do not run. While it waits for a word, it yields the
// GPU (H200, driver 570). Where no process has to yield, an event costs less.
void Lane::await(void* later, Event event) const {
    if (!event.serial) return call(DriverFunction::await_event, later, event.event, 0U);
    ValueOperation wait{ValueOperation::wait, word_, event.serial, 0, 0, 0};
    call(DriverFunction::wait_and_write, later, 1U, &wait, 0U);
}

void Lane::put(const Batch& batch, uint32_t base) {
    for (size_t i = 0; i < batch.rows.size();) {
        const Batch::Row& row = batch.rows[i];
        auto first = static_cast<uint64_t>(row.first), second = static_cast<uint64_t>(row.second);
        auto bytes = static_cast<size_t>(row.third);
        switch (row.kind) {
            case Batch::wait:
            case Batch::write: i = put_values(batch, i, base); continue;
            case Batch::copy: call(DriverFunction::copy, first, second, bytes, stream_); break;
            case Batch::copy | Batch::aside: call(DriverFunction::copy, first, second, bytes, aside_); break;
            case Batch::copy_in: copy_in(first, second, bytes, stream_); break;
            case Batch::copy_in | Batch::aside: copy_in(first, second, bytes, aside_); break;
            case Batch::meet:
                order(aside_, stream_);
                order(stream_, aside_);
                break;
            case Batch::fold: {
                void* given[] = {const_cast<uint8_t*>(batch.arguments.data() + row.third)};
                call(DriverFunction::launch_kernel, reinterpret_cast<void*>(first), static_cast<unsigned>(second), 1U,
                     1U, batch.threads, 1U, 1U, 0U, stream_, static_cast<void**>(given), static_cast<void**>(nullptr));
                break;
            }
            default:
                call(DriverFunction::call_host, stream_, reinterpret_cast<void*>(first),
                     reinterpret_cast<void*>(second));
        }
        ++i;
    }
}

// Consecutive waits and writes, in one call. Returns where they end.
size_t Lane::put_values(const Batch& batch, size_t from, uint32_t base) {
    constexpr size_t most = 64;
    ValueOperation operations[most]{};
    size_t count = 0;
    for (; count < most && from + count < batch.rows.size(); ++count) {
        const Batch::Row& row = batch.rows[from + count];
        if (row.kind != Batch::wait && row.kind != Batch::write) break;
        ValueOperation& one = operations[count];
        one.kind = row.kind == Batch::wait ? ValueOperation::wait : ValueOperation::write;
        one.address = static_cast<uint64_t>(row.first);
        one.value = static_cast<uint32_t>(row.second) + base;
    }
    call(DriverFunction::wait_and_write, stream_, static_cast<unsigned>(count), &operations[0], 0U);
    return from + count;
}

// A copy from main memory, as two rows of a table. A plain copy of less than 64 KiB goes through the queue of kernels,
// where a process waits for its turn on the GPU; one with rows goes to a copy engine (H200, driver 570: 12 µs, not
// 550).
void Lane::copy_in(uint64_t target, uint64_t source, size_t bytes, void* stream) const {
    if (bytes < 2) return call(DriverFunction::copy, target, source, bytes, stream);
    const size_t even = bytes / 2 * 2;
    for (size_t start = 0; start <= bytes - even;
         ++start) {  // an odd length twice: from the first byte, and to the last
        CopyOfRows rows{};
        rows.source_kind = CopyOfRows::in_main_memory;
        rows.source_host = source + start;
        rows.target_kind = CopyOfRows::on_device;
        rows.target_device = target + start;
        rows.source_pitch = rows.target_pitch = rows.width = even / 2;
        rows.height = 2;
        call(DriverFunction::copy_rows, &rows, stream);
    }
}

}  // namespace allfold
