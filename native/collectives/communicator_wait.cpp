// What can go wrong while a rank waits for the others in a call, and the errors for it.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "collectives/communicator_parts.hpp"
#include "shared/blame.hpp"
#include "shared/peers.hpp"
#include "shared/stack_query.hpp"

namespace allfold {

using namespace std::chrono_literals;

namespace {

constexpr auto first_nap = 1ms;
// How long a rank that gives up waits for a peer that is writing into its array.
constexpr auto writes_within = 200ms;
// How long a rank that leaves waits for the others, to compare the last call with them.
constexpr auto leave_taking = 1s;
// How much longer than its timeout a call waits for its turn: for the call before it to begin, and for it to fail.
constexpr Clock::duration begins_within = 2s, fails_within = 5s;

void pause_for_a_moment() {
    timespec moment{0, 1000000};
    nanosleep(&moment, nullptr);
}

}  // namespace

Clock::duration Communicator::on_stall(Running& running, uint32_t peer) {
    auto time = Clock::now();
    bool is_first = running.deadline == Clock::time_point{};
    if (is_first) {
        running.deadline = time + running.timeout;
        running.next_look = time + first_nap;
    }
    // Relaxed, here and where it is read: a thread that waits for its turn needs this number only.
    fails_at_.store(running.deadline.time_since_epoch().count(), std::memory_order_relaxed);
    if (is_first) return std::min<Clock::duration>(first_nap, running.timeout);
    if (running.interrupted) {
        running.interrupted();
        check_here("a collective");  // a signal handler may have forked, and this may be the child
    }
    // What peers say of themselves is read at every stall. Asking the system costs more than most waits take.
    bool asks = time >= running.next_look;
    if (asks) running.next_look = time + nap;
    check_peers(running, peer, asks);
    if (time >= running.deadline) fail_timeout(running, peer);
    return std::min<Clock::duration>(running.next_look - time, running.deadline - time);
}

// Are all peers still there, and in the same call? Called while waiting for `awaited`. `asks`: also ask the system
// whether their processes are alive.
void Communicator::check_peers(Running& running, uint32_t awaited, bool asks) {
    std::vector<uint32_t> out, gave_up;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        Post& post = *posts_[peer];
        // Acquire, and read before last_done: so a change of a peer after it had done its part is not mistaken for one
        // before.
        auto standing = static_cast<Standing>(post.standing.load(std::memory_order_acquire));
        // By another thread of this process. (A thread that closes the communicator lets calls that have begun finish.)
        if (peer == rank_) check_not_aborted(name_of(running));
        // Ranks in different calls may wait for each other in programs that do not match, and then never hear from each
        // other.
        if (post.last_call.load(std::memory_order_acquire) >= call_ && is_elsewhere(post)) fail_mismatch(running);
        // This peer has done its part of this call: what happened to it since does not matter here.
        if (peer == rank_ || post.last_done.load(std::memory_order_acquire) >= call_) continue;
        if (standing == Standing::mismatch) fail_mismatch(running);
        if (standing == Standing::late) fail_late(running, peer, awaited);
        bool left = standing == Standing::left && post.last_call.load(std::memory_order_relaxed) < call_;
        if (standing == Standing::aborted)
            gave_up.push_back(peer);  // dead or alive: most give up because of another rank
        else if (left || (asks && life_of(*members_[peer].arena) == Life::dead))
            out.push_back(peer);
    }
    // A rank that is really lost is named before those that gave up because of it.
    if (!out.empty()) fail_lost(running, out, {});
    // One that gave up may have done so because others did not come, or came and are stuck.
    if (!gave_up.empty()) {
        Late late{.came = false, .ranks = absent()};
        if (uint32_t stuck = held_up_by(awaited); late.ranks.empty() && is_open(stuck) && !waits(stuck))
            late = {.came = true, .ranks = {stuck}};
        fail_lost(running, gave_up, late);
    }
}

