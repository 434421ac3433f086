#include "communicator.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "asking.hpp"
#include "blame.hpp"
#include "fetch.hpp"
#include "peers.hpp"
#include "ticks.hpp"

namespace allfold {

using namespace std::chrono_literals;

namespace {

// The work area that one segment uses: small enough to stay in a second-level cache while peers read it, large enough
// that waiting for them does not show.
constexpr size_t segment_bytes = size_t{1} << 19;

// What is fetched at once for one fold: within a second-level cache, yet large, since every fetch is a system call.
constexpr size_t fetched_bytes = size_t{1} << 19;

constexpr auto nap = 20ms;  // the longest sleep before looking whether everybody is still there

uint64_t mix(uint64_t value, uint64_t next) {
    value = (value ^ next) * 0x9E3779B97F4A7C15u;
    return value ^ value >> 29;
}

// What must be the same on all ranks. Where the arrays lie need not be.
uint64_t signature(const CallRecord& record) {
    uint64_t value = mix(record.call, record.elements);
    value = mix(value, static_cast<uint32_t>(record.root));
    value = mix(value, record.collective | record.dtype << 8 | record.op << 16);
    for (size_t i = 0; i < sizeof record.algorithm; i += sizeof(uint64_t)) {
        uint64_t word;
        std::memcpy(&word, record.algorithm + i, sizeof word);
        value = mix(value, word);
    }
    return value;
}

std::string list_of(const std::vector<uint32_t>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < ranks.size(); ++i) {
        if (i) text += i + 1 == ranks.size() ? " and " : ", ";
        text += std::to_string(ranks[i]);
    }
    return text;
}

int64_t now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

}  // namespace

// The state of one call.
struct Communicator::Running {
    const std::function<void()>& let_go;
    const std::function<void()>& interrupted;
    CallRecord record;
    Clock::duration timeout;
    Clock::time_point deadline{};  // set when waiting first takes long: most calls never look at a clock
    // By rank; they belong to the communicator, so that a call allocates nothing.
    std::vector<uint8_t>& met;           // peers that were seen to be in the same call
    std::vector<const char*>& inputs;    // where arrays lie: one's own, and those of peers that may be reached
    std::vector<char*>& outputs;
    std::vector<uint8_t>& far;           // those are addresses in the peer's own process
    const Program* program = nullptr;
    uint32_t segments = 1;
    size_t slot_bytes = 0;
    bool is_tiny = false;  // everything fits the inline work areas
};

Communicator::Communicator(uint32_t rank, std::vector<Member> members, std::string label, bool fetches,
                           uint64_t group)
    : rank_(rank), label_(std::move(label)), members_(std::move(members)),
      patience_(Patience::for_ranks(static_cast<uint32_t>(members_.size()))),
      fetching_(fetches ? Fetching::untried : Fetching::fails) {
    for (const Member& member : members_) {
        posts_.push_back(reinterpret_cast<Post*>(member.arena->at(member.post)));
        work_.push_back(member.arena->at(member.work));
    }
    seen_.resize(size());
    inputs_.resize(size());
    outputs_.resize(size());
    far_.resize(size());
    if (getrandom(&witness_, sizeof witness_, 0) != sizeof witness_) fetching_ = Fetching::fails;
    witness_ |= 1;  // not what an untouched post says
    posts_[rank_]->witness_address.store(reinterpret_cast<uint64_t>(&witness_), std::memory_order_relaxed);
    posts_[rank_]->fences_for_all.store(sleepers_fence_for_all(), std::memory_order_relaxed);
    // Release: whoever sees the witness sees the address and the process to look for it.
    posts_[rank_]->witness.store(witness_, std::memory_order_release);
    posts_[rank_]->start_ticks.store(ticks(), std::memory_order_relaxed);
    posts_[rank_]->start_time.store(nanoseconds_since_1970(), std::memory_order_relaxed);
    for (Entry& entry : members_[rank_].arena->directory().entries) {
        uint64_t free = 0;  // claimed by a number that is no post's; two communicators may be made at the same time
        if (!entry.post.compare_exchange_strong(free, 1, std::memory_order_acq_rel)) continue;
        entry.group.store(group, std::memory_order_relaxed);
        entry.rank.store(rank_, std::memory_order_relaxed);
        entry.size.store(size(), std::memory_order_relaxed);
        for (size_t i = 0; i < sizeof entry.label; ++i)
            entry.label[i].store(i < label_.size() ? label_[i] : '\0', std::memory_order_relaxed);
        entry.post.store(members_[rank_].post, std::memory_order_release);
        entry_ = &entry;
        break;  // with none free the communicator works all the same, unseen
    }
}

