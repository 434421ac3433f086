// Failures while a rank waits for others in a call, and their errors.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "collectives/communicator_parts.hpp"
#include "peers/blame.hpp"
#include "peers/peers.hpp"
#include "peers/stack_query.hpp"
#include "shared/text.hpp"

namespace allfold {

using namespace std::chrono_literals;

namespace {

constexpr auto first_nap = 1ms;
// For a peer that is writing into the array of a rank that gives up to finish.
constexpr auto writes_within = 200ms;
// For the others to reach the last call of a rank that leaves, which then compares it.
constexpr auto leave_taking = 1s;
// How much longer than its timeout a call waits for its turn, so that the call before it can begin and fail.
constexpr Clock::duration begins_within = 2s, fails_within = 5s;
// For a rank to notice that the one it waited for has arrived.
constexpr auto notices_within = 50ms;

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
    // The peers' posts are read at every stall. Asking the system costs more than most waits take.
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
        // This peer has done its part of this call; what happened to it since then does not matter here.
        if (peer == rank_ || post.last_done.load(std::memory_order_acquire) >= call_) continue;
        if (standing == Standing::mismatch) fail_mismatch(running);
        if (standing == Standing::late) fail_late(running, peer, awaited);
        bool left = standing == Standing::left && post.last_call.load(std::memory_order_relaxed) < call_;
        if (standing == Standing::aborted)
            gave_up.push_back(peer);  // dead or alive: most give up because of another rank
        else if (left ||
                 // The system is asked after the post was read: meanwhile the peer may have done its part, closed and
                 // ended. What a dead peer has posted no longer changes.
                 (asks && life_of(*members_[peer].arena) == Life::dead &&
                  post.last_done.load(std::memory_order_acquire) < call_))
            out.push_back(peer);
    }
    // The cause is there, if somebody gave up here because of it.
    for (const Communicator* outer = outer_.get(); outer; outer = outer->outer_.get())
        outer->check_given_up_here(name_of(running), blame_, [&](uint32_t peer) {
            const Post& post = *posts_[peer];  // as above: acquire, behind the standing
            return peer == rank_ || post.last_done.load(std::memory_order_acquire) < call_;
        });
    // A rank that is really lost is named before those that gave up because of it.
    if (!out.empty()) fail_lost(running, out, {});
    // A rank that gave up may have done so because others did not arrive, or arrived and are stuck.
    if (!gave_up.empty()) {
        if (blame_.is_told_by(gave_up)) fail_lost(running, gave_up, {});
        Late late{.came = false, .ranks = absent()};
        if (uint32_t stuck = held_up_by(awaited); late.ranks.empty() && is_open(stuck) && !waits(stuck))
            late = {.came = true, .ranks = {stuck}};
        fail_lost(running, gave_up, late);
    }
}

std::vector<uint32_t> Communicator::given_up_here(const Needed& needed) const {
    std::vector<uint32_t> ranks;
    for (uint32_t peer = 0; peer < size(); ++peer) {
        // Acquire: what the rank did before it gave up, which `needed` asks for, and why it did.
        auto standing = static_cast<Standing>(posts_[peer]->standing.load(std::memory_order_acquire));
        if (standing == Standing::open || (peer == rank_ && standing == Standing::left)) continue;
        if (needed(peer)) ranks.push_back(peer);
    }
    return ranks;
}

// `asker`: of the communicator (this one or an inner one) that will give up because of what is found here.
void Communicator::check_given_up_here(const char* name, const Blame& asker, const Needed& needed) const {
    std::vector<uint32_t> ranks = given_up_here(needed);
    if (ranks.empty()) return;
    auto stands = [&](Standing standing) {
        return std::any_of(ranks.begin(), ranks.end(), [&](uint32_t rank) {
            return posts_[rank]->standing.load(std::memory_order_relaxed) == static_cast<uint32_t>(standing);
        });
    };
    if (std::find(ranks.begin(), ranks.end(), rank_) != ranks.end()) {
        // A timeout and a mismatch are announced before the error that describes them is there.
        bool is_aborted =
            posts_[rank_]->standing.load(std::memory_order_relaxed) == static_cast<uint32_t>(Standing::aborted);
        first_error_->say_again(name, is_aborted ? 0s : 2s);
        throw EngineError(Fault::rank_lost, joined({name, ": this communicator was aborted (", label_, ")"}));
    }
    if (stands(Standing::mismatch)) {
        throw mismatch_up_to(last_call());
    }
    std::vector<uint32_t> firsts;
    for (uint32_t rank : ranks) firsts.push_back(blame_.first(rank));
    asker.lost_elsewhere(firsts);
    throw EngineError(stands(Standing::late) ? Fault::timeout : Fault::rank_lost,
                      joined({name, ": ", blame_.sentence(ranks), " (", label_, ")"}));
}

