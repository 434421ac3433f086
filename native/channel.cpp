#include "channel.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "peers.hpp"

namespace allfold {

using namespace std::chrono_literals;

namespace {

constexpr auto nap = 20ms;               // the longest sleep before looking whether the peer is still there
constexpr auto helper_pause = 500us;     // how long the helper leaves an operation to whoever is about to wait for it
constexpr uint32_t helper_rounds = 100;  // pauses without work before the helper sleeps until it is called
constexpr auto helper_looks = 200ms;     // how often it looks whether the peers are still there
constexpr uint64_t unit = sizeof(MessageHeader);
constexpr size_t page = 4096;

uint64_t whole_units(uint64_t bytes) { return (bytes + unit - 1) / unit * unit; }
size_t whole_pages(size_t bytes) { return (bytes + page - 1) / page * page; }

// A megabyte for all rings together, as long as each has a page; more than 256 KiB for one makes nothing faster.
uint64_t ring_bytes_for(uint32_t ranks) {
    return std::bit_floor(std::clamp<uint64_t>((uint64_t{1} << 20) / ranks, 4 << 10, 256 << 10));
}

// An inbox: the bell, the ends of all rings, and from the next page on the rings.
size_t rings_offset(uint32_t ranks) { return whole_pages(sizeof(Bell) + ranks * sizeof(Ring)); }

// Tell a rank that bytes or room have come. The fence orders the store of head or tail, just made, before the look at
// `sleepers`; a sleeper does the opposite (counts itself, fence, looks at heads and tails), so one of the two sees the
// other: see publish() in wait.hpp. Release on `rung`: a sleeper that reads the new number sees the head or tail as well.
void ring(Bell& bell) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (bell.sleepers.load(std::memory_order_relaxed) == 0) return;
    bell.rung.fetch_add(1, std::memory_order_release);
    wake_all(bell.rung);
}

bool matches(const Operation& receive, uint32_t source, int32_t tag) {
    return (receive.peer == any_source || receive.peer == source) && (receive.tag == any_tag || receive.tag == tag);
}

bool sends(const Operation& operation) { return operation.kind == Operation::Kind::send; }

std::string name_of(const Operation& operation) {
    return std::string(operation.background ? "i" : "") + (sends(operation) ? "send" : "recv");
}

std::string what(DType dtype, uint64_t elements) {
    return std::string(name_of(dtype)) + "[" + std::to_string(elements) + "]";
}

std::string rank_named(uint64_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

struct Channel::Inbound {
    uint32_t source = 0;
    Ring* ends = nullptr;
    const char* bytes = nullptr;
    uint64_t taken = 0;
    // The message that is arriving: into a receive's array, or a store; or into neither, when it was refused.
    bool arriving = false;
    MessageHeader header;
    uint64_t total = 0, got = 0;
    Operation* into = nullptr;
    Stored* stored = nullptr;
};

struct Channel::Stored {
    uint32_t source;
    MessageHeader header;
    std::unique_ptr<char[]> bytes;
    Inbound* from;  // while it is still arriving
};

struct Channel::Outbound {
    Ring* ends = nullptr;
    char* bytes = nullptr;
    Bell* bell = nullptr;
    uint64_t head = 0, tail = 0;    // tail as last seen: the receiver's line is only read when room seems to be short
    std::deque<Operation*> queue{};
    bool cut = false;  // ended in the middle of a message: nothing can follow
};

Channel::Channel(uint32_t rank, std::vector<Member> members, std::string label)
    : rank_(rank), label_(std::move(label)), members_(std::move(members)),
      patience_(Patience::for_ranks(static_cast<uint32_t>(members_.size()))),
      ring_bytes_(ring_bytes_for(static_cast<uint32_t>(members_.size()))),
      piece_bytes_(std::clamp<uint64_t>(ring_bytes_ / 16, 1 << 10, 16 << 10)) {
    auto ranks = static_cast<uint32_t>(members_.size());
    inbound_.resize(ranks);
    outbound_.resize(ranks);
    auto ends = [](const Member& member, uint32_t from) {
        return reinterpret_cast<Ring*>(member.arena->at(member.inbox + sizeof(Bell))) + from;
    };
    auto bytes = [&](const Member& member, uint32_t from) {
        return member.arena->at(member.inbox + rings_offset(ranks)) + from * ring_bytes_;
    };
    for (uint32_t peer = 0; peer < ranks; ++peer) {
        const Member &own = members_[rank_], &other = members_[peer];
        posts_.push_back(reinterpret_cast<Post*>(other.arena->at(other.post)));
        bells_.push_back(reinterpret_cast<Bell*>(other.arena->at(other.inbox)));
        inbound_[peer].source = peer;
        inbound_[peer].ends = ends(own, peer);
        inbound_[peer].bytes = bytes(own, peer);
        outbound_[peer].ends = ends(other, rank_);
        outbound_[peer].bytes = bytes(other, rank_);
        outbound_[peer].bell = bells_[peer];
    }
}

Channel::~Channel() { close(); }

size_t Channel::inbox_bytes(uint32_t ranks) { return rings_offset(ranks) + ranks * ring_bytes_for(ranks); }

Message Channel::run(Operation& operation, Clock::duration timeout, const Interrupted& interrupted) {
    {
        std::lock_guard lock(mutex_);
        check(operation);
        post(operation);
        if (!operation.done.load(std::memory_order_relaxed)) {
            progress();
            // Counted before anybody else can touch the operation, so that whoever finishes it knows to ring for us.
            drivers_.fetch_add(1, std::memory_order_relaxed);
        } else if (!operation.error) [[likely]] {
            return operation.message;
        } else {
            throw *operation.error;
        }
    }
    try {
        if (const auto error = drive(operation, timeout, interrupted)) {
            std::lock_guard lock(mutex_);
            progress();  // what came before the peer went, or just now, counts
            if (!operation.done.load(std::memory_order_relaxed)) throw *error;
        }
    } catch (...) {
        std::lock_guard lock(mutex_);
        if (!operation.done.load(std::memory_order_relaxed)) cancel(operation);
        throw;
    }
    if (operation.error) throw *operation.error;
    return operation.message;
}

void Channel::start(Operation& operation) {
    std::lock_guard lock(mutex_);
    operation.background = true;
    check(operation);
    ++background_;
    try {
        post(operation);
    } catch (...) {
        --background_;
        throw;
    }
    if (operation.done.load(std::memory_order_relaxed)) return;
    progress();
    if (background_ > 0) call_helper();
}

Message Channel::wait(Operation& operation, Clock::duration timeout, const Interrupted& interrupted) {
    if (!operation.done.load(std::memory_order_acquire)) {
        {
            // Under the mutex, so that whoever finishes the operation from now on knows to ring for us.
            std::lock_guard lock(mutex_);
            drivers_.fetch_add(1, std::memory_order_relaxed);
        }
        if (const auto error = drive(operation, timeout, interrupted)) {
            std::lock_guard lock(mutex_);
            progress();
            if (!operation.done.load(std::memory_order_relaxed)) {
                if (error->fault == Fault::timeout) throw *error;  // it goes on
                cancel(operation);
                operation.error.emplace(*error);
                finish(operation);
            }
        }
    }
    if (operation.error) throw *operation.error;
    return operation.message;
}

bool Channel::done(Operation& operation) {
    if (operation.done.load(std::memory_order_acquire)) return true;
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock && !closed_) progress();  // if somebody else has the lock, somebody else does that
    return operation.done.load(std::memory_order_acquire);
}

void Channel::close() {
    {
        std::lock_guard lock(mutex_);
        if (closed_) return;
        auto end = [this](Operation& operation) {
            operation.error.emplace(Fault::rank_lost, name_of(operation) + ": this communicator was closed" + where());
            finish(operation);
        };
        for (Operation* operation : posted_) end(*operation);
        for (Inbound& in : inbound_)
            if (in.into) end(*in.into);
        for (Outbound& out : outbound_) {
            for (Operation* operation : out.queue) end(*operation);
            out.queue.clear();
        }
        posted_.clear();
        stored_.clear();
        rest_.clear();
        inbound_.clear();
        queued_ = 0;
        closed_ = true;
    }
    helper_called_.notify_all();
    ring(*bells_[rank_]);
    if (helper_.joinable()) helper_.join();
}

// Everything from here to `drive` is done under the mutex ---------------------------------------------------------------

void Channel::check(const Operation& operation) const {
    auto standing = static_cast<Standing>(posts_[rank_]->standing.load(std::memory_order_relaxed));
    auto refuse = [&](const std::string& why) { throw EngineError(Fault::usage, name_of(operation) + ": " + why); };
    if (closed_ || standing == Standing::left) refuse("this communicator is closed" + where());
    if (standing != Standing::open) refuse("this communicator is broken by an earlier error; make a new one" + where());
    auto ranks = static_cast<int64_t>(members_.size());
    bool receives = !sends(operation);
    if ((operation.peer < 0 || operation.peer >= ranks) && !(receives && operation.peer == any_source))
        refuse(std::string(receives ? "source" : "destination") + " must be a rank from 0 to " + std::to_string(ranks - 1) +
               (receives ? " or None, not " : ", not ") + std::to_string(operation.peer) + where());
    if ((operation.tag < 0 || operation.tag > highest_tag) && !(receives && operation.tag == any_tag))
        refuse("tag must be from 0 to " + std::to_string(highest_tag) + (receives ? " or ANY_TAG, not " : ", not ") +
               std::to_string(operation.tag));
    if (receives || operation.peer == rank_) return;
    // Bytes for a rank that will never take them must not look as if they had been sent. (That a process has died shows
    // only when its ring is full: to ask the system before every message would cost more than the message.)
    auto peer = static_cast<uint32_t>(operation.peer);
    if (outbound_[peer].cut || posts_[peer]->standing.load(std::memory_order_relaxed) != static_cast<uint32_t>(Standing::open))
        if (auto error = find_loss(operation, look_around(&operation))) throw *error;
}

void Channel::post(Operation& operation) { sends(operation) ? post_send(operation) : post_receive(operation); }

void Channel::post_send(Operation& operation) {
    Outbound& out = outbound_[static_cast<size_t>(operation.peer)];
    if (operation.peer != rank_) {
        if (!out.cut && out.queue.empty() && write(out, operation)) return finish(operation);
        out.queue.push_back(&operation);
        ++queued_;
        return;
    }
    // To oneself: an arrival that is there at once.
    Inbound& in = inbound_[rank_];
    MessageHeader header{operation.elements, static_cast<int32_t>(operation.tag), static_cast<uint8_t>(operation.dtype)};
    settle(in, header, operation.data, operation.bytes());
    finish_arrival(in);
    finish(operation);
}

void Channel::post_receive(Operation& operation) {
    auto found = std::find_if(stored_.begin(), stored_.end(), [&](const Stored& stored) {
        return matches(operation, stored.source, stored.header.tag);
    });
    if (found == stored_.end()) {
        posted_.push_back(&operation);
        return;
    }
    Stored stored = std::move(*found);
    stored_.erase(found);
    if (stored.from) stored.from->stored = nullptr;
    if (!accept(operation, stored.source, stored.header)) return;
    uint64_t got = stored.from ? stored.from->got : operation.message.elements * size_of(operation.dtype);
    if (got) std::memcpy(operation.data, stored.bytes.get(), got);
    if (stored.from) stored.from->into = &operation;  // the rest comes straight into the array
    else finish(operation);
}

bool Channel::progress() {
    if (closed_) return false;
    bool moved = false;
    try {
        for (Inbound& in : inbound_)
            if (in.source != rank_ && drain(in.source)) moved = true;
    } catch (const std::bad_alloc&) {
        // No room for a message that nobody asked for: it stays in the ring, and its sender waits.
    }
    if (queued_)
        for (Outbound& out : outbound_)
            if (!out.queue.empty() && push(out)) moved = true;
    return moved;
}

bool Channel::drain(uint32_t source) {
    Inbound& in = inbound_[source];
    // Acquire: pairs with the sender's release, so that the bytes are there to be read.
    const uint64_t head = in.ends->head.load(std::memory_order_acquire);
    if (head == in.taken) [[likely]] return false;
    uint64_t shown = in.taken;
    auto show = [&] {
        // Release: the sender may overwrite the bytes once it has seen this, and not before they were read.
        in.ends->tail.store(in.taken, std::memory_order_release);
        shown = in.taken;
        ring(*bells_[source]);
    };
    while (in.taken != head) {
        uint64_t place = in.taken & (ring_bytes_ - 1);
        if (!in.arriving) {
            MessageHeader header;
            std::memcpy(&header, in.bytes + place, sizeof header);
            settle(in, header, nullptr, 0);
            in.taken += unit;
        } else {
            // Pieces end where the ring ends at the latest, so that none is in two parts.
            uint64_t piece = std::min({head - in.taken, whole_units(in.total - in.got), piece_bytes_ - place % piece_bytes_});
            uint64_t bytes = std::min(piece, in.total - in.got);
            char* target = in.into ? in.into->data : in.stored ? in.stored->bytes.get() : nullptr;
            if (target) std::memcpy(target + in.got, in.bytes + place, bytes);
            in.got += bytes;
            in.taken += piece;
        }
        if (in.got == in.total) finish_arrival(in);
        if (in.taken - shown >= piece_bytes_) show();
    }
    if (shown != in.taken) show();
    return true;
}

bool Channel::push(Outbound& out) {
    if (out.cut) return false;
    uint64_t before = out.head;
    while (!out.queue.empty() && write(out, *out.queue.front())) {
        Operation& operation = *out.queue.front();
        out.queue.pop_front();
        --queued_;
        finish(operation);
    }
    return out.head != before;
}

// Put as much of the message into the ring as there is room for; true when that was all of it.
bool Channel::write(Outbound& out, Operation& operation) {
    const uint64_t total = operation.bytes();
    uint64_t shown = out.head;
    auto show = [&] {
        // Release: the bytes are visible to whoever reads this.
        out.ends->head.store(out.head, std::memory_order_release);
        shown = out.head;
        ring(*out.bell);
    };
    while (!operation.started || operation.moved < total) {
        uint64_t left = whole_units(total - operation.moved) + (operation.started ? 0 : unit);
        uint64_t room = ring_bytes_ - (out.head - out.tail);
        if (room < std::min(left, piece_bytes_)) {
            // Acquire: pairs with the receiver's release; it has read what we are about to overwrite.
            out.tail = out.ends->tail.load(std::memory_order_acquire);
            room = ring_bytes_ - (out.head - out.tail);
        }
        if (room == 0) break;
        uint64_t place = out.head & (ring_bytes_ - 1);
        if (!operation.started) {
            MessageHeader header{operation.elements, static_cast<int32_t>(operation.tag), static_cast<uint8_t>(operation.dtype)};
            std::memcpy(out.bytes + place, &header, sizeof header);
            operation.started = true;
            out.head += unit;
        } else {
            uint64_t piece = std::min({left, room, piece_bytes_ - place % piece_bytes_});
            uint64_t bytes = std::min(piece, total - operation.moved);
            std::memcpy(out.bytes + place, operation.data + operation.moved, bytes);
            operation.moved += bytes;
            out.head += piece;
        }
        if (out.head - shown >= piece_bytes_) show();
    }
    if (shown != out.head) show();
    return operation.started && operation.moved == total;
}

// Say where an arriving message goes, of which `length` bytes are there already: into the oldest receive that asks for it,
// or else into a store. Nothing has changed if there is no memory for that.
void Channel::settle(Inbound& in, const MessageHeader& header, const char* prefix, uint64_t length) {
    uint64_t total = header.elements * size_of(static_cast<DType>(header.dtype));
    auto found = std::find_if(posted_.begin(), posted_.end(),
                              [&](Operation* receive) { return matches(*receive, in.source, header.tag); });
    Operation* into = nullptr;
    Stored* stored = nullptr;
    if (found == posted_.end()) {
        std::unique_ptr<char[]> bytes(new char[total]);
        // A message that was on its way to a receive which gave up is older than all that is stored from that rank.
        bool older = in.arriving;
        auto place = stored_.insert(older ? stored_.begin() : stored_.end(), {in.source, header, std::move(bytes), &in});
        stored = &*place;
    } else {
        into = *found;
        posted_.erase(found);
        if (!accept(*into, in.source, header)) into = nullptr;
    }
    char* target = into ? into->data : stored ? stored->bytes.get() : nullptr;
    if (length && target) std::memcpy(target, prefix, length);
    in.arriving = true;
    in.header = header;
    in.total = total;
    in.got = length;
    in.into = into;
    in.stored = stored;
}

void Channel::finish_arrival(Inbound& in) {
    if (in.into) finish(*in.into);
    if (in.stored) in.stored->from = nullptr;
    in.into = nullptr;
    in.stored = nullptr;
    in.arriving = false;
}

// Whether a message may go into the array of a receive; if not, the receive ends with an error, and the message is lost.
bool Channel::accept(Operation& operation, uint32_t source, const MessageHeader& header) {
    operation.message = {source, header.tag, header.elements};
    auto dtype = static_cast<DType>(header.dtype);
    if (dtype == operation.dtype && header.elements <= operation.elements) return true;
    operation.error.emplace(Fault::mismatch, name_of(operation) + ": " + rank_named(source) + " sent " +
                                                 what(dtype, header.elements) + " with tag " + std::to_string(header.tag) +
                                                 ", " + rank_named(rank_) + " has room for " +
                                                 what(operation.dtype, operation.elements) + where());
    finish(operation);
    return false;
}

void Channel::finish(Operation& operation) {
    if (operation.background) --background_;
    if (operation.copy) {
        rest_.remove_if([&](const auto& rest) { return rest.get() == &operation; });
        return;
    }
    operation.done.store(true, std::memory_order_release);
    // Whoever waits for it may be asleep while another thread has driven it to its end.
    if (drivers_.load(std::memory_order_relaxed) != 0) ring(*bells_[rank_]);
}

// Take back an operation that is not done.
void Channel::cancel(Operation& operation) {
    if (sends(operation)) {
        Outbound& out = outbound_[static_cast<size_t>(operation.peer)];
        auto found = std::find(out.queue.begin(), out.queue.end(), &operation);
        if (found == out.queue.end()) return;
        if (!operation.started) {
            out.queue.erase(found);
            --queued_;
        } else {
            adopt_rest(out, operation);
        }
        return;
    }
    auto found = std::find(posted_.begin(), posted_.end(), &operation);
    if (found != posted_.end()) {
        posted_.erase(found);
        return;
    }
    for (Inbound& in : inbound_)
        if (in.into == &operation) {
            in.into = nullptr;  // without memory for what has come, the message is lost
            settle(in, in.header, operation.data, in.got);
        }
}

// A message of which a part is in the ring cannot be taken back, or the next header would be mistaken for its bytes. Unless
// its receiver has gone, the rest goes on from a copy. Where there is no memory for one, that way is closed for good.
void Channel::adopt_rest(Outbound& out, Operation& operation) {
    std::unique_ptr<char[]> copy(new (std::nothrow) char[operation.bytes()]);
    if (!copy || look_around(&operation)[static_cast<size_t>(operation.peer)] != State::present) {
        out.cut = true;
        out.queue.pop_front();
        --queued_;
        return;
    }
    auto rest = std::make_unique<Operation>();
    rest->kind = operation.kind;
    rest->dtype = operation.dtype;
    rest->peer = operation.peer;
    rest->tag = operation.tag;
    rest->elements = operation.elements;
    rest->started = true;
    rest->moved = operation.moved;
    rest->copy = std::move(copy);
    rest->data = rest->copy.get();
    std::memcpy(rest->data + rest->moved, operation.data + rest->moved, operation.bytes() - rest->moved);
    rest->background = true;
    out.queue.front() = rest.get();
    rest_.push_back(std::move(rest));
    ++background_;
    call_helper();
}

// Waiting, and what can go wrong meanwhile --------------------------------------------------------------------------------

// Make progress until the operation is done; or say why it will not be. The caller has counted itself among the drivers.
std::optional<EngineError> Channel::drive(Operation& operation, Clock::duration timeout, const Interrupted& interrupted) {
    struct Driving {
        std::atomic<uint32_t>& drivers;
        ~Driving() { drivers.fetch_sub(1, std::memory_order_relaxed); }
    } driving{drivers_};
    Clock::time_point deadline{};  // set when waiting first takes long: most messages never look at a clock
    uint32_t idle = 0, busy = 0;
    while (!operation.done.load(std::memory_order_acquire)) {
        bool moved = false;
        {
            // If somebody else has the lock, somebody else makes progress.
            std::unique_lock lock(mutex_, std::try_to_lock);
            if (lock) moved = progress();
        }
        if (moved) {
            idle = 0;
            if (++busy % 256 != 0) continue;  // messages for others may come without end
        } else if (idle < patience_.looks) {
            ++idle;
            relax();
            continue;
        } else if (idle < patience_.looks + patience_.yields) {
            ++idle;
            let_others_run();
            continue;
        }
        auto time = Clock::now();
        Clock::duration at_most = 1ms;
        if (deadline == Clock::time_point{}) {
            deadline = time + timeout;
        } else {
            if (interrupted) {
                // It may have to wait for the interpreter; meanwhile the helper is in charge.
                drivers_.fetch_sub(1, std::memory_order_relaxed);
                struct Again {
                    std::atomic<uint32_t>& drivers;
                    ~Again() { drivers.fetch_add(1, std::memory_order_relaxed); }
                } again{drivers_};
                interrupted();
            }
            if (auto error = find_loss(operation, look_around(&operation))) return error;
            if (time >= deadline) {
                std::lock_guard lock(mutex_);
                return timed_out(operation, timeout);
            }
            at_most = nap;
        }
        if (!moved) doze(&operation, std::min<Clock::duration>(at_most, deadline - time));
    }
    return std::nullopt;
}

// Sleep until the bell is rung. The number is read before the last look, so a bell that is rung after it ends the sleep.
void Channel::doze(const Operation* operation, Clock::duration at_most) {
    Bell& bell = *bells_[rank_];
    bell.sleepers.fetch_add(1, std::memory_order_relaxed);
    uint64_t seen = bell.rung.load(std::memory_order_acquire);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see ring()
    bool moved;
    {
        std::lock_guard lock(mutex_);
        moved = progress() || closed_ || (operation && operation->done.load(std::memory_order_relaxed));
    }
    if (!moved) sleep_on(bell.rung, seen, at_most);
    bell.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Channel::call_helper() {
    if (helper_asleep_) helper_called_.notify_one();
    if (helper_.joinable()) return;
    try {
        helper_ = std::thread([this] { help(); });
    } catch (const std::system_error&) {
        // No thread to be had: what is under way goes on whenever a call waits, as it would in most libraries.
    }
}

// The helper looks every now and then whether there is something that nobody drives, rather than being called for every
// operation: most are waited for at once, and to wake a thread costs more than a message.
void Channel::help() {
    // Signals are for the threads of the program.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    uint32_t idle = 0;
    while (!closed_) {
        if (background_ == 0 && ++idle > helper_rounds) {
            helper_asleep_ = true;
            helper_called_.wait(lock, [this] { return closed_ || background_ > 0; });
            helper_asleep_ = false;
            idle = 0;
        }
        helper_called_.wait_for(lock, helper_pause, [this] { return closed_; });
        if (background_ > 0) {
            idle = 0;
            help_while_needed(lock);
        }
    }
}

void Channel::help_while_needed(std::unique_lock<std::mutex>& lock) {
    uint32_t idle = 0;
    auto looked = Clock::now();
    while (!closed_ && background_ > 0 && drivers_.load(std::memory_order_relaxed) == 0) {
        bool moved = progress();
        lock.unlock();
        // Not by looking: the rank has other things to do, and this thread should not be in their way.
        if (moved) idle = 0;
        if (!moved && ++idle < patience_.yields) {
            let_others_run();
        } else if (!moved) {
            doze(nullptr, nap);
            if (auto time = Clock::now(); time - looked >= helper_looks) {
                looked = time;
                auto states = look_around(nullptr);
                lock.lock();
                end_lost(states);
                continue;
            }
        }
        lock.lock();
    }
}

// End what waits in the background for a rank that has gone.
void Channel::end_lost(const std::vector<State>& states) {
    auto lost = [&] {
        std::vector<Operation*> found;
        auto consider = [&](Operation* operation) {
            if (operation && operation->background && find_loss(*operation, states)) found.push_back(operation);
        };
        for (Operation* operation : posted_) consider(operation);
        for (Inbound& in : inbound_) consider(in.into);
        for (Outbound& out : outbound_)
            for (Operation* operation : out.queue) consider(operation);
        return found;
    };
    if (closed_ || lost().empty()) return;
    progress();  // what came before the peer went counts
    // One at a time: taking one back can move others.
    for (auto found = lost(); !found.empty(); found = lost()) {
        Operation& operation = *found.front();
        operation.error.emplace(*find_loss(operation, states));
        if (operation.copy) {
            Outbound& out = outbound_[static_cast<size_t>(operation.peer)];
            out.cut = true;
            out.queue.pop_front();
            --queued_;
        } else {
            cancel(operation);
        }
        finish(operation);
    }
}

// How the peers are that the operation depends on; of all of them, if there is none in particular.
std::vector<Channel::State> Channel::look_around(const Operation* operation) const {
    std::vector<State> states(members_.size(), State::present);
    for (uint32_t peer = 0; peer < states.size(); ++peer) {
        // Acquire: what the peer wrote before it left is there to be seen.
        auto standing = static_cast<Standing>(posts_[peer]->standing.load(std::memory_order_acquire));
        bool concerned = !operation || operation->peer == any_source || operation->peer == peer;
        if (standing == Standing::left) states[peer] = State::left;
        else if (standing != Standing::open) states[peer] = State::gave_up;
        else if (concerned && life_of(posts_[peer]->process.load(std::memory_order_relaxed)) == Life::dead)
            states[peer] = State::gone;
    }
    return states;
}

std::optional<EngineError> Channel::find_loss(const Operation& operation, const std::vector<State>& states) const {
    const std::string name = name_of(operation) + ": ";
    if (states[rank_] != State::present)
        return EngineError(Fault::rank_lost, name + "this communicator was " +
                                                 (states[rank_] == State::left ? "closed" : "aborted") + where());
    bool alone = states.size() > 1;
    for (uint32_t peer = 0; peer < states.size(); ++peer) {
        if (peer == rank_) continue;
        alone = alone && states[peer] != State::present;
        if (states[peer] == State::gave_up)
            return EngineError(Fault::rank_lost, name + rank_named(peer) + " gave up" + where());
        // From any rank: one that died may be the one that the message should have come from. One that left has said
        // all that it had to say.
        if (states[peer] == State::gone && (operation.peer == peer || operation.peer == any_source))
            return EngineError(Fault::rank_lost, name + rank_named(peer) + " (process " +
                                                     std::to_string(posts_[peer]->process.load(std::memory_order_relaxed)) +
                                                     ") is gone" + where());
        if (states[peer] == State::left && operation.peer == peer)
            return EngineError(Fault::rank_lost,
                               name + rank_named(peer) + " has left: it closed its communicator" + where());
    }
    if (alone && operation.peer == any_source)
        return EngineError(Fault::rank_lost, name + "every other rank has left" + where());
    return std::nullopt;
}

EngineError Channel::timed_out(const Operation& operation, Clock::duration timeout) const {
    char within[48];
    std::snprintf(within, sizeof within, " within %g s", std::chrono::duration<double>(timeout).count());
    std::string peer = operation.peer == any_source ? "any rank" : rank_named(static_cast<uint64_t>(operation.peer));
    std::string tag = operation.tag == any_tag ? " with any tag" : " with tag " + std::to_string(operation.tag);
    std::string text = name_of(operation) + ": ";
    auto part = [](uint64_t some, uint64_t all) { return std::to_string(some) + " of " + std::to_string(all) + " bytes"; };
    if (sends(operation)) {
        bool begun = operation.started;
        text += peer + " took " + (begun ? "only " + part(operation.moved, operation.bytes()) + " of " : "nothing of ") +
                what(operation.dtype, operation.elements) + tag + within;
        if (operation.background) text += "; it goes on";
        else text += begun ? "; the rest follows as soon as it does" : "; it was not sent";
        return EngineError(Fault::timeout, text + where());
    }
    auto arriving = std::find_if(inbound_.begin(), inbound_.end(), [&](const Inbound& in) { return in.into == &operation; });
    if (arriving != inbound_.end())
        text += "only " + part(arriving->got, arriving->total) + " came from " + rank_named(arriving->source) + tag + within;
    else text += "nothing came from " + peer + tag + within;
    // Most often the message is there, with another tag or from another rank.
    size_t named = 0;
    for (const Stored& stored : stored_) {
        if (named++ == 3) break;
        text += (named == 1 ? "; what did come: " : ", ") + what(static_cast<DType>(stored.header.dtype), stored.header.elements) +
                " from " + rank_named(stored.source) + " with tag " + std::to_string(stored.header.tag);
    }
    if (stored_.size() > 3) text += " and " + std::to_string(stored_.size() - 3) + " more";
    return EngineError(Fault::timeout, text + where());
}

}  // namespace allfold