Communicator::~Communicator() {
    if (entry_) entry_->post.store(0, std::memory_order_release);
}

size_t Communicator::post_bytes() { return sizeof(Post); }

bool Communicator::in_shared_memory(const void* pointer, size_t bytes) const {
    return members_[rank_].arena->holds(pointer, bytes);
}

void Communicator::stand(Standing standing) {
    // What ended the communicator first is what peers should hear of.
    uint32_t open = static_cast<uint32_t>(Standing::open);
    posts_[rank_]->standing.compare_exchange_strong(open, static_cast<uint32_t>(standing), std::memory_order_acq_rel);
    wake_all(posts_[rank_]->progress);
}

void Communicator::run(const Call& call, const std::function<void()>& let_go, const std::function<void()>& interrupted) {
    // Whoever has the lock may need, to finish, what let_go() gives up (the interpreter): not to be kept while waiting here.
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) {
        if (let_go) let_go();
        lock.lock();
    }
    check_open(call);
    Running running{.let_go = let_go, .interrupted = interrupted, .record = {}, .timeout = call.timeout, .met = met_, .inputs = inputs_, .outputs = outputs_, .far = far_};
    running.met.assign(size(), 0);
    running.met[rank_] = 1;
    try {
        enter(running, call);
        running.program = agree(running, call);
        perform(running, call, *running.program);
    } catch (const EngineError& error) {
        broken_by_ = error;
        stand(Standing::aborted);  // the others must not wait for a call that this rank has given up
        throw;
    } catch (...) {
        stand(Standing::aborted);
        throw;
    }
}

int32_t Communicator::process_of(uint32_t peer) const { return allfold::process_of(*members_[peer].arena); }

void Communicator::check_open(const Call& call) const {
    auto standing = static_cast<Standing>(posts_[rank_]->standing.load(std::memory_order_relaxed));
    if (standing == Standing::open) return;
    std::string name = std::string(collective_names[static_cast<size_t>(call.collective)]) + ": ";
    if (standing == Standing::left) throw EngineError(Fault::usage, name + "this communicator is closed");
    // Said again, and as what it was: the call that it ended may have been one in the background that nobody waited for.
    std::string advice = "; go on with shrink(), or make a new one";
    if (broken_by_)
        throw EngineError(broken_by_->fault, name + "this communicator is broken by an earlier error: " + broken_by_->what() + advice);
    throw EngineError(Fault::rank_lost, name + "this communicator was aborted, or broken by an error in a reduction" + advice);
}

