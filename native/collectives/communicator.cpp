#include <sys/random.h>
#include <unistd.h>

#include <algorithm>

#include "collectives/communicator_parts.hpp"
#include "collectives/fetch.hpp"
#include "peers/blame.hpp"
#include "peers/peers.hpp"
#include "shared/text.hpp"
#include "shared/ticks.hpp"

namespace allfold {

using namespace std::chrono_literals;

namespace {

int64_t now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

// As much of a name as fits, with a zero after it. No character is cut in half: errors must be valid UTF-8.
template <size_t bytes>
void put_name(char (&field)[bytes], const char* name, size_t length) {
    if (length >= bytes)
        for (length = bytes - 1; length > 0 && (name[length] & 0xC0) == 0x80;) --length;
    std::memcpy(field, name, length);
}

}  // namespace

Signature signature_of(const Call& call) {
    Signature made;
    made.elements = call.elements;
    if (call.private_program) made.schedule = call.private_program->schedule;  // else it is not known yet
    made.custom = call.op_digest;
    made.root = facts_of(call.collective).rooted ? call.root : 0;
    made.collective = static_cast<uint8_t>(call.collective);
    made.dtype = static_cast<uint8_t>(call.dtype);
    made.op = call.op;
    if (call.parts) made.counts = call.parts->digest;
    // Without the number that distinguishes functions of the same name: ranks may count them differently.
    if (call.algorithm[0]) put_name(made.algorithm, call.algorithm, std::strcspn(call.algorithm, "#"));
    if (call.op_name[0]) put_name(made.op_name, call.op_name, std::strlen(call.op_name));
    return made;
}

Communicator::Communicator(uint32_t rank, std::vector<Member> members, std::string label, bool fetches, uint64_t group,
                           std::shared_ptr<FirstError> first_error)
    : rank_(rank), label_(std::move(label)), members_(std::move(members)), blame_(rank, members_),
      patience_(Patience::for_ranks(static_cast<uint32_t>(members_.size()))),
      fetching_(fetches ? Fetching::untried : Fetching::fails), first_error_(std::move(first_error)) {
    for (const Member& member : members_) {
        posts_.push_back(reinterpret_cast<Post*>(member.arena->at(member.post)));
        work_.push_back(member.arena->at(member.work));
    }
    seen_.resize(size());
    met_.resize(size());
    inputs_.resize(size());
    outputs_.resize(size());
    far_.resize(size());
    if (getrandom(&probe_word_, sizeof probe_word_, 0) != sizeof probe_word_) fetching_ = Fetching::fails;
    probe_word_ |= 1;  // never the value of an untouched post
    posts_[rank_]->probe_address.store(reinterpret_cast<uint64_t>(&probe_word_), std::memory_order_relaxed);
    posts_[rank_]->fences_for_all.store(sleepers_fence_for_all(), std::memory_order_relaxed);
    // Release: a peer that sees the probe_word also sees its address and process.
    posts_[rank_]->probe_word.store(probe_word_, std::memory_order_release);
    posts_[rank_]->start_ticks.store(ticks(), std::memory_order_relaxed);
    posts_[rank_]->start_time.store(nanoseconds_since_1970(), std::memory_order_relaxed);
    for (Entry& entry : members_[rank_].arena->directory().entries) {
        uint64_t free = 0;  // claimed with a number that is not a post; two communicators may be made at the same time
        if (!entry.post.compare_exchange_strong(free, 1, std::memory_order_acq_rel)) continue;
        entry.group.store(group, std::memory_order_relaxed);
        entry.rank.store(rank_, std::memory_order_relaxed);
        entry.size.store(size(), std::memory_order_relaxed);
        for (size_t i = 0; i < sizeof entry.label; ++i)
            entry.label[i].store(i < label_.size() ? label_[i] : '\0', std::memory_order_relaxed);
        entry.post.store(members_[rank_].post, std::memory_order_release);
        entry_ = &entry;
        break;  // if none is free, the communicator still works, but `allfold doctor` does not see it
    }
}

Communicator::~Communicator() {
    if (entry_) entry_->post.store(0, std::memory_order_release);
}

size_t Communicator::post_bytes() { return sizeof(Post); }

bool Communicator::in_shared_memory(const void* pointer, size_t bytes) const {
    return members_[rank_].arena->holds(pointer, bytes);
}

void Communicator::say_last(const std::string& words) {
    Post& post = *posts_[rank_];
    // Peers read the words once the standing has changed; after that they never change. Relaxed: retire() releases
    // them, and for a process that has ended, peers ask the kernel first.
    if (post.standing.load(std::memory_order_relaxed) != static_cast<uint32_t>(Standing::open)) return;
    for (size_t i = 0; i < sizeof post.last_words; ++i)
        post.last_words[i].store(i + 1 < sizeof post.last_words && i < words.size() ? words[i] : '\0',
                                 std::memory_order_relaxed);
}

void Communicator::retire(Standing standing) {
    // Peers should learn what ended the communicator first.
    uint32_t open = static_cast<uint32_t>(Standing::open);
    posts_[rank_]->standing.compare_exchange_strong(open, static_cast<uint32_t>(standing), std::memory_order_acq_rel);
    wake_all(posts_[rank_]->progress);
}

Communicator::Turn::Turn(Communicator& communicator, const char* name, Clock::duration timeout,
                         const std::function<void()>& before_blocking, const std::function<void()>& interrupted)
    : communicator_(communicator) {
    communicator_.check_caller(name);
    auto& turn = communicator_.turn_;
    uint64_t free = 0;
    if (!turn.compare_exchange_strong(free, 1, std::memory_order_acquire, std::memory_order_relaxed)) {
        // The thread that has the turn may need the interpreter's lock to finish; before_blocking() releases it.
        if (before_blocking) before_blocking();
        auto since = Clock::now();
        while (turn.exchange(2, std::memory_order_acquire) != 0) {
            sleep_on(turn, 2, std::min<Clock::duration>(20ms, timeout));
            if (interrupted) interrupted();
            if (communicator_.gives_up_turn(since, timeout) && turn.load(std::memory_order_relaxed) != 0)
                throw communicator_.not_my_turn(name, timeout);
        }
    }
    communicator_.runner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

Communicator::Turn::~Turn() {
    communicator_.runner_.store({}, std::memory_order_relaxed);
    if (communicator_.turn_.exchange(0, std::memory_order_release) == 2) wake_all(communicator_.turn_);
}

void Communicator::check_caller(const char* name) const {
    check_here(name);
    // Relaxed: a thread sees its own store, and no other thread has its number.
    if (runner_.load(std::memory_order_relaxed) == std::this_thread::get_id())
        throw EngineError(Fault::usage,
                          joined({name,
                                  ": this thread is already in a call on the same communicator (called in a "
                                  "user-defined operation or a signal handler), and would wait for itself ",
                                  where(call_)}));
}

void Communicator::trace_to(std::vector<Event>* events, Clock::duration timeout) {
    Turn turn(*this, "trace", timeout, nullptr, nullptr);
    trace_ = events;
}

void Communicator::run(const Call& call, const std::function<void()>& before_blocking,
                       const std::function<void()>& interrupted) {
    Turn turn(*this, facts_of(call.collective).name.c_str(), call.timeout, before_blocking, interrupted);
    check_open(call);
    Running running{.before_blocking = before_blocking,
                    .interrupted = interrupted,
                    .record = {},
                    .timeout = call.timeout,
                    .met = met_,
                    .inputs = inputs_,
                    .outputs = outputs_,
                    .far = far_};
    std::fill(running.met.begin(), running.met.end(), 0);
    running.met[rank_] = 1;
    try {
        enter(running, call);
        perform(running, call, *agree(running, call));
    } catch (const EngineError& error) {
        if (!is_here()) throw;  // from an operation that has forked: none of this belongs to the child
        first_error_->set(error);
        let_go(running, call);
        throw;
    } catch (...) {  // the exception itself tells the caller what happened
        if (!is_here()) throw;
        first_error_->set(EngineError(
            Fault::usage,
            joined({name_of(running), ": aborted on this rank: a signal handler or a user-defined operation raised ",
                    where(call_)})));
        let_go(running, call);
        throw;
    }
}

void Communicator::check_open(const Call& call) const {
    auto standing = static_cast<Standing>(posts_[rank_]->standing.load(std::memory_order_relaxed));
    if (standing == Standing::open) return;
    std::string name = facts_of(call.collective).name;
    if (standing == Standing::left) throw EngineError(Fault::usage, name + ": this communicator is closed");
    first_error_->say_again(name);
    throw EngineError(Fault::rank_lost,
                      name + ": this communicator was aborted; continue with shrink(), or create a new one");
}

void Communicator::check_not_aborted(const char* name) const {
    if (posts_[rank_]->standing.load(std::memory_order_relaxed) == static_cast<uint32_t>(Standing::aborted))
        throw EngineError(Fault::rank_lost, joined({name, ": this communicator was aborted ", where(call_)}));
}

void Communicator::enter(Running& running, const Call& call) {
    CallRecord& record = running.record;
    ++call_;
    record.signature = signature_of(call);
    uint64_t digest = digest_of(record.signature);
    if (whole_) {
        record.signature = whole_->signature;
        record.number = static_cast<uint32_t>(whole_->number);
        digest = mix(mix(digest, whole_->digest), whole_->number);
    }
    offer(record, call);
    record.begun = ticks();
    chain_ = mix(chain_, digest);
    Post& post = *posts_[rank_];
    // Relaxed: readers have first acquired a progress that is published after these.
    post.records[call_ % records_kept].store(call_, record);
    post.chain[call_ % chains_kept].store(static_cast<uint32_t>(chain_), std::memory_order_relaxed);
    // Release: check_peers() reads the record and chain of a peer without any other synchronisation.
    post.last_call.store(call_, std::memory_order_release);
    // A peer that has not announced this yet may do so later: until then, every publication has its own fence.
    if (!fenced_by_sleepers_)
        fenced_by_sleepers_ = std::all_of(posts_.begin(), posts_.end(), [](const Post* each) {
            return each->fences_for_all.load(std::memory_order_relaxed) != 0;
        });
    // No rank may be further behind than chains and small work areas are kept for.
    await_all(running, ends_[(call_ - calls_ahead) % chains_kept]);
}

// Note in the record how peers can access this rank's arrays.
void Communicator::offer(CallRecord& record, const Call& call) {
    if (!call.shared_program || (!call.input && !call.output)) return;
    const Arena& arena = *members_[rank_].arena;
    bool fetches = call.readable_program && can_fetch();
    if ((!call.input || arena.holds(call.input, 1)) && (!call.output || arena.holds(call.output, 1))) {
        record.reach = fetches ? Reach::arena_and_fetches : Reach::arena;
        if (call.input) record.input = static_cast<int64_t>(arena.offset_of(call.input));
        if (call.output) record.output = static_cast<int64_t>(arena.offset_of(call.output));
    } else if (fetches && arrays_are_fetchable(call)) {
        record.reach = Reach::address;
        if (call.input) record.input = reinterpret_cast<int64_t>(call.input);
        if (call.output) record.output = reinterpret_cast<int64_t>(call.output);
    }
}

// True if the arrays do not prevent peers from reading them. The answer is remembered for the arrays of the last call:
// programs use the same ones repeatedly, and asking costs as much as moving 10 KiB.
bool Communicator::arrays_are_fetchable(const Call& call) {
    const Program& program = *call.readable_program;
    auto can = [](const void* array, size_t bytes, Fetchable& known) {
        if (!array) return true;
        if (known.array != array || known.bytes != bytes) known = {array, bytes, is_fetchable(array, bytes)};
        return known.can;
    };
    return can(call.input, bytes_of(Space::input, call, program), fetchable_[0]) &&
           can(call.output, bytes_of(Space::output, call, program), fetchable_[1]);
}

// True if this rank can read the memory of all others. Tested once, when it is first needed and all ranks have written
// their probe words. If the process ID belongs to another process by now, or because the peer is in another PID
// namespace, a different value, or none, is found at that address.
bool Communicator::can_fetch() {
    if (fetching_ != Fetching::untried) return fetching_ == Fetching::works;
    for (const Post* post : posts_)
        if (post->probe_word.load(std::memory_order_acquire) == 0) return false;
    fetching_ = Fetching::works;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        const Post* post = posts_[peer];
        uint64_t seen = 0;
        int error =
            fetch(*members_[peer].arena, post->probe_address.load(std::memory_order_relaxed), &seen, sizeof seen);
        if (error || seen != post->probe_word.load(std::memory_order_relaxed)) fetching_ = Fetching::fails;
    }
    return fetching_ == Fetching::works;
}

// Chooses the program, the same on all ranks: accessing arrays directly needs the consent of all ranks. A rank that
// does not offer its arrays knows the answer at once; the others wait for all ranks, which a program that accesses
// arrays must do anyway.
const Program* Communicator::agree(Running& running, const Call& call) {
    const CallRecord& own = running.record;
    // Publish this for the ranks that offer theirs, before anything that could wait for them.
    if (call.shared_program) publish_progress(base_ + 1);
    if (own.reach == Reach::none) return call.private_program;
    bool shared = true, readable = true;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        CallRecord record = own;
        if (peer != rank_) {
            await_peer(running, peer, base_ + 1);
            meet(running, peer);
            // The record is there, because the peer is in this call, and records are kept for many calls.
            if (!posts_[peer]->records[call_ % records_kept].load(call_, record)) fail_mismatch(running);
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
    if (program.memory == Memory::private_) {
        running.inputs[rank_] = static_cast<const char*>(call.input);
        running.outputs[rank_] = static_cast<char*>(call.output);
    }
    if (sources_.size() < program.most_sources) sources_.resize(program.most_sources);
    if (destinations_.size() < program.most_destinations) destinations_.resize(program.most_destinations);
    running.program = &program;
    running.parts = call.parts;
    running.whole = call.elements / program.chunks;
    running.rest = call.elements % program.chunks;
    const size_t element = running.element = size_of(call.dtype);
    uint64_t longest = call.parts ? call.parts->longest : running.whole + (running.rest != 0);
    running.segment_elements = longest;
    if (program.work_slots) {
        // A segment of every chunk must fit its work slot.
        size_t slot = std::max<size_t>(window_bytes / program.work_slots / 64 * 64, 64);
        size_t wanted =
            std::max<size_t>(program.segment_bytes, size_t{64} * program.work_slots) / program.work_slots / 64 * 64;
        size_t most = std::max<size_t>(std::min(slot, std::max<size_t>(wanted, 64)) / element, 1);
        running.segments = static_cast<uint32_t>(std::max<uint64_t>((longest + most - 1) / most, 1));
        running.slot_bytes = (longest + running.segments - 1) / running.segments * element;
        // Where there is a root, some ranks need no answer and may run ahead. Where all need data from all, they
        // cannot.
        bool rooted = facts_of(call.collective).rooted;
        bool is_tiny = !rooted && running.slot_bytes * program.work_slots <= inline_bytes;
        // Whole cache lines: if a chunk begins on a cache line, so do all its segments.
        if (!is_tiny) running.slot_bytes = (running.slot_bytes + 63) / 64 * 64;
        bool is_small = rooted && running.segments == 1 && running.slot_bytes * program.work_slots <= small_bytes;
        running.area = is_tiny ? Running::Area::tiny : is_small ? Running::Area::small : Running::Area::large;
        running.segment_elements = std::min(longest, running.slot_bytes / element);
        running.beyond_caches = call.elements * element * size() > cached_bytes;
    }
    const bool in_turns = running.area == Running::Area::tiny || running.area == Running::Area::large;
    // The area that comes next was last used two uses ago.
    if (in_turns) await_all(running, settled_);
    const uint32_t count = program.instructions;
    const uint64_t start = base_ + 1;
    for (uint32_t segment = 0; segment < running.segments; ++segment) {
        uint64_t here = start + uint64_t{segment} * program.stride;
        if (segment == 1) await_all(running, base_);
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
            {
                std::optional<Writing> writing;
                if (program.writes_peers[i]) {
                    Post& own = *posts_[rank_];
                    writing.emplace(own.writing, own.sleepers, fenced_by_sleepers_);
                    confirm(running, program.destinations.begin(i), program.destinations.end(i));
                }
                execute(running, call, program, i, segment);
            }
            if (program.reads_peers[i]) {
                // As in a sequence lock: a rank that gives up changes its standing before anyone can change its
                // arrays. So a rank that has read changed data also sees, after this fence, that the other gave up.
                fence<std::memory_order_acquire>();
                confirm(running, program.sources.begin(i), program.sources.end(i));
            }
            bool last = i + 1 == count && segment + 1 == running.segments;
            if (program.announce[i] && (!last || !program.leave.empty())) publish_progress(here + i + 1);
            if (trace_)
                trace_->push_back(
                    {call_, program.name, segment, i, began, ready, now(), running.segment_elements * element});
        }
        if (in_turns && !program.one_area) ++areas_used_;
    }
    if (in_turns && program.one_area) ++areas_used_;
    uint64_t last = start + uint64_t{running.segments - 1} * program.stride;
    for (const Wait& wait : program.leave) {
        await_peer(running, wait.rank, last + wait.count);
        meet(running, wait.rank);
    }
    base_ = start + uint64_t{running.segments} * program.stride + 1;
    ends_[call_ % chains_kept] = base_;
    if (in_turns) {
        settled_ = running.segments > 1 && !program.one_area ? last : last_end_;
        last_end_ = base_;
    }
    // This saves one cache-line transfer per call in a sequence of small calls. A rank that has seen all ranks in this
    // call, and has published something itself, need not publish the end of the call, unless a peer waits for that in
    // this very call. Its publication tells the others that it has ended the previous call, which is what they wait for
    // in the next call. They wait for the end of this call only in the call after the next, or later; by then it has
    // published something again, or it has not reached the next call.
    if (!program.silent || running.segments > 1) publish_progress(base_);
    // Release: a peer that sees that this rank has done its part also sees the progress that it would wait for.
    posts_[rank_]->last_done.store(call_, std::memory_order_release);
    posts_[rank_]->records[call_ % records_kept].end(ticks());
}

void Communicator::execute(Running& running, const Call& call, const Program& program, uint32_t i, uint32_t segment) {
    const Slot *source = program.sources.begin(i), *source_end = program.sources.end(i);
    if (source == source_end || call.elements == 0) return;
    uint64_t length = running.length_of(i);
    uint64_t start = std::min(length, segment * running.segment_elements);
    uint64_t elements = std::min(length, start + running.segment_elements) - start;
    if (elements == 0) return;
    const void** sources = sources_.data();
    void** destinations = destinations_.data();
    size_t source_count = 0, destination_count = 0;
    const void* from_array = nullptr;
    bool into_work = false;
    for (; source != source_end; ++source) {
        sources[source_count++] = locate(running, *source, start);
        if (source->space != Space::work) from_array = sources[source_count - 1];
    }
    for (const Slot* slot = program.destinations.begin(i); slot != program.destinations.end(i); ++slot) {
        destinations[destination_count++] = locate(running, *slot, start);
        into_work |= slot->space == Space::work;
    }
    // From array to array memcpy is faster, and data in the work area are in the cache.
    const void* from_memory = program.copies_in_rows && into_work && running.beyond_caches ? from_array : nullptr;
    if (program.memory == Memory::readable)
        fetch_and_combine(running, call, program.sources.begin(i), sources, source_count, destinations,
                          destination_count, elements, program.complete[i]);
    else
        combine(call, sources, source_count, destinations, destination_count, elements, program.complete[i],
                from_memory);
}

void Communicator::combine(const Call& call, const void* const* sources, size_t source_count, void* const* destinations,
                           size_t destination_count, uint64_t elements, bool complete, const void* from_memory) const {
    if (source_count == 1) {
        copy(sources[0], destinations, destination_count, elements * size_of(call.dtype), from_memory != nullptr);
    } else if (call.fold) {
        bool divide = call.op == static_cast<uint8_t>(Op::average) && complete;
        call.fold(sources, source_count, destinations, destination_count, elements, divide ? size() : 1, from_memory);
    } else {
        call.custom_fold(sources, source_count, destinations, destination_count, elements);
    }
}

// The same where sources may be in the memory of other processes: data to copy are fetched directly to their
// destination, data to fold tile by tile, so that they are still in the cache when they are folded.
void Communicator::fetch_and_combine(Running& running, const Call& call, const Slot* slots, const void** sources,
                                     size_t source_count, void** destinations, size_t destination_count,
                                     uint64_t elements, bool complete) {
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
    // Usually a tile has many elements; with very many sources it has one element of each.
    fetched_.resize(std::max(fetched_bytes, far * element));
    near_.resize(source_count);
    here_.resize(destination_count);
    uint64_t most = fetched_.size() / far / element;
    for (uint64_t done = 0; done < elements;) {
        uint64_t now = std::min(most, elements - done);
        const void** near = near_.data();
        char* free = fetched_.data();
        for (size_t i = 0; i < source_count; ++i) {
            near[i] = static_cast<const char*>(sources[i]) + done * element;
            if (!is_far(i)) continue;
            fetch_from(running, slots[i].rank, near[i], free, now * element);
            near[i] = free;
            free += now * element;
        }
        void** here = here_.data();
        for (size_t i = 0; i < destination_count; ++i) here[i] = static_cast<char*>(destinations[i]) + done * element;
        combine(call, near, source_count, here, destination_count, now, complete);
        done += now;
    }
}

void Communicator::fetch_from(Running& running, uint32_t peer, const void* source, void* target, size_t bytes) {
    int error = fetch(*members_[peer].arena, reinterpret_cast<uint64_t>(source), target, bytes);
    if (error == 0) return;
    check_peers(running, peer, true);  // if it gave up, that error explains more
    if (error == ESRCH || life_of(*members_[peer].arena) == Life::dead) fail_lost(running, {peer}, {});
    blame_.lost(peer);
    throw EngineError(
        Fault::rank_lost,
        joined({name_of(running), ": the array of ", blame_.named(peer), " cannot be read (", std::strerror(error),
                "); ALLFOLD_FETCH=0 on every rank avoids reading arrays ", where(call_)}));
}

// The address of a slot's chunk, from its element `start` on. A work slot holds only the current segment.
char* Communicator::locate(const Running& running, const Slot& slot, uint64_t start) const {
    const size_t element = running.element;
    if (slot.space == Space::work) {
        size_t area = areas_used_ & 1, offset = slot.index * running.slot_bytes;
        if (running.area == Running::Area::tiny) return posts_[slot.rank]->inline_work[area] + offset;
        if (running.area == Running::Area::large) return work_[slot.rank] + area * window_bytes + offset;
        return work_[slot.rank] + 2 * window_bytes + call_ % small_areas * small_bytes + offset;
    }
    uint64_t skip = running.first_in_array(slot);
    const char* base = slot.space == Space::input ? running.inputs[slot.rank] : running.outputs[slot.rank];
    return const_cast<char*>(base) + (skip + start) * element;
}

// Waiting. What can go wrong meanwhile is in communicator_wait.cpp.

void Communicator::publish_progress(uint64_t value) {
    posts_[rank_]->core.store(current_core(), std::memory_order_relaxed);
    publish(posts_[rank_]->progress, posts_[rank_]->sleepers, value, fenced_by_sleepers_);
}

void Communicator::await_peer(Running& running, uint32_t peer, uint64_t target) {
    // Progress that was seen is not read again: a peer's cache line is fetched only when new progress is expected.
    if (seen_[peer] >= target) return;
    Post& post = *posts_[peer];
    bool took_long = false;
    seen_[peer] = await(
        post.progress, post.sleepers, post.core, target, patience_, crowd_,
        [&] {
            if (running.before_blocking) running.before_blocking();
        },
        [&] {
            took_long = true;
            mark_wait(peer, target);
            return on_stall(running, peer);
        });
    if (!took_long) return;
    posts_[rank_]->waiting_for.store(0, std::memory_order_relaxed);
    fails_at_.store(0, std::memory_order_relaxed);
}

void Communicator::await_all(Running& running, uint64_t target) {
    for (uint32_t peer = 0; peer < size(); ++peer)
        if (peer != rank_) await_peer(running, peer, target);
}

void Communicator::meet(Running& running, uint32_t peer) {
    if (running.met[peer]) return;
    running.met[peer] = 1;
    if (is_elsewhere(*posts_[peer])) [[unlikely]]
        fail_mismatch(running);
}

// The owners of these arrays must still be in the call. Before writing into them: see Writing. After reading from them
// and before any rank learns of it: see perform().
void Communicator::confirm(Running& running, const Slot* slot, const Slot* end) {
    for (; slot != end; ++slot) {
        if (slot->rank == rank_ || slot->space == Space::work) continue;
        if (is_open(slot->rank)) [[likely]]
            continue;
        // For the other ranks, which follow these marks to the rank that all are waiting for.
        mark_wait(slot->rank, never);
        check_peers(running, slot->rank, true);
        posts_[rank_]->waiting_for.store(0, std::memory_order_relaxed);
    }
}

}  // namespace allfold
