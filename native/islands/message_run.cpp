#include "islands/message_run.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/kernels.hpp"

namespace allfold {

using namespace std::chrono_literals;

namespace {

constexpr size_t most_kept = size_t{64} << 20;  // bytes of memory for messages

constexpr size_t soon_sent = size_t{1} << 16;  // bytes: up to here, a send counts as done once it has begun

int64_t nanoseconds_now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

size_t whole_lines(size_t bytes) { return (bytes + line_bytes - 1) / line_bytes * line_bytes; }

// The number of elements in adjacent places.
uint64_t elements_in(const ChunkDivision& division, const ChunkPlace* begin, const ChunkPlace* end) {
    const auto count = static_cast<uint32_t>(end - begin);
    if (begin->space == MessageSpace::work) return count * division.longest();
    return division.first(begin->space, begin->at + count) - division.first(begin->space, begin->at);
}

}  // namespace

MessageMemory::Block MessageMemory::take(size_t bytes) {
    {
        std::lock_guard lock(mutex_);
        auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const Block& one) { return one.bytes >= bytes && one.bytes / 2 <= bytes; });
        if (found != free_.end()) {
            Block block = std::move(*found);
            free_.erase(found);
            kept_ -= block.bytes;
            return block;
        }
    }
    auto* memory = static_cast<char*>(::operator new[](bytes, std::align_val_t{line_bytes}));
    return {std::unique_ptr<char[], Free>(memory), bytes};
}

void MessageMemory::give_back(Block block) {
    if (!block.memory || block.bytes > most_kept) return;
    std::lock_guard lock(mutex_);
    if (kept_ + block.bytes > most_kept) {
        free_.clear();
        kept_ = 0;
    }
    kept_ += block.bytes;
    free_.push_back(std::move(block));
}

PeerLinks::~PeerLinks() {
    // Acquire: as in Operation. What the channel may still use is never freed.
    for (Left& one : left)
        for (auto& operation : one.operations)
            if (!operation->done.load(std::memory_order_acquire)) {
                static_cast<void>(operation.release());
                static_cast<void>(one.block.memory.release());
            }
}

void PeerLinks::trace(bool on) {
    std::lock_guard lock(mutex);
    events.clear();
    is_traced.store(on, std::memory_order_relaxed);  // a call in progress may miss it
}

std::vector<WireEvent> PeerLinks::take_events() {
    std::lock_guard lock(mutex);
    return std::exchange(events, {});
}