void Communicator::enter(Running& running, const Call& call) {
    CallRecord& record = running.record;
    record.call = ++call_;
    record.elements = call.elements;
    record.root = call.root;
    record.collective = static_cast<uint8_t>(call.collective);
    record.dtype = static_cast<uint8_t>(call.dtype);
    record.op = call.op;
    if (call.algorithm[0]) std::strncpy(record.algorithm, call.algorithm, sizeof record.algorithm - 1);
    offer(record, call);
    record.begun = ticks();
    chain_ = mix(chain_, signature(record));
    Post& post = *posts_[rank_];
    // Relaxed: whoever reads these has first acquired a progress that is published after them.
    post.records[call_ % records_kept].store(record);
    post.chain[call_ % chains_kept].store(chain_, std::memory_order_relaxed);
    // Release: look_around() reads record and chain of a peer that it has not heard of otherwise.
    post.last_call.store(call_, std::memory_order_release);
    // A peer that has not said so yet may still say so: until then, every publication has its own fence.
    if (!fenced_by_sleepers_)
        fenced_by_sleepers_ = std::all_of(posts_.begin(), posts_.end(), [](const Post* each) {
            return each->fences_for_all.load(std::memory_order_relaxed) != 0;
        });
    // Nobody may fall behind by more than two segments: the work area that comes next was used two segments ago, and
    // records and chains are kept for a few calls only.
    for (uint32_t peer = 0; peer < size(); ++peer)
        if (peer != rank_) await_peer(running, peer, settled_);
}

// Say in the record how peers get at this rank's arrays.
void Communicator::offer(CallRecord& record, const Call& call) {
    if (!call.shared_program || (!call.input && !call.output)) return;
    const Arena& arena = *members_[rank_].arena;
    bool fetches = call.readable_program && can_fetch();
    if ((!call.input || arena.holds(call.input, 1)) && (!call.output || arena.holds(call.output, 1))) {
        record.reach = fetches ? Reach::arena_and_fetches : Reach::arena;
        if (call.input) record.input = static_cast<int64_t>(arena.offset_of(call.input));
        if (call.output) record.output = static_cast<int64_t>(arena.offset_of(call.output));
    } else if (fetches) {
        record.reach = Reach::address;
        if (call.input) record.input = reinterpret_cast<int64_t>(call.input);
        if (call.output) record.output = reinterpret_cast<int64_t>(call.output);
    }
}

// Whether this rank can read the memory of all others. Tried once, when it is first wanted and all have left their
// witnesses: a process by that number that is not the peer has another number there, or nothing.
bool Communicator::can_fetch() {
    if (fetching_ != Fetching::untried) return fetching_ == Fetching::works;
    for (const Post* post : posts_)
        if (post->witness.load(std::memory_order_acquire) == 0) return false;
    fetching_ = Fetching::works;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        const Post* post = posts_[peer];
        uint64_t seen = 0;
        int error = fetch(process_of(peer),
                          post->witness_address.load(std::memory_order_relaxed), &seen, sizeof seen);
        if (error || seen != post->witness.load(std::memory_order_relaxed)) fetching_ = Fetching::fails;
    }
    return fetching_ == Fetching::works;
}

// Which program it is, the same on all ranks: reaching into arrays takes all ranks. Whoever offers none knows that it is
// not to be; the others wait to hear from everyone, as a program that reaches into arrays must anyway.
const Program* Communicator::agree(Running& running, const Call& call) {
    const CallRecord& own = running.record;
    // Heard by those who offer theirs, before anything that could wait for them.
    if (call.shared_program) publish_progress(base_ + 1);
    if (own.reach == Reach::none) return call.private_program;
    bool shared = true, readable = true;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        CallRecord record = own;
        if (peer != rank_) {
            await_peer(running, peer, base_ + 1);
            meet(running, peer);
            record = posts_[peer]->records[call_ % records_kept].load();
        }
        bool in_arena = record.reach == Reach::arena || record.reach == Reach::arena_and_fetches;
        shared &= in_arena;
        readable &= record.reach == Reach::arena_and_fetches || record.reach == Reach::address;
        running.far[peer] = record.reach == Reach::address && peer != rank_;
        auto place = [&](int64_t where) -> char* {
            if (where < 0 || record.reach == Reach::none) return nullptr;
            return in_arena ? members_[peer].arena->at(where) : reinterpret_cast<char*>(where);
        };
        running.inputs[peer] = place(record.input);
        running.outputs[peer] = place(record.output);
    }
    return shared ? call.shared_program : readable ? call.readable_program : call.private_program;
}