void Communicator::compare_last_call(const std::function<void()>& interrupted) {
    Turn turn(*this, "close", leave_taking, nullptr, interrupted);
    if (call_ == 0 || static_cast<Standing>(posts_[rank_]->standing.load(std::memory_order_relaxed)) != Standing::open)
        return;
    std::function<void()> nothing;
    CallRecord own;
    posts_[rank_]->records[call_ % records_kept].load(call_, own);  // nobody else writes there
    Running running{.before_blocking = nothing,
                    .interrupted = interrupted,
                    .record = own,
                    .timeout = leave_taking,
                    .met = met_,
                    .inputs = inputs_,
                    .outputs = outputs_,
                    .far = far_};
    auto limit = Clock::now() + leave_taking;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        if (running.met[peer]) continue;
        // Acquire: the chain of the call that the peer has come to.
        while (posts_[peer]->last_call.load(std::memory_order_acquire) < call_ && Clock::now() < limit &&
               is_here(peer)) {
            if (interrupted) interrupted();
            pause_for_a_moment();
        }
        if (posts_[peer]->last_call.load(std::memory_order_acquire) < call_) continue;
        try {
            meet(running, peer);
        } catch (const EngineError& error) {
            first_error_->set(error);
            throw;
        }
    }
}

bool Communicator::is_here(uint32_t peer) const {
    return is_open(peer) && life_of(*members_[peer].arena) == Life::alive;
}

// The call has failed on this rank, and from now on its arrays belong to the caller again. A peer that comes late must
// not believe what it reads there, nor write there: it looks at the standing (confirm()). A peer that is writing at
// this moment is waited for. If that takes long, because it is stopped or its core is busy, the array is taken away
// from it.
void Communicator::let_go(const Running& running, const Call& call) {
    retire(Standing::aborted);
    // Closed while this call was under way: peers would take it for a rank that does its part and then leaves.
    auto left = static_cast<uint32_t>(Standing::left);
    posts_[rank_]->standing.compare_exchange_strong(left, static_cast<uint32_t>(Standing::aborted));
    // The standing before whatever the caller does with its arrays, and before the look at the marks of the peers.
    order_all(posts_[rank_]->sleepers);
    const CallRecord& record = running.record;
    bool in_arena = record.reach == Reach::arena || record.reach == Reach::arena_and_fetches;
    if (!in_arena || record.output < 0 || record.signature.elements == 0) return;
    fence_for_all();                                         // see Writing
    if (running.before_blocking) running.before_blocking();  // peers may be threads of this process
    bool is_free = true;
    auto limit = Clock::now() + writes_within;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        // Acquire, here and below: what the peer has written is there before the caller reads or frees the array.
        std::atomic<uint32_t>& mark = posts_[peer]->writing;
        const uint32_t seen = mark.load(std::memory_order_acquire);
        if (peer == rank_ || seen % 2 == 0) continue;
        auto writes = [&] { return mark.load(std::memory_order_acquire) == seen; };
        while (writes() && Clock::now() < limit && !is_stopped(*members_[peer].arena)) pause_for_a_moment();
        is_free &= !writes() || life_of(*members_[peer].arena) == Life::dead;
    }
    if (is_free) return;
    Arena& arena = *members_[rank_].arena;
    arena.quarantine(call.output, members_[rank_].post);
    const Program& program = *call.private_program;
    if (!call.pinned) arena.take_back(call.output, bytes_of(Space::output, call, program));
}

// The ranks that may still come to this call and have not.
std::vector<uint32_t> Communicator::absent() const {
    std::vector<uint32_t> ranks;
    for (uint32_t peer = 0; peer < size(); ++peer)
        if (is_open(peer) && posts_[peer]->last_call.load(std::memory_order_acquire) < call_) ranks.push_back(peer);
    return ranks;
}

void Communicator::fail_lost(Running& running, const std::vector<uint32_t>& peers, const Late& late) {
    blame_.lost(peers.front());
    std::string text = std::string(name_of(running)) + ": " + blame_.sentence(peers);
    if (!late.ranks.empty()) text += "; " + late.sentence();
    throw EngineError(Fault::rank_lost, text + " " + where(call_));
}

