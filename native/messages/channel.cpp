#include "messages/channel.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "collectives/fetch.hpp"
#include "messages/channel_parts.hpp"

namespace allfold {

Channel::Channel(uint32_t rank, std::vector<Member> members, std::string label, bool fetches,
                 std::shared_ptr<FirstError> first_error)
    : rank_(rank), label_(std::move(label)), members_(std::move(members)), blame_(rank, members_),
      first_error_(std::move(first_error)), patience_(Patience::for_ranks(static_cast<uint32_t>(members_.size()))),
      ring_bytes_(ring_bytes_for(static_cast<uint32_t>(members_.size()))), fetches_(fetches),
      piece_bytes_(std::clamp<uint64_t>(ring_bytes_ / 16, 1 << 10, 16 << 10)) {
    auto ranks = static_cast<uint32_t>(members_.size());
    inbound_.resize(ranks);
    outbound_.resize(ranks);
    auto ends = [](const Member& member, uint32_t from) {
        return reinterpret_cast<Ring*>(member.arena->at(member.inbox + sizeof(Counter))) + from;
    };
    auto bytes = [&](const Member& member, uint32_t from) {
        return member.arena->at(member.inbox + rings_offset(ranks)) + from * ring_bytes_;
    };
    for (uint32_t peer = 0; peer < ranks; ++peer) {
        const Member &own = members_[rank_], &other = members_[peer];
        posts_.push_back(reinterpret_cast<Post*>(other.arena->at(other.post)));
        bells_.push_back(reinterpret_cast<Counter*>(other.arena->at(other.inbox)));
        inbound_[peer].source = peer;
        inbound_[peer].ends = ends(own, peer);
        inbound_[peer].bytes = bytes(own, peer);
        outbound_[peer].ends = ends(other, rank_);
        outbound_[peer].bytes = bytes(other, rank_);
        outbound_[peer].bell = bells_[peer];
    }
}

Channel::~Channel() { close(); }

// Enough for any smaller number of ranks too, whose rings may take more together: shrink() creates the inbox before it
// is known how many ranks are left. Pages that are never touched take no memory.
size_t Channel::inbox_bytes(uint32_t ranks) {
    return rings_offset(ranks) + std::max(all_rings_bytes, ranks * least_ring_bytes);
}

Message Channel::run(Operation& operation, Clock::duration timeout, const BeforeBlocking& before_blocking,
                     const Interrupted& interrupted) {
    {
        std::lock_guard lock(mutex_);
        check(operation, before_blocking);
        post(operation);
        if (!operation.done.load(std::memory_order_relaxed)) {
            progress();
            // Counted before another thread can touch the operation, so that the thread that finishes it knows to ring
            // the bell.
            drivers_.fetch_add(1, std::memory_order_relaxed);
        } else if (!operation.error) [[likely]] {
            return operation.message;
        } else {
            throw *operation.error;
        }
    }
    try {
        before_blocking();
        if (const auto error = drive(operation, timeout, interrupted)) {
            std::lock_guard lock(mutex_);
            progress();  // what arrived before the peer left, or just now, counts
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

void Channel::start(Operation& operation, const BeforeBlocking& before_blocking) {
    std::lock_guard lock(mutex_);
    operation.background = true;
    check(operation, before_blocking);
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
            // Under the mutex, so that a thread that finishes the operation from now on knows to ring the bell.
            std::lock_guard lock(mutex_);
            drivers_.fetch_add(1, std::memory_order_relaxed);
        }
        if (const auto error = drive(operation, timeout, interrupted)) {
            std::lock_guard lock(mutex_);
            progress();
            if (!operation.done.load(std::memory_order_relaxed)) {
                if (error->fault == Fault::timeout) throw *error;  // the operation continues
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
    if (lock && !closed_) progress();  // if another thread has the lock, that thread makes progress
    return operation.done.load(std::memory_order_acquire);
}

std::optional<Message> Channel::probe(int64_t source, int64_t tag, uint8_t context) {
    Operation wanted;
    wanted.kind = Operation::Kind::probe;
    wanted.peer = source;
    wanted.tag = tag;
    wanted.context = context;
    std::lock_guard lock(mutex_);
    check(wanted, [] {});
    progress();
    auto found = std::find_if(stored_.begin(), stored_.end(),
                              [&](const Stored& stored) { return matches(wanted, stored.source, stored.header); });
    if (found == stored_.end()) return std::nullopt;
    return Message{found->source, found->header.tag, found->header.elements};
}

bool Channel::withdraw(Operation& operation) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    progress();
    if (operation.done.load(std::memory_order_relaxed)) return false;
    if (sends(operation) ? operation.started : std::find(posted_.begin(), posted_.end(), &operation) == posted_.end())
        return false;
    cancel(operation);
    operation.withdrawn = true;
    finish(operation);
    return true;
}

void Channel::close() {
    {
        std::lock_guard lock(mutex_);
        if (closed_) return;
        auto end = [this](Operation& operation) {
            operation.error.emplace(Fault::rank_lost,
                                    joined({name_of(operation), ": this communicator was closed", where()}));
            finish(operation);
        };
        for (Operation* operation : posted_) end(*operation);
        for (Inbound& in : inbound_)
            if (in.into) end(*in.into);
        for (Outbound& out : outbound_) {
            for (Operation* operation : out.queue) {
                if (operation->offered) revoke(out, *operation);
                end(*operation);
            }
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
    ring_bell(*bells_[rank_]);
    if (helper_.joinable()) helper_.join();
}

// Everything from here on is done under the mutex
// ----------------------------------------------------------------------

void Channel::check(const Operation& operation, const BeforeBlocking& before_blocking) const {
    auto standing = static_cast<Standing>(posts_[rank_]->standing.load(std::memory_order_relaxed));
    auto refuse = [&](const std::string& why) {
        throw EngineError(Fault::usage, joined({name_of(operation), ": ", why}));
    };
    if (closed_ || standing == Standing::left) refuse("this communicator is closed" + where());
    if (standing != Standing::open) {
        before_blocking();
        first_error_->say_again(name_of(operation), standing == Standing::mismatch ? 1s : 0s);
    }
    if (standing != Standing::open)
        if (auto error = find_loss(operation, check_peers(&operation))) throw *error;
    auto ranks = static_cast<int64_t>(members_.size());
    bool receives = !sends(operation);
    if ((operation.peer < 0 || operation.peer >= ranks) && !(receives && operation.peer == any_source))
        refuse(joined({receives ? "source" : "destination", " must be a rank from 0 to ", ranks - 1,
                       receives ? " or None, not " : ", not ", operation.peer, where()}));
    if ((operation.tag < 0 || operation.tag > highest_tag) && !(receives && operation.tag == any_tag))
        refuse(
            joined({"tag must be from 0 to ", highest_tag, receives ? " or ANY_TAG, not " : ", not ", operation.tag}));
    if (receives || operation.peer == rank_) return;
    // Bytes for a rank that will never receive them must not count as sent. (A dead process is noticed only when its
    // ring is full: asking the system before every message would cost more than the message.)
    auto peer = static_cast<uint32_t>(operation.peer);
    if (outbound_[peer].cut ||
        posts_[peer]->standing.load(std::memory_order_relaxed) != static_cast<uint32_t>(Standing::open))
        if (auto error = find_loss(operation, check_peers(&operation))) throw *error;
}

void Channel::post(Operation& operation) {
    sends(operation) ? post_send(operation) : post_receive(operation);
    if (!owed_.empty()) send_owed();
}

void Channel::post_send(Operation& operation) {
    Outbound& out = outbound_[static_cast<size_t>(operation.peer)];
    if (operation.peer != rank_) {
        if (!out.cut && out.queue.empty() && write(out, operation)) return finish(operation);
        out.queue.push_back(&operation);
        ++queued_;
        return;
    }
    // A message to this rank itself: it arrives at once.
    Inbound& in = inbound_[rank_];
    settle(in, header_of(operation), operation.data, operation.bytes());
    finish_arrival(in);
    finish(operation);
}

void Channel::post_receive(Operation& operation) {
    auto found = std::find_if(stored_.begin(), stored_.end(),
                              [&](const Stored& stored) { return matches(operation, stored.source, stored.header); });
    if (found == stored_.end()) {
        posted_.push_back(&operation);
        return;
    }
    if (probes(operation)) {
        operation.message = {found->source, found->header.tag, found->header.elements};
        return finish(operation);
    }
    Stored stored = std::move(*found);
    stored_.erase(found);
    if (stored.from) stored.from->stored = nullptr;
    acknowledge(stored.source, stored.from ? stored.from->header : stored.header);
    if (takes(operation)) operation.own = std::move(stored.bytes);
    if (!accept(operation, stored.source, stored.header)) return;
    uint64_t got = stored.from ? stored.from->got : operation.message.elements * size_of(operation.dtype);
    if (got && !takes(operation)) std::memcpy(operation.data, stored.bytes.get(), got);
    if (stored.from)
        stored.from->into = &operation;  // the rest goes directly into the array
    else
        finish(operation);
}

bool Channel::progress() {
    if (closed_) return false;
    bool moved = false;
    try {
        for (Inbound& in : inbound_)
            if (in.source != rank_ && drain(in.source)) moved = true;
    } catch (const std::bad_alloc&) {
        // No room for a message without a matching receive: it stays in the ring, and its sender waits.
    }
    if (queued_)
        for (Outbound& out : outbound_)
            if (!out.queue.empty() && push(out)) moved = true;
    if (!owed_.empty()) send_owed();
    return moved;
}

bool Channel::drain(uint32_t source) {
    Inbound& in = inbound_[source];
    // Acquire: pairs with the sender's release, so that the bytes are visible.
    const uint64_t head = in.ends->head.load(std::memory_order_acquire);
    if (in.offered) return fetch_more(in);
    if (head == in.taken) [[likely]]
        return false;
    uint64_t shown = in.taken;
    auto show = [&] {
        // Release: the sender may overwrite the bytes once it has seen this, and not before they were read.
        in.ends->tail.store(in.taken, std::memory_order_release);
        shown = in.taken;
        ring_bell(*bells_[source]);
    };
    while (in.taken != head) {
        uint64_t place = in.taken & (ring_bytes_ - 1);
        if (!in.arriving) {
            MessageHeader header;
            std::memcpy(&header, in.bytes + place, sizeof header);
            settle(in, header, nullptr, 0);
            in.taken += unit;
            in.offered = header.offered != 0;
            if (in.offered) break;  // nothing follows until it has been read, or until it streams
        } else {
            // A piece never crosses the end of the ring, so that it is contiguous.
            uint64_t piece =
                std::min({head - in.taken, whole_units(in.total - in.got), piece_bytes_ - place % piece_bytes_});
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
    if (in.offered) fetch_more(in);
    return true;
}

// Read some of the message that is offered; false if nothing changed.
bool Channel::fetch_more(Inbound& in) {
    std::atomic<uint64_t>& offer = in.ends->offer;
    // Release: the sender may use its array again once it has seen that this has been read, and not before. Acquire:
    // an answer to its `revoked`.
    auto change = [&](Offer from, Offer to) {
        auto expected = static_cast<uint64_t>(from);
        return offer.compare_exchange_strong(expected, static_cast<uint64_t>(to), std::memory_order_acq_rel);
    };
    auto stream_instead = [&] {
        in.offered = false;
        in.got = 0;
    };
    if (!change(Offer::offered, Offer::reading)) {
        stream_instead();
        return true;
    }
    char* target = in.into ? in.into->data : in.stored ? in.stored->bytes.get() : nullptr;
    uint64_t bytes = target ? std::min(in.total - in.got, fetched_at_once) : in.total - in.got;
    bool good = can_fetch(in);
    if (good && target) {
        const Arena& from = *members_[in.source].arena;
        uint64_t address = in.ends->address.load(std::memory_order_relaxed) + in.got;
        // If the sender has died, its process ID may belong to another process.
        good = fetch(from, address, target + in.got, bytes) == 0 && life_of(from) != Life::dead;
    }
    if (good) in.got += bytes;
    bool complete = good && in.got == in.total;
    if (!change(Offer::reading, complete ? Offer::taken : good ? Offer::offered : Offer::refused) || !good)
        stream_instead();
    if (complete && in.offered) {
        in.offered = false;
        finish_arrival(in);
    }
    if (!in.offered) ring_bell(*bells_[in.source]);
    return true;
}

// Tested once for every sender, as in Communicator::can_fetch.
bool Channel::can_fetch(Inbound& in) {
    if (!fetches_) return false;
    if (in.fetching == Inbound::Fetching::untried) {
        const Post& post = *posts_[in.source];
        uint64_t seen = 0, word = post.probe_word.load(std::memory_order_acquire);
        uint64_t address = post.probe_address.load(std::memory_order_relaxed);
        bool works = word != 0 && fetch(*members_[in.source].arena, address, &seen, sizeof seen) == 0 && seen == word;
        in.fetching = works ? Inbound::Fetching::works : Inbound::Fetching::fails;
    }
    return in.fetching == Inbound::Fetching::works;
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

// Put as much of the message into the ring as there is room for; true if that was all of it.
bool Channel::write(Outbound& out, Operation& operation) {
    if (operation.offered && !was_taken(out, operation)) return false;
    const uint64_t total = operation.bytes();
    uint64_t shown = out.head;
    auto show = [&] {
        // Release: the bytes are visible to a reader of this.
        out.ends->head.store(out.head, std::memory_order_release);
        shown = out.head;
        ring_bell(*out.bell);
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
            MessageHeader header = header_of(operation);
            operation.offered = is_worth_offering(operation);
            if (operation.offered) {
                header.offered = 1;
                // Relaxed: the header is published after them.
                out.ends->address.store(reinterpret_cast<uint64_t>(operation.data), std::memory_order_relaxed);
                out.ends->offer.store(static_cast<uint64_t>(Offer::offered), std::memory_order_relaxed);
            }
            std::memcpy(out.bytes + place, &header, sizeof header);
            operation.started = true;
            out.head += unit;
            if (operation.offered) break;
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

// Where messages go both ways at the same time, both ranks have work, and a copy saved is time saved: 512 KiB each way
// between two ranks take 0.65 of the time. One message alone is faster through the ring: then both of its ends copy.
// Among eight ranks on 16 cores, reading took up to 1.15 times as long.
bool Channel::is_worth_offering(const Operation& operation) const {
    return fetches_ && members_.size() <= most_that_offer && operation.bytes() > ring_bytes_ && is_receiving() &&
           is_fetchable(operation.data, operation.bytes());
}

// True if a receive has been posted, or takes a message that is arriving.
bool Channel::is_receiving() const {
    return !posted_.empty() || std::any_of(inbound_.begin(), inbound_.end(),
                                           [](const Inbound& in) { return in.arriving && in.into != nullptr; });
}

// Whether its receiver is done with the offer of a message: if it was refused, all of it has yet to be sent.
bool Channel::was_taken(Outbound& out, Operation& operation) {
    // Acquire: pairs with the receiver's release; it no longer reads the array.
    auto offer = static_cast<Offer>(out.ends->offer.load(std::memory_order_acquire));
    if (offer == Offer::offered || offer == Offer::reading) return false;
    operation.offered = false;
    operation.moved = offer == Offer::taken ? operation.bytes() : 0;
    return true;
}

// Take an offer back. From now on the receiver does not read the array; what it has read of it does not count, unless
// it has read everything.
void Channel::revoke(Outbound& out, Operation& operation) {
    // A stopped receiver may be anywhere: its next step ends in finding that the offer was taken back.
    const auto patient_until = Clock::now() + longest_reading;
    auto seen = static_cast<uint64_t>(Offer::offered);
    while (!out.ends->offer.compare_exchange_weak(seen, static_cast<uint64_t>(Offer::revoked),
                                                  std::memory_order_acq_rel, std::memory_order_acquire)) {
        if (seen == static_cast<uint64_t>(Offer::taken) || seen == static_cast<uint64_t>(Offer::refused)) break;
        bool waits = seen == static_cast<uint64_t>(Offer::reading) && Clock::now() < patient_until;
        if (waits) {
            std::this_thread::yield();
            seen = static_cast<uint64_t>(Offer::offered);
        }
    }
    was_taken(out, operation);
    ring_bell(*out.bell);
}

// Decide where an arriving message goes, of which `length` bytes are there already: into the oldest matching receive,
// or else into a store. If there is no memory for that, nothing changes.
void Channel::settle(Inbound& in, const MessageHeader& header, const char* prefix, uint64_t length) {
    uint64_t total = header.elements * size_of(static_cast<DType>(header.dtype));
    auto found = std::find_if(posted_.begin(), posted_.end(), [&](Operation* receive) {
        return !probes(*receive) && matches(*receive, in.source, header);
    });
    Operation* into = nullptr;
    Stored* stored = nullptr;
    if (found == posted_.end()) {
        std::unique_ptr<char[]> bytes(new char[total]);
        // A message that was arriving for a receive which gave up is older than all stored messages from that rank.
        bool older = in.arriving;
        auto place =
            stored_.insert(older ? stored_.begin() : stored_.end(), {in.source, header, std::move(bytes), &in});
        stored = &*place;
    } else {
        into = *found;
        if (takes(*into)) into->own.reset(new char[total]);
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
    if (!stored) return acknowledge(in.source, in.header);
    auto waits = [&](Operation* probe) { return probes(*probe) && matches(*probe, in.source, header); };
    for (auto probe = std::find_if(posted_.begin(), posted_.end(), waits); probe != posted_.end();
         probe = std::find_if(posted_.begin(), posted_.end(), waits)) {
        Operation& told = **probe;
        posted_.erase(probe);
        told.message = {in.source, header.tag, header.elements};
        finish(told);
    }
}

// A receive has taken a message: its sender is to know, if it asked for that. Once, also if the receive is given up.
void Channel::acknowledge(uint32_t source, MessageHeader& header) {
    if (header.asks) owed_.push_back({source, header.tag, 0});
    header.asks = 0;
}

// Not while a message is being settled: the acknowledgement of a message to this rank itself is one that arrives here.
void Channel::send_owed() {
    for (const Message& message : std::exchange(owed_, {})) {
        auto reply = std::make_unique<Operation>();
        reply->peer = message.source;
        reply->tag = message.tag;
        reply->context = acknowledgements;
        Outbound& out = outbound_[message.source];
        if (message.source == rank_) {
            post_send(*reply);
        } else if (!out.cut && (!out.queue.empty() || !write(out, *reply))) {
            reply->copy.reset(new char[1]);  // the channel owns it
            reply->background = true;
            out.queue.push_back(reply.get());
            rest_.push_back(std::move(reply));
            ++queued_;
            ++background_;
            call_helper();
        }
    }
}

void Channel::finish_arrival(Inbound& in) {
    if (in.into) finish(*in.into);
    if (in.stored) in.stored->from = nullptr;
    in.into = nullptr;
    in.stored = nullptr;
    in.arriving = false;
}

// True if a message fits the array of a receive; if not, the receive ends with an error, and the message is lost.
bool Channel::accept(Operation& operation, uint32_t source, const MessageHeader& header) {
    operation.message = {source, header.tag, header.elements};
    if (takes(operation)) {
        operation.dtype = static_cast<DType>(header.dtype);
        operation.elements = header.elements;
        operation.data = operation.own.get();
        return true;
    }
    auto dtype = static_cast<DType>(header.dtype);
    if (dtype == operation.dtype && header.elements <= operation.elements) return true;
    operation.error.emplace(
        Fault::mismatch,
        joined({name_of(operation), ": rank ", source, " sent ", what(dtype, header.elements), " with tag ", header.tag,
                ", rank ", rank_, " has room for ", what(operation.dtype, operation.elements), where()}));
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
    // The thread that waits for it may be asleep while another thread has finished it.
    if (drivers_.load(std::memory_order_relaxed) != 0) ring_bell(*bells_[rank_]);
}

// Cancel an operation that is not done.
void Channel::cancel(Operation& operation) {
    if (sends(operation)) {
        Outbound& out = outbound_[static_cast<size_t>(operation.peer)];
        auto found = std::find(out.queue.begin(), out.queue.end(), &operation);
        if (found == out.queue.end()) return;
        if (operation.offered) revoke(out, operation);
        if (!operation.started || operation.moved == operation.bytes()) {
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
            in.into = nullptr;  // if there is no memory for the part that has arrived, the message is lost
            settle(in, in.header, operation.data, in.got);
        }
}

// A message that is partly in the ring cannot be withdrawn, or the next header would be taken for its bytes. Unless its
// receiver is gone, the rest is sent from a copy. If there is no memory for the copy, nothing more can be sent to that
// rank.
void Channel::adopt_rest(Outbound& out, Operation& operation) {
    std::unique_ptr<char[]> copy(new (std::nothrow) char[operation.bytes()]);
    if (!copy || check_peers(&operation)[static_cast<size_t>(operation.peer)] != State::present) {
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

}  // namespace allfold