void Communicator::perform(Running& running, const Call& call, const Program& program) {
    if (program.memory == Memory::unreachable) {
        running.inputs[rank_] = static_cast<const char*>(call.input);
        running.outputs[rank_] = static_cast<char*>(call.output);
    }
    size_t element = size_of(call.dtype);
    uint64_t longest = (call.elements + program.chunks - 1) / program.chunks;
    if (program.work_slots) {
        // A segment of every chunk must fit its work slot.
        size_t slot = std::max<size_t>(window_bytes / program.work_slots / 64 * 64, 64);
        size_t wanted = std::max<size_t>(segment_bytes, size_t{64} * program.work_slots) / program.work_slots / 64 * 64;
        size_t most = std::max<size_t>(std::min(slot, std::max<size_t>(wanted, 64)) / element, 1);
        running.segments = static_cast<uint32_t>(std::max<uint64_t>((longest + most - 1) / most, 1));
        running.slot_bytes = (longest + running.segments - 1) / running.segments * element;
        running.is_tiny = running.slot_bytes * program.work_slots <= inline_bytes;
        if (!running.is_tiny) running.slot_bytes = (running.slot_bytes + 63) / 64 * 64;
    }
    const uint32_t count = program.instructions;
    const uint64_t start = base_ + 1;
    bool announced = false;
    for (uint32_t segment = 0; segment < running.segments; ++segment) {
        uint64_t here = start + uint64_t{segment} * program.stride;
        if (segment == 1)
            for (uint32_t peer = 0; peer < size(); ++peer)
                if (peer != rank_) await_peer(running, peer, base_);
        for (uint32_t i = 0; i < count; ++i) {
            int64_t began = trace_ ? now() : 0;
            for (const Wait* wait = program.waits.begin(i); wait != program.waits.end(i); ++wait) {
                await_peer(running, wait->rank, here + wait->count);
                meet(running, wait->rank);
            }
            if (segment >= 2)
                for (const Wait* wait = program.reuse.begin(i); wait != program.reuse.end(i); ++wait)
                    await_peer(running, wait->rank, here - 2 * uint64_t{program.stride} + wait->count);
            int64_t ready = trace_ ? now() : 0;
            execute(running, call, program, i, segment);
            bool last = i + 1 == count && segment + 1 == running.segments;
            if (program.announce[i] && (!last || !program.leave.empty())) {
                publish_progress(here + i + 1);
                announced = true;
            }
            if (trace_) {
                uint64_t length = (longest + running.segments - 1) / running.segments;
                trace_->push_back({call_, program.name, segment, i, began, ready, now(), length * element});
            }
        }
        ++segments_done_;
    }
    uint64_t last = start + uint64_t{running.segments - 1} * program.stride;
    for (const Wait& wait : program.leave) {
        await_peer(running, wait.rank, last + wait.count);
        meet(running, wait.rank);
    }
    settled_ = running.segments > 1 ? last : base_;
    base_ = start + uint64_t{running.segments} * program.stride + 1;
    // In a row of small calls one trip of the line less each: who has heard from everyone in this call, and was heard, may
    // keep its end to itself, unless it is awaited in this very call. What it announced tells the others that it has
    // ended the call before, which is what they wait for in the next one. That it has ended this one they wait for in
    // the next but one, and until then they hear from it again, or it has not come to the next.
    bool everyone = std::find(running.met.begin(), running.met.end(), 0) == running.met.end();
    if (!announced || !everyone || program.end_awaited || running.segments > 1) publish_progress(base_);
    // Release: whoever sees that this rank has done its part also sees the progress that it would wait for.
    posts_[rank_]->last_done.store(call_, std::memory_order_release);
    posts_[rank_]->records[call_ % records_kept].end(ticks());
}