void PeerLinks::note(bool sends, int peer, size_t bytes, int64_t begun) {
    if (!is_traced.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(mutex);
    events.push_back({sends, peer, bytes, begun, nanoseconds_now()});
}

void PeerLinks::send_fronts(const char* said, const Waiting& waiting) {
    if (!fronts) return;
    fronts->begin(said, waiting);
    for (int peer : fronts->peers()) send_front(peer);
}

void PeerLinks::send_front(int peer, const char* data, size_t bytes) {
    int64_t begun = nanoseconds_now();
    fronts->send(peer, data, bytes);
    note(true, peer, fronts->bytes_with(bytes), begun);
    if (bytes > fronts->limits().along) note(true, peer, bytes, begun);
}

const char* PeerLinks::receive_front(int peer, size_t bytes, const Waiting& waiting) {
    int64_t begun = nanoseconds_now();
    const char* said = fronts->receive(peer, waiting);
    note(false, peer, fronts->bytes_with(bytes), begun);
    return said;
}

void PeerLinks::settle(const Waiting& waiting) {
    if (fronts) fronts->settle(waiting);
    while (wire->is_draining() && Clock::now() < waiting.deadline) {
        wire->sleep(wire->turn(), Clock::now() + 1ms);
        if (waiting.interrupted) waiting.interrupted();
    }
}

MessageRun::MessageRun(const MessageProgram& program, PeerLinks& links, ChunkDivision division,
                       const MessageArrays& arrays, DType dtype, Op op, uint32_t divisor, uint32_t tag, Waiting waiting,
                       std::vector<Call> calls)
    : program_(program), links_(links), division_(std::move(division)), arrays_(arrays), dtype_(dtype),
      element_(size_of(dtype)), fold_(find_fold(op, dtype)), divisor_(divisor), tag_(tag), waiting_(std::move(waiting)),
      calls_(std::move(calls)) {
    auto need = [](bool good, const char* what) {
        if (!good) throw EngineError(Fault::usage, std::string("a message program cannot run: ") + what);
    };
    need(fold_ != nullptr, "there is no such operation on that type");
    need(!program.even || division_.is_even(), "its chunks must be equally long");
    need(links.local.size() == program.ranks, "it is for another number of ranks");
    auto check = [&](const void* array, uint64_t elements, const Extent& extent, MessageSpace space) {
        if (array)
            need(elements == division_.first(space, extent.end) - division_.first(space, extent.begin),
                 "an array has another length");
    };
    if (program.carries_data) {
        check(arrays_.input, arrays_.input_elements, program.input, MessageSpace::input);
        check(arrays_.output, arrays_.output_elements, program.output, MessageSpace::output);
    }
    const size_t messages = program.messages.size(), slot = division_.longest() * element_;
    flights_.resize(messages);
    rooms_.resize(messages, 0);
    size_t bytes = 0;
    for (uint32_t number = 0; number < messages; ++number) {
        const auto& message = program.messages[number];
        if (message.sends ? message.together : program.places.count(number) != 0) continue;
        rooms_[number] = bytes;
        bytes += whole_lines(elements_of(number) * element_);
    }
    if (!arrays_.work) {
        arrays_.work_bytes = program.work_slots * slot;
        bytes += arrays_.work_bytes;
    }
    need(arrays_.work_bytes >= program.work_slots * slot, "its work slots have too little memory");
    if (bytes) block_ = links.memory.take(bytes);
    if (!arrays_.work) arrays_.work = block_.memory.get() + (bytes - arrays_.work_bytes);
    size_t made = 0;
    for (uint32_t at = 0; at < program.instructions.size(); ++at) {
        if (program.instructions[at].kind != MessageProgram::Kind::collective) continue;
        need(made < calls_.size(), "the collectives of its island are missing");
        auto array = [&](const Rows<ChunkPlace>& rows) {
            return program.carries_data && rows.count(at) ? locate(*rows.begin(at)) : nullptr;
        };
        calls_[made].input = array(program.sources);
        calls_[made].output = array(program.into);
        ++made;
    }
}

std::vector<Call> MessageRun::calls_inside(const MessageProgram& program, const PeerLinks& links,
                                           const ChunkDivision& division, DType dtype, Op op) {
    std::vector<Call> calls;
    for (uint32_t at = 0; at < program.instructions.size(); ++at) {
        const auto& one = program.instructions[at];
        if (one.kind != MessageProgram::Kind::collective) continue;
        const auto& inside = program.inside[one.number];
        if (!links.island || static_cast<uint32_t>(inside.root) >= links.island->size())
            throw EngineError(Fault::usage, "a message program cannot run: it is for another island");
        Call call{};
        call.collective = static_cast<Collective>(inside.collective);
        const CollectiveFacts& facts = facts_of(call.collective);
        call.root = inside.root;
        // An average is a sum here; the fold with the last contribution divides.
        Op own = op == Op::average ? Op::sum : op;
        if (facts.takes_op) {
            call.op = static_cast<uint8_t>(own);
            call.fold = find_fold(own, dtype);
        }
        bool has_array = false;
        auto elements = [&](const Rows<ChunkPlace>& rows) -> uint64_t {
            if (!program.carries_data || rows.count(at) == 0) return 0;
            has_array = true;
            return elements_in(division, rows.begin(at), rows.end(at));
        };
        const uint64_t given = elements(program.sources), taken = elements(program.into), ranks = links.island->size();
        call.dtype = has_array ? dtype : DType::uint8;
        call.elements = facts.brings_slice ? given * ranks : facts.gets_slice ? taken * ranks : taken;
        call.algorithm = "";
        call.timeout = island_forever;
        calls.push_back(std::move(call));
    }
    return calls;
}

void MessageRun::finish() {
    advance(program_.instructions.size());
    links_.memory.give_back(std::move(block_));
    block_ = {};
}

void MessageRun::advance(size_t until) {
    try {
        while (at_ < until) perform(at_++);
    } catch (...) {
        leave();
        throw;
    }
}

void MessageRun::perform(uint32_t at) {
    const auto& one = program_.instructions[at];
    switch (one.kind) {
        case MessageProgram::Kind::post:
        case MessageProgram::Kind::send: return begin_message(one.number);
        case MessageProgram::Kind::await:
        case MessageProgram::Kind::sent: return end_message(one.number);
        case MessageProgram::Kind::fold: return fold(at);
        case MessageProgram::Kind::collective:
            links_.island->run(calls_[called_], nullptr, waiting_.interrupted);
            ++called_;
            return;
    }
}

void MessageRun::along(const char* said) {
    arrived_.resize(program_.messages.size());
    // Leaders exchange headers in every call, also where its program has no message for a peer: they send them before
    // their first wait, and do not wait for those that come without data.
    std::vector<int> untold, unheard;
    if (links_.fronts) {
        links_.fronts->begin(said, waiting_);
        untold = unheard = links_.fronts->peers();
        for (const auto& message : program_.messages)
            std::erase(message.sends ? untold : unheard, static_cast<int>(message.peer));
    }
    auto tell = [&] {
        for (int peer : std::exchange(untold, {})) links_.send_front(peer);
    };
    while (at_ < program_.instructions.size()) {
        if (program_.instructions[at_].kind == MessageProgram::Kind::await) tell();
        perform_along(at_++, said);
    }
    tell();
    for (int peer : unheard) links_.fronts->go_ahead(peer, waiting_);
    links_.memory.give_back(std::move(block_));
    block_ = {};
}

size_t MessageRun::bytes_along(uint32_t message) const {
    return program_.carries_data ? elements_of(message) * element_ : 0;
}

void MessageRun::perform_along(uint32_t at, const char* said) {
    const auto& one = program_.instructions[at];
    if (one.kind == MessageProgram::Kind::fold || one.kind == MessageProgram::Kind::collective) return perform(at);
    if (!links_.fronts) throw EngineError(Fault::usage, "this rank is not a leader, so it exchanges no headers");
    Fronts& fronts = *links_.fronts;
    const auto& message = program_.messages[one.number];
    const auto peer = static_cast<int>(message.peer);
    const size_t bytes = bytes_along(one.number);
    switch (one.kind) {
        case MessageProgram::Kind::post: return fronts.expect(peer, bytes);
        case MessageProgram::Kind::send: {
            const char* data = nullptr;
            if (bytes) data = message.together ? locate(*program_.places.begin(one.number)) : join(one.number);
            if (!message.together && bytes > fronts.limits().along)
                throw EngineError(Fault::usage, "a message program has data in pieces that are too long for a header");
            return links_.send_front(peer, data, bytes);
        }
        case MessageProgram::Kind::await: {
            const char* came = links_.receive_front(peer, bytes, waiting_);
            fronts.check_same(came, said, peer);
            int64_t begun = nanoseconds_now();
            const char* data = fronts.data(came, peer, bytes, waiting_);
            if (bytes > fronts.limits().along) links_.note(false, peer, bytes, begun);
            if (program_.places.count(one.number) == 0)
                arrived_[one.number] = data;
            else if (bytes)
                std::memcpy(locate(*program_.places.begin(one.number)), data, bytes);
            return;
        }
        default: return fronts.sent(waiting_);
    }
}

void MessageRun::fold(uint32_t at) {
    const auto& one = program_.instructions[at];
    const uint64_t elements = division_.length(one.length_of) * one.chunks;
    if (elements == 0) return;
    void* destination = locate(one.destination);
    sources_.clear();
    for (const ChunkPlace* place = program_.sources.begin(at); place != program_.sources.end(at); ++place)
        sources_.push_back(locate(*place));
    if (sources_.empty())
        std::memset(destination, 0, elements * element_);
    else if (sources_.size() == 1)
        std::memmove(destination, sources_[0], elements * element_);
    else
        fold_(sources_.data(), sources_.size(), &destination, 1, elements, one.complete ? divisor_ : 1, nullptr);
}

void MessageRun::begin_message(uint32_t number) {
    const auto& message = program_.messages[number];
    Flight& flight = flights_[number];
    // An empty message has one byte, so that there is something to wait for.
    static char empty;
    size_t bytes = elements_of(number) * element_;
    char* data = &empty;
    if (bytes && message.sends)
        data = message.together ? locate(*program_.places.begin(number)) : join(number);
    else if (bytes)
        data = program_.places.count(number) ? locate(*program_.places.begin(number))
                                             : block_.memory.get() + rooms_[number];
    bytes = std::max<size_t>(bytes, 1);
    int32_t inside = links_.local[message.peer];
    flight.bytes = bytes;
    if (links_.is_traced.load(std::memory_order_relaxed)) flight.begun = nanoseconds_now();
    if (inside < 0) {
        int peer = static_cast<int>(message.peer);
        flight.transfer =
            message.sends ? links_.wire->send(peer, data, bytes, tag_) : links_.wire->receive(peer, data, bytes, tag_);
        if (flight.begun && message.sends && bytes <= soon_sent) {
            links_.note(true, peer, bytes, flight.begun);
            flight.begun = 0;
        }
        return;
    }
    flight.operation = std::make_unique<Operation>();
    Operation& operation = *flight.operation;
    operation.kind = message.sends ? Operation::Kind::send : Operation::Kind::receive;
    operation.peer = inside;
    operation.tag = tag_;
    operation.data = data;
    operation.elements = bytes;
    links_.channel->start(operation);
}

void MessageRun::end_message(uint32_t number) {
    Flight& flight = flights_[number];
    if (flight.transfer) {
        waiting_.await(*links_.wire, *flight.transfer);
        const auto& message = program_.messages[number];
        if (flight.begun) links_.note(message.sends, static_cast<int>(message.peer), flight.bytes, flight.begun);
        links_.wire->release(flight.transfer);
        flight.transfer = nullptr;
        return;
    }
    auto left = std::max<Clock::duration>(waiting_.deadline - Clock::now(), 0s) + spare_time;
    links_.channel->wait(*flight.operation, left, waiting_.interrupted);
    flight.operation.reset();
}

char* MessageRun::locate(const ChunkPlace& place) const {
    auto in = [&](const char* array, const Extent& extent) {
        if (!array) {
            // An empty tensor of torch has no address.
            if (division_.first(place.space, extent.end) == division_.first(place.space, extent.begin))
                return static_cast<char*>(nullptr);
            throw EngineError(Fault::usage, "a message program needs an array that was not passed");
        }
        uint64_t first = division_.first(place.space, place.at) - division_.first(place.space, extent.begin);
        return const_cast<char*>(array) + first * element_;
    };
    switch (place.space) {
        case MessageSpace::input: return in(arrays_.input, program_.input);
        case MessageSpace::output: return in(arrays_.output, program_.output);
        case MessageSpace::work: return arrays_.work + place.at * division_.longest() * element_;
        case MessageSpace::arrived: break;
    }
    uint64_t before = 0;
    const uint32_t* data = program_.lengths.begin(place.at);
    for (uint32_t part = 0; part < place.part; ++part) before += division_.length(data[part]);
    const char* message = arrived_.empty() ? block_.memory.get() + rooms_[place.at] : arrived_[place.at];
    return const_cast<char*>(message) + before * element_;
}

// The parts of a send, copied into one piece of memory.
char* MessageRun::join(uint32_t number) const {
    char *data = block_.memory.get() + rooms_[number], *end = data;
    const ChunkPlace* place = program_.places.begin(number);
    for (const uint32_t* datum = program_.lengths.begin(number); datum != program_.lengths.end(number); ++datum) {
        if (size_t bytes = division_.length(*datum) * element_) {
            std::memcpy(end, locate(*place), bytes);
            end += bytes;
        }
        ++place;
    }
    return data;
}

uint64_t MessageRun::elements_of(uint32_t message) const {
    uint64_t elements = 0;
    for (const uint32_t* datum = program_.lengths.begin(message); datum != program_.lengths.end(message); ++datum)
        elements += division_.length(*datum);
    return elements;
}

void MessageRun::leave() {
    PeerLinks::Left left;
    for (Flight& flight : flights_) {
        if (flight.transfer) links_.wire->release(flight.transfer);
        flight.transfer = nullptr;
        if (flight.operation && !flight.operation->done.load(std::memory_order_acquire))
            left.operations.push_back(std::move(flight.operation));
        flight.operation.reset();
    }
    if (left.operations.empty()) return;
    left.block = std::move(block_);
    std::lock_guard lock(links_.mutex);
    links_.left.push_back(std::move(left));
}

}  // namespace allfold