void Communicator::check_given_up(const char* name, const std::vector<uint32_t>& ranks) const {
    Needed needed = [&](uint32_t rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); };
    // A mismatch explains most, wherever it was found.
    for (const Communicator* one = this; one; one = one->outer_.get())
        for (uint32_t rank : one->given_up_here(needed))
            if (one->posts_[rank]->standing.load(std::memory_order_relaxed) ==
                static_cast<uint32_t>(Standing::mismatch))
                one->check_given_up_here(name, blame_, needed);
    for (const Communicator* one = this; one; one = one->outer_.get()) one->check_given_up_here(name, blame_, needed);
}

std::vector<uint32_t> Communicator::given_up(const std::vector<uint32_t>& ranks) const {
    std::vector<uint32_t> found;
    for (const Communicator* one = this; one && found.empty(); one = one->outer_.get())
        for (uint32_t rank : one->given_up_here(
                 [&](uint32_t each) { return std::find(ranks.begin(), ranks.end(), each) != ranks.end(); }))
            found.push_back(one->blame_.first(rank));
    return found;
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
        // Acquire: the chain of the call that the peer has reached.
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

// The call has failed on this rank, and from now on its arrays belong to the caller again. A peer that arrives late
// must neither use what it reads there nor write there: it checks the standing (confirm()). This rank waits for a peer
// that is writing at this moment. If that takes long, because the peer is stopped or its core is busy, the array gets
// new pages, and the peer keeps the old ones.
void Communicator::let_go(const Running& running, const Call& call) {
    retire(Standing::aborted);
    // Closed during this call: peers would mistake this rank for one that does its part and then leaves.
    auto left = static_cast<uint32_t>(Standing::left);
    posts_[rank_]->standing.compare_exchange_strong(left, static_cast<uint32_t>(Standing::aborted));
    // The standing changes before the caller uses its arrays, and before the peers' marks are checked.
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

// The ranks that may still arrive at this call and have not.
std::vector<uint32_t> Communicator::absent() const {
    std::vector<uint32_t> ranks;
    for (uint32_t peer = 0; peer < size(); ++peer)
        if (is_open(peer) && posts_[peer]->last_call.load(std::memory_order_acquire) < call_) ranks.push_back(peer);
    return ranks;
}

void Communicator::fail_lost(Running& running, const std::vector<uint32_t>& peers, const Late& late) {
    blame_.lost(peers.front());
    throw EngineError(Fault::rank_lost,
                      joined({name_of(running), ": ", blame_.sentence(peers), late.ranks.empty() ? "" : "; ",
                              late.ranks.empty() ? "" : late.sentence(), " ", where(call_)}));
}

void Communicator::fail_mismatch(Running& running) {
    retire(Standing::mismatch);
    if (running.before_blocking) running.before_blocking();  // peers may be threads of this process
    // Give ranks that have not arrived a moment, so that all of them can be named.
    auto limit = Clock::now() + std::min<Clock::duration>(500ms, running.timeout);
    auto arrived = [&](uint32_t peer) { return posts_[peer]->last_call.load(std::memory_order_acquire) >= call_; };
    for (uint32_t peer = 0; peer < size(); ++peer)
        while (!arrived(peer) && Clock::now() < limit) pause_for_a_moment();
    throw mismatch_up_to(call_);
}

// How the ranks' calls differ, in this call or before: a rank that needed no peer may have left the call that differed,
// and notice it in a later one. So the first difference is named.
EngineError Communicator::mismatch_up_to(uint64_t last) const {
    uint64_t call = last;
    std::vector<std::optional<Signature>> calls;
    for (const auto& record : first_difference(call))
        calls.push_back(record ? std::optional(record->signature) : std::nullopt);
    return {Fault::mismatch, joined({difference(calls), " ", where(call)})};
}

std::vector<std::optional<CallRecord>> Communicator::first_difference() const {
    uint64_t last = last_call();
    return first_difference(last);
}

// Of the calls up to `last`, which becomes the number of the one that was found.
std::vector<std::optional<CallRecord>> Communicator::first_difference(uint64_t& last) const {
    std::vector<std::optional<CallRecord>> calls(size());
    bool is_same = true;
    uint64_t call = last > records_kept / 2 ? last - records_kept / 2 : 0;
    while (is_same && call < last) {
        ++call;
        const CallRecord* first = nullptr;
        for (uint32_t peer = 0; peer < size(); ++peer) {
            CallRecord& record = calls[peer].emplace();
            if (!posts_[peer]->records[call % records_kept].load(call, record)) {
                calls[peer].reset();
                continue;
            }
            if (!first) first = &record;
            is_same &= digest_of(record.signature) == digest_of(first->signature) && record.number == first->number;
        }
    }
    last = call;
    return calls;
}

uint64_t Communicator::last_call() const {
    uint64_t last = 0;
    for (const Post* post : posts_) last = std::max(last, post->last_call.load(std::memory_order_acquire));
    return last;
}

// Another rank has given up waiting. A rank that has waited about as long reports what it waits for itself; one that
// has just arrived cannot, but may see which rank the other waited for.
void Communicator::fail_late(Running& running, uint32_t late, uint32_t awaited) {
    bool waits = running.deadline != Clock::time_point{};
    if (waits && running.deadline - Clock::now() < running.timeout / 2) fail_timeout(running, awaited);
    // This rank gives up because of the same rank as the other one, and records that.
    if (uint32_t whom = posts_[late]->waiting_for.load(std::memory_order_relaxed)) blame_late(whom - 1);
    retire(Standing::late);
    std::vector<uint32_t> absent = this->absent();
    std::string whom;
    uint32_t peer = held_up_by(awaited);
    if (!is_open(peer)) peer = held_up_by(late);
    if (!absent.empty())
        whom = Late{.came = false, .ranks = absent}.sentence() + "; ";
    else if (is_open(peer))
        whom = Late{.came = true, .ranks = {peer}}.sentence() + "; ";
    throw EngineError(Fault::timeout, joined({name_of(running), ": ", whom, blame_.fate(late), " ", where(call_)}));
}

void Communicator::fail_timeout(Running& running, uint32_t peer) {
    Late late = late_for(call_, peer);
    uint32_t culprit = held_up_by(peer);
    // The awaited rank may have arrived just now, while others have not.
    if (!late.came && posts_[culprit]->last_call.load(std::memory_order_acquire) >= call_)
        culprit = held_up_by(late.ranks.front());
    blame_late(culprit);
    retire(Standing::late);
    char within[48];
    std::snprintf(within, sizeof within, " within %g s ", std::chrono::duration<double>(running.timeout).count());
    std::string text = joined({name_of(running), ": ", late.sentence(), within, where(call_)});
    // Details about the ranks that are waited for; only about a few, because a list of a thousand would not help.
    constexpr size_t most_described = 4;
    for (size_t i = 0; i < std::min(late.ranks.size(), most_described); ++i) text += last_seen(late.ranks[i]);
    throw EngineError(Fault::timeout, text);
}

// The rank that this one waits for when it gives up stays in its post, for ranks that arrive later (Blame::fate). By
// then that rank may no longer wait for any other, so this must be the rank at the end of the chain. To be called
// before retire(), which releases it.
void Communicator::blame_late(uint32_t culprit) { mark_wait(culprit, never); }

bool Communicator::gives_up_turn(Clock::time_point since, Clock::duration timeout) const {
    auto limit = since + timeout, time = Clock::now();
    if (time < limit) return false;
    auto standing = static_cast<Standing>(posts_[rank_]->standing.load(std::memory_order_relaxed));
    auto fails_at = fails_at_.load(std::memory_order_relaxed);
    // The call before it has failed, or will within as much time again. Composing the error takes a moment too.
    auto latest = limit + std::min(timeout, fails_within);
    if (standing == Standing::late || standing == Standing::mismatch ||
        (fails_at != 0 && Clock::time_point(Clock::duration(fails_at)) <= latest))
        return time >= latest + fails_within;
    // It waits for no rank: perhaps its thread has no core yet.
    return fails_at != 0 || time >= limit + begins_within;
}

// Another thread has the turn. If it waits for a rank in its call, that rank keeps this one waiting too.
EngineError Communicator::not_my_turn(const char* name, Clock::duration timeout) const {
    const Post& own = *posts_[rank_];
    char within[48];
    std::snprintf(within, sizeof within, "%g s", std::chrono::duration<double>(timeout).count());
    std::string text = joined({name, ": another call of this rank was still in progress after ", within});
    uint64_t call = own.last_call.load(std::memory_order_relaxed);
    uint32_t peer = own.waiting_for.load(std::memory_order_relaxed);
    Late late = late_for(call, peer == 0 ? rank_ : peer - 1);
    // The ranks that are late for the call before, if that has begun and waits: they did not arrive, or keep it
    // waiting.
    if (own.last_done.load(std::memory_order_relaxed) < call && (peer != 0 || !late.came))
        text += ", because " + late.sentence();
    return EngineError(Fault::timeout, joined({text, "; calls on one communicator take turns (", label_, ")"}));
}

Communicator::Late Communicator::late_for(uint64_t call, uint32_t awaited) const {
    Late late{.came = false, .ranks = {}};
    for (uint32_t peer = 0; peer < size(); ++peer)
        if (peer != rank_ && posts_[peer]->last_call.load(std::memory_order_acquire) < call) late.ranks.push_back(peer);
    return late.ranks.empty() ? Late{.came = true, .ranks = {held_up_by(awaited)}} : late;
}

std::string Communicator::Late::sentence() const {
    return list_of(ranks) + (came ? " arrived but did not do its part" : " did not arrive");
}

// True if a rank waits for another one, and is able to notice when that arrives. It is not if it is stopped, or if the
// other one arrived long ago: then its core is busy, or another thread holds the interpreter's lock.
bool Communicator::waits(uint32_t peer) const {
    const Post& post = *posts_[peer];
    auto limit = Clock::now() + notices_within;
    while (true) {
        // Acquire: see mark_wait().
        uint32_t whom = post.waiting_for.load(std::memory_order_acquire);
        if (whom == 0 || whom > size() || is_stopped(*members_[peer].arena)) return false;
        if (posts_[whom - 1]->progress.load(std::memory_order_relaxed) <
            post.waiting_until.load(std::memory_order_relaxed))
            return true;
        if (Clock::now() >= limit) return false;
        pause_for_a_moment();
    }
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

// What a rank was last seen doing, and the line of its program where it is, if it can still report that.
std::string Communicator::last_seen(uint32_t peer) const {
    const Post& post = *posts_[peer];
    std::string text = joined({"; ", blame_.named(peer), " "});
    uint64_t call = post.last_call.load(std::memory_order_acquire);
    CallRecord record;
    bool known = post.records[call % records_kept].load(call, record);
    if (call == 0) {
        text += "has made no call yet";
    } else {
        bool done = post.last_done.load(std::memory_order_acquire) >= call;
        text += joined({done ? "has done call " : "is in call ", call});
        if (known) text += ", " + in_words(record.signature);
        uint32_t waits = post.waiting_for.load(std::memory_order_relaxed);
        if (!done && waits) text += joined({", and waits for rank ", waits - 1});
    }
    if (is_stopped(*members_[peer].arena)) return text + "; it is stopped (SIGSTOP or a debugger)";
    // The first line is for errors like this one, the rest for `allfold doctor`.
    Directory& directory = members_[peer].arena->directory();
    if (directory.answers.load(std::memory_order_relaxed) == 0) return text;
    std::string answer = ask(directory, 300ms);
    if (answer.empty()) return text + "; it does not report where it is: its interpreter is busy or stuck";
    return text + "; it is at " + answer.substr(0, answer.find('\n'));
}

const char* Communicator::name_of(const Running& running) {
    return collectives[running.record.signature.collective].name.c_str();
}

std::string Communicator::where(uint64_t call) const { return joined({"(call ", call, " of ", label_, ")"}); }

}  // namespace allfold