void Communicator::execute(Running& running, const Call& call, const Program& program, uint32_t i, uint32_t segment) {
    const Slot *source = program.sources.begin(i), *source_end = program.sources.end(i);
    if (source == source_end || call.elements == 0) return;
    uint32_t chunk = program.length_of[i];
    uint64_t length = (chunk + 1) * call.elements / program.chunks - chunk * call.elements / program.chunks;
    uint64_t start = segment * length / running.segments;
    uint64_t elements = (segment + 1) * length / running.segments - start;
    if (elements == 0) return;
    const void* sources[most_ranks];
    void* destinations[most_ranks + 1];
    size_t source_count = 0, destination_count = 0;
    for (; source != source_end; ++source) sources[source_count++] = locate(running, program, *source, start);
    for (const Slot* slot = program.destinations.begin(i); slot != program.destinations.end(i); ++slot)
        destinations[destination_count++] = locate(running, program, *slot, start);
    if (program.memory == Memory::readable)
        fetch_and_combine(running, call, program.sources.begin(i), sources, source_count, destinations, destination_count,
                          elements, program.complete[i]);
    else
        combine(call, sources, source_count, destinations, destination_count, elements, program.complete[i]);
}

void Communicator::combine(const Call& call, const void* const* sources, size_t source_count, void* const* destinations,
                           size_t destination_count, uint64_t elements, bool complete) const {
    // Stores that bypass the cache never paid: what is written here was just read, or is read next.
    constexpr bool stream = false;
    if (source_count == 1) {
        copy(sources[0], destinations, destination_count, elements * size_of(call.dtype), stream);
    } else if (call.fold) {
        bool divide = call.op == static_cast<uint8_t>(Op::average) && complete;
        call.fold(sources, source_count, destinations, destination_count, elements, divide ? size() : 1, stream);
    } else {
        call.custom_fold(sources, source_count, destinations, destination_count, elements);
    }
}

// The same where sources may lie in the memory of other processes: what is copied is fetched to where it belongs, what is
// folded is fetched tile by tile, so that it is still in the cache when it is combined.
void Communicator::fetch_and_combine(Running& running, const Call& call, const Slot* slots, const void** sources,
                                     size_t source_count, void** destinations, size_t destination_count, uint64_t elements,
                                     bool complete) {
    auto is_far = [&](size_t i) { return slots[i].space != Space::work && running.far[slots[i].rank]; };
    size_t element = size_of(call.dtype), far = 0;
    for (size_t i = 0; i < source_count; ++i) far += is_far(i);
    if (far == 0) return combine(call, sources, source_count, destinations, destination_count, elements, complete);
    if (source_count == 1) {
        fetch_from(running, slots[0].rank, sources[0], destinations[0], elements * element);
        if (destination_count > 1)
            copy(destinations[0], destinations + 1, destination_count - 1, elements * element, false);
        return;
    }
    if (!fetched_) fetched_ = std::make_unique<char[]>(fetched_bytes);
    uint64_t most = std::max<uint64_t>(fetched_bytes / far / element, 1);
    for (uint64_t done = 0; done < elements;) {
        uint64_t now = std::min(most, elements - done);
        const void* near[most_ranks];
        char* free = fetched_.get();
        for (size_t i = 0; i < source_count; ++i) {
            near[i] = static_cast<const char*>(sources[i]) + done * element;
            if (!is_far(i)) continue;
            fetch_from(running, slots[i].rank, near[i], free, now * element);
            near[i] = free;
            free += now * element;
        }
        void* here[most_ranks + 1];
        for (size_t i = 0; i < destination_count; ++i) here[i] = static_cast<char*>(destinations[i]) + done * element;
        combine(call, near, source_count, here, destination_count, now, complete);
        done += now;
    }
}