void Communicator::fail_mismatch(Running& running) {
    retire(Standing::mismatch);
    if (running.before_blocking) running.before_blocking();  // peers may be threads of this process
    // Give ranks that have not arrived a moment to do so, so that all of them can be named.
    auto limit = Clock::now() + std::min<Clock::duration>(500ms, running.timeout);
    auto arrived = [&](uint32_t peer) { return posts_[peer]->last_call.load(std::memory_order_acquire) >= call_; };
    for (uint32_t peer = 0; peer < size(); ++peer)
        while (!arrived(peer) && Clock::now() < limit) pause_for_a_moment();
    // A rank that needed no peer may have left the call that differed, and notice in a later one: name the first.
    std::vector<std::optional<Signature>> calls(size());
    bool is_same = true;
    uint64_t call = call_ > records_kept / 2 ? call_ - records_kept / 2 : 0;
    while (is_same && call < call_) {
        ++call;
        for (uint32_t peer = 0; peer < size(); ++peer) {
            CallRecord record;
            bool is_there = posts_[peer]->records[call % records_kept].load(call, record);
            calls[peer] = is_there ? std::optional(record.signature) : std::nullopt;
        }
        for (const auto& one : calls) is_same &= !one || digest_of(*one) == digest_of(*calls[rank_]);
    }
    throw EngineError(Fault::mismatch, difference(calls) + " " + where(call));
}

// Another rank has given up waiting. A rank that has waited about as long reports what it waits for itself; a rank that
// has just arrived cannot, but may see whom the other waited for.
void Communicator::fail_late(Running& running, uint32_t late, uint32_t awaited) {
    bool waits = running.deadline != Clock::time_point{};
    if (waits && running.deadline - Clock::now() < running.timeout / 2) fail_timeout(running, awaited);
    // This rank gives up because of the same rank as the other one, and says so.
    if (uint32_t whom = posts_[late]->waiting_for.load(std::memory_order_relaxed)) blame_late(whom - 1);
    retire(Standing::late);
    std::vector<uint32_t> absent = this->absent();
    std::string text = std::string(name_of(running)) + ": ";
    uint32_t peer = held_up_by(awaited);
    if (!is_open(peer)) peer = held_up_by(late);
    if (!absent.empty())
        text += Late{.came = false, .ranks = absent}.sentence() + "; ";
    else if (is_open(peer))
        text += Late{.came = true, .ranks = {peer}}.sentence() + "; ";
    throw EngineError(Fault::timeout, text + blame_.fate(late) + " " + where(call_));
}

void Communicator::fail_timeout(Running& running, uint32_t peer) {
    Late late = late_for(call_, peer);
    uint32_t culprit = held_up_by(peer);
    // The awaited rank may have come just now, while others have not.
    if (!late.came && posts_[culprit]->last_call.load(std::memory_order_acquire) >= call_)
        culprit = held_up_by(late.ranks.front());
    blame_late(culprit);
    retire(Standing::late);
    char within[48];
    std::snprintf(within, sizeof within, " within %g s ", std::chrono::duration<double>(running.timeout).count());
    std::string text = std::string(name_of(running)) + ": " + late.sentence() + within + where(call_);
    // What is known about the ranks that are waited for; only about a few, because a list of a thousand would not help.
    constexpr size_t most_described = 4;
    for (size_t i = 0; i < std::min(late.ranks.size(), most_described); ++i) text += last_seen(late.ranks[i]);
    throw EngineError(Fault::timeout, text);
}

// Whom a rank waits for when it gives up stays in its post, for ranks that come later (Blame::fate). By then that one
// may wait for nobody any more, so this must be the rank at the end of the chain. To be called before retire(), which
// releases it.
void Communicator::blame_late(uint32_t culprit) {
    posts_[rank_]->waiting_for.store(culprit + 1, std::memory_order_relaxed);
}

bool Communicator::gives_up_turn(Clock::time_point since, Clock::duration timeout) const {
    auto limit = since + timeout, time = Clock::now();
    if (time < limit) return false;
    auto standing = static_cast<Standing>(posts_[rank_]->standing.load(std::memory_order_relaxed));
    auto fails_at = fails_at_.load(std::memory_order_relaxed);
    // The call before it fails, or will within as much time again. Composing the error takes a moment too.
    auto latest = limit + std::min(timeout, fails_within);
    if (standing == Standing::late || standing == Standing::mismatch ||
        (fails_at != 0 && Clock::time_point(Clock::duration(fails_at)) <= latest))
        return time >= latest + fails_within;
    // It waits for nobody: perhaps its thread has not got a core yet.
    return fails_at != 0 || time >= limit + begins_within;
}