void Communicator::fetch_from(Running& running, uint32_t peer, const void* source, void* target, size_t bytes) {
    int error = fetch(process_of(peer), reinterpret_cast<uint64_t>(source), target, bytes);
    if (error == 0) return;
    std::string how;
    bool gone = error == ESRCH || life_of(process_of(peer), &how) == Life::dead;
    fail_lost(running, peer, gone ? "is gone" + how : std::string("does not let its arrays be read any more (") + std::strerror(error) + ")");
}

// Where a slot's chunk lies, from its element `start` on. A work slot holds just the segment that is being worked on.
char* Communicator::locate(const Running& running, const Program& program, const Slot& slot, uint64_t start) const {
    size_t element = size_of(static_cast<DType>(running.record.dtype));
    if (slot.space == Space::work) {
        size_t area = segments_done_ & 1, offset = slot.index * running.slot_bytes;
        if (running.is_tiny) return posts_[slot.rank]->inline_work[area] + offset;
        return work_[slot.rank] + area * window_bytes + offset;
    }
    uint64_t total = running.record.elements;
    bool input = slot.space == Space::input;
    uint32_t origin = (input ? program.input_origin : program.output_origin)[slot.rank];
    uint64_t skip = slot.index * total / program.chunks - origin * total / program.chunks;
    const char* base = input ? running.inputs[slot.rank] : running.outputs[slot.rank];
    return const_cast<char*>(base) + (skip + start) * element;
}

// Waiting, and what can go wrong meanwhile -----------------------------------------------------------------------------

void Communicator::publish_progress(uint64_t value) {
    publish(posts_[rank_]->progress, posts_[rank_]->sleepers, value, fenced_by_sleepers_);
}

void Communicator::await_peer(Running& running, uint32_t peer, uint64_t target) {
    // What was seen once need not be looked at again: a peer's line is fetched when there is news to expect, and only then.
    if (seen_[peer] >= target) return;
    Post& post = *posts_[peer];
    bool took_long = false;
    seen_[peer] = await(
        post.progress, post.sleepers, target, patience_, [&] { if (running.let_go) running.let_go(); },
        [&] {
            took_long = true;
            posts_[rank_]->waiting_for.store(peer + 1, std::memory_order_relaxed);
            return bother(running, peer);
        });
    if (took_long) posts_[rank_]->waiting_for.store(0, std::memory_order_relaxed);
}

void Communicator::meet(Running& running, uint32_t peer) {
    if (running.met[peer]) return;
    running.met[peer] = 1;
    if (posts_[peer]->chain[call_ % chains_kept].load(std::memory_order_relaxed) != chain_) [[unlikely]]
        fail_mismatch(running);
}

Clock::duration Communicator::bother(Running& running, uint32_t peer) {
    auto time = Clock::now();
    if (running.deadline == Clock::time_point{}) {
        running.deadline = time + running.timeout;
        return std::min<Clock::duration>(1ms, running.timeout);
    }
    if (running.interrupted) running.interrupted();
    look_around(running);
    if (time >= running.deadline) fail_timeout(running, peer);
    return std::min<Clock::duration>(nap, running.deadline - time);
}