// Another thread has the turn. If it waits for a rank in its call, that rank keeps this one waiting too.
EngineError Communicator::not_my_turn(const char* name, Clock::duration timeout) const {
    const Post& own = *posts_[rank_];
    char within[48];
    std::snprintf(within, sizeof within, "%g s", std::chrono::duration<double>(timeout).count());
    std::string text = std::string(name) + ": another call of this rank was still under way after " + within;
    uint64_t call = own.last_call.load(std::memory_order_relaxed);
    uint32_t peer = own.waiting_for.load(std::memory_order_relaxed);
    Late late = late_for(call, peer == 0 ? rank_ : peer - 1);
    // Late for the call before, if that has begun and waits: somebody has not come to it, or keeps it waiting.
    if (own.last_done.load(std::memory_order_relaxed) < call && (peer != 0 || !late.came))
        text += ", because " + late.sentence();
    return EngineError(Fault::timeout, text + "; calls on one communicator take turns (" + label_ + ")");
}

Communicator::Late Communicator::late_for(uint64_t call, uint32_t awaited) const {
    Late late{.came = false, .ranks = {}};
    for (uint32_t peer = 0; peer < size(); ++peer)
        if (peer != rank_ && posts_[peer]->last_call.load(std::memory_order_acquire) < call) late.ranks.push_back(peer);
    return late.ranks.empty() ? Late{.came = true, .ranks = {held_up_by(awaited)}} : late;
}

std::string Communicator::Late::sentence() const {
    return list_of(ranks) + (came ? " came but did not do its part" : " did not come");
}

// Whether a rank waits for another one, and is able to notice when that comes.
bool Communicator::waits(uint32_t peer) const {
    return posts_[peer]->waiting_for.load(std::memory_order_relaxed) != 0 && !is_stopped(*members_[peer].arena);
}

// Follows `peer` to the rank that it waits for, from there to the next, and so on. Ends at a stopped rank: what that
// one waited for may have arrived since.
uint32_t Communicator::held_up_by(uint32_t peer) const {
    for (uint32_t hops = 0; hops < size() && waits(peer); ++hops) {
        uint32_t next = posts_[peer]->waiting_for.load(std::memory_order_relaxed);
        if (next == 0 || next > size() || next - 1 == rank_) break;
        peer = next - 1;
    }
    return peer;
}

// What a rank was last seen doing, and which line of its program it is at, if it can still report that.
std::string Communicator::last_seen(uint32_t peer) const {
    const Post& post = *posts_[peer];
    std::string text = "; " + blame_.named(peer) + " ";
    uint64_t call = post.last_call.load(std::memory_order_acquire);
    CallRecord record;
    bool known = post.records[call % records_kept].load(call, record);
    if (call == 0) {
        text += "has made no call yet";
    } else {
        bool done = post.last_done.load(std::memory_order_acquire) >= call;
        text += (done ? "has done call " : "is in call ") + std::to_string(call);
        if (known) text += ", " + in_words(record.signature);
        uint32_t waits = post.waiting_for.load(std::memory_order_relaxed);
        if (!done && waits) text += ", and waits for rank " + std::to_string(waits - 1);
    }
    if (is_stopped(*members_[peer].arena)) return text + "; it is stopped (SIGSTOP or a debugger)";
    // The first line is for errors like this one, the rest for `allfold doctor`.
    Directory& directory = members_[peer].arena->directory();
    if (directory.answers.load(std::memory_order_relaxed) == 0) return text;
    std::string answer = ask(directory, 300ms);
    if (answer.empty()) return text + "; it does not say where it is: its interpreter is busy, or stuck";
    return text + "; it is at " + answer.substr(0, answer.find('\n'));
}

const char* Communicator::name_of(const Running& running) {
    return collectives[running.record.signature.collective].name.c_str();
}

std::string Communicator::where(uint64_t call) const { return "(call " + std::to_string(call) + " of " + label_ + ")"; }

}  // namespace allfold