// Is everybody still there, and in the same call?
void Communicator::look_around(Running& running) {
    std::string name = collective_names[running.record.collective];
    int64_t gave_up_peer = -1;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        Post& post = *posts_[peer];
        // Before last_done, acquire: what a peer did after it had done its part is then not taken for the reverse.
        auto standing = static_cast<Standing>(post.standing.load(std::memory_order_acquire));
        // By another thread of this process. (One that closes the communicator lets what has begun come to its end.)
        if (peer == rank_ && standing == Standing::aborted)
            throw EngineError(Fault::rank_lost, name + ": this communicator was aborted " + where(call_));
        // Ranks in different calls may wait for each other in programs that do not fit together, and never meet there.
        if (post.last_call.load(std::memory_order_acquire) >= call_ &&
            post.chain[call_ % chains_kept].load(std::memory_order_relaxed) != chain_)
            fail_mismatch(running);
        // A peer that has done its part of this call: whatever befell it since is not our concern.
        if (peer == rank_ || post.last_done.load(std::memory_order_acquire) >= call_) continue;
        if (standing == Standing::mismatch) fail_mismatch(running);
        if (standing == Standing::late) fail_timeout(running, peer);
        if (standing == Standing::aborted) {  // dead or alive: most give up because of somebody else
            if (gave_up_peer < 0) gave_up_peer = peer;
            continue;
        }
        if (standing == Standing::left && post.last_call.load(std::memory_order_relaxed) < call_)
            fail_lost(running, peer, "has left: it closed its communicator after call " + std::to_string(post.last_call.load()) + ", this is");
        std::string how;
        if (life_of(process_of(peer), &how) == Life::dead) fail_lost(running, peer, "is gone" + how);
    }
    // Last, so that whoever is seen to be lost is named.
    if (gave_up_peer < 0) return;
    auto peer = static_cast<uint32_t>(gave_up_peer);
    uint32_t first = first_lost(posts_, peer);
    posts_[rank_]->lost.store(first == peer ? 0 : first + 1, std::memory_order_relaxed);
    throw EngineError(Fault::rank_lost, name + ": " + gave_up(posts_, peer, *members_[first].arena, first) + " " + where(call_));
}

void Communicator::fail_lost(Running& running, uint32_t peer, const std::string& what) {
    // Before this rank's standing changes, which is what others look at first.
    posts_[rank_]->lost.store(peer + 1, std::memory_order_relaxed);
    std::string who = what.starts_with("has left") ? "rank " + std::to_string(peer) : named(peer, *members_[peer].arena);
    throw EngineError(Fault::rank_lost, std::string(collective_names[running.record.collective]) + ": " + who + " " + what + " " + where(call_));
}

void Communicator::fail_mismatch(Running& running) {
    stand(Standing::mismatch);
    if (running.let_go) running.let_go();  // they may be threads of this process
    // Give those who are still on their way a moment to arrive, so that everybody can be named.
    auto limit = Clock::now() + std::min<Clock::duration>(500ms, running.timeout);
    auto arrived = [&](uint32_t peer) { return posts_[peer]->last_call.load(std::memory_order_acquire) >= call_; };
    for (uint32_t peer = 0; peer < size(); ++peer)
        while (!arrived(peer) && Clock::now() < limit) {
            timespec pause{0, 1000000};
            nanosleep(&pause, nullptr);
        }
    // A rank that needed nobody may have left the call that differed, and notice in a later one: name the first.
    std::vector<CallRecord> records(size());
    bool same_call = true, same_collective = true;
    uint64_t call = call_ > records_kept / 2 ? call_ - records_kept / 2 : 0;
    while (same_call && call < call_) {
        ++call;
        const CallRecord own = posts_[rank_]->records[call % records_kept].load();
        for (uint32_t peer = 0; peer < size(); ++peer) {
            records[peer] = posts_[peer]->records[call % records_kept].load();
            if (records[peer].call != call) continue;
            same_call &= signature(records[peer]) == signature(own);
            same_collective &= records[peer].collective == own.collective;
        }
    }
    std::string text = same_collective ? collective_names[records[rank_].collective] : std::string("mismatched calls");
    text += ": ";
    std::vector<uint32_t> absent;
    std::vector<std::pair<std::string, std::vector<uint32_t>>> groups;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        if (records[peer].call != call) {
            absent.push_back(peer);
            continue;
        }
        std::string what = describe(records[peer], !same_collective);
        auto known = std::find_if(groups.begin(), groups.end(), [&](auto& group) { return group.first == what; });
        if (known == groups.end()) groups.push_back({what, {peer}});
        else known->second.push_back(peer);
    }
    for (size_t i = 0; i < groups.size(); ++i)
        text += (i ? ", " : "") + list_of(groups[i].second) + (i ? " with " : " came with ") + groups[i].first;
    if (groups.size() < 2) text += ", but an earlier call differed";
    if (!absent.empty()) text += ", " + list_of(absent) + " did not come";
    throw EngineError(Fault::mismatch, text + " " + where(call));
}

void Communicator::fail_timeout(Running& running, uint32_t peer) {
    stand(Standing::late);
    std::vector<uint32_t> absent;
    for (uint32_t other = 0; other < size(); ++other)
        if (other != rank_ && posts_[other]->last_call.load(std::memory_order_acquire) < call_) absent.push_back(other);
    double seconds = std::chrono::duration<double>(running.timeout).count();
    char within[48];
    std::snprintf(within, sizeof within, " within %g s ", seconds);
    std::string text = std::string(collective_names[running.record.collective]) + ": ";
    if (absent.empty()) text += "rank " + std::to_string(peer) + " came but did not do its part";
    else text += list_of(absent) + " did not come";
    text += within + where(call_);
    // What is known of those that are waited for: of a few, since all of a thousand would be no help.
    constexpr size_t most_described = 4;
    if (absent.empty()) absent.push_back(peer);
    for (size_t i = 0; i < std::min(absent.size(), most_described); ++i) text += last_seen(absent[i]);
    throw EngineError(Fault::timeout, text);
}

// What a rank was last seen doing, and where it stands in its program if it can still say so.
std::string Communicator::last_seen(uint32_t peer) const {
    const Post& post = *posts_[peer];
    int32_t process = process_of(peer);
    std::string text = "; " + named(peer, *members_[peer].arena) + " ";
    uint64_t call = post.last_call.load(std::memory_order_acquire);
    CallRecord record = post.records[call % records_kept].load();
    if (call == 0) {
        text += "has made no call yet";
    } else {
        bool done = post.last_done.load(std::memory_order_acquire) >= call;
        text += (done ? "has done call " : "is in call ") + std::to_string(call);
        if (record.call == call) text += ", " + describe(record, true);
        uint32_t waits = post.waiting_for.load(std::memory_order_relaxed);
        if (!done && waits) text += ", and waits for rank " + std::to_string(waits - 1);
    }
    if (is_stopped(process)) return text + "; it is stopped (SIGSTOP or a debugger)";
    // The first line is for sentences like this one, the rest for `allfold doctor`.
    Directory& directory = members_[peer].arena->directory();
    if (directory.answers.load(std::memory_order_relaxed) == 0) return text;
    std::string answer = ask(directory, 300ms);
    if (answer.empty()) return text + "; it does not say where it is: its interpreter is busy, or stuck";
    return text + "; it is at " + answer.substr(0, answer.find('\n'));
}

std::string Communicator::where(uint64_t call) const {
    return "(call " + std::to_string(call) + " of " + label_ + ")";
}

std::string Communicator::describe(const CallRecord& record, bool with_collective) const {
    auto collective = static_cast<Collective>(record.collective);
    std::string text;
    if (with_collective) text += std::string(collective_names[record.collective]) + " of ";
    if (collective == Collective::barrier) return with_collective ? "barrier" : "a barrier";
    text += std::string(name_of(static_cast<DType>(record.dtype))) + "[" + std::to_string(record.elements) + "]";
    bool reduces = collective == Collective::all_reduce || collective == Collective::reduce || collective == Collective::reduce_scatter;
    if (reduces) text += record.op == custom_op ? " custom operation" : std::string(" ") + name_of(static_cast<Op>(record.op));
    bool rooted = collective == Collective::reduce || collective == Collective::broadcast ||
                  collective == Collective::gather || collective == Collective::scatter;
    if (rooted) text += " root " + std::to_string(record.root);
    if (record.algorithm[0]) text += std::string(" by ") + std::string(record.algorithm, strnlen(record.algorithm, sizeof record.algorithm));
    return text;
}

}  // namespace allfold
