// The engine: runs programs on one rank of a communicator.
//
// Everything that ranks share is in their posts (layout.hpp) and work areas. A call has four parts: write a record of
// the call; wait until no rank is too many calls behind; run the program, segment by segment; publish that this
// rank is done. Every wait checks, when it first sees a peer in a call, that the peer is in the same call.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/program.hpp"
#include "kernels/kernels.hpp"
#include "peers/blame.hpp"
#include "shared/arena.hpp"
#include "shared/errors.hpp"
#include "shared/first_error.hpp"
#include "shared/layout.hpp"
#include "shared/wait.hpp"

namespace allfold {

// A collective's number in `collectives`.
enum class Collective : uint8_t {};
inline constexpr size_t most_collectives = 16;

// Facts about a collective, from src/allfold/collectives.py, which explains the meaning of each field.
struct CollectiveFacts {
    std::string name;
    bool rooted = false, takes_op = false, in_place = false, carries_data = false, exchanges = false;
    bool combines_all = false;                      // every rank contributes to every result
    bool brings_slice = false, gets_slice = false;  // not the whole buffer
    bool root_brings = false, root_gets = false;    // only the root does
};
// Set once, when the extension is imported, before there is any communicator.
inline std::vector<CollectiveFacts> collectives;
inline const CollectiveFacts& facts_of(Collective collective) { return collectives[static_cast<size_t>(collective)]; }

inline constexpr uint8_t custom_op = 255;  // a user-defined operation

// Bytes fetched at once for one fold: they fit an L2 cache, but are many, because every fetch is a system call.
inline constexpr size_t fetched_bytes = size_t{1} << 19;

// Arrays with more bytes than this on all ranks together are assumed not to fit the shared caches.
inline constexpr uint64_t cached_bytes = uint64_t{64} << 20;

struct Event {  // one instruction, as a trace shows it
    uint64_t call;
    std::string program;
    uint32_t segment, instruction;
    int64_t start, ready, end;  // in nanoseconds: when it began to wait, began to work, was done
    uint64_t bytes;
};

struct Call {
    Collective collective;
    uint8_t op;  // an Op, or custom_op
    DType dtype;
    int32_t root;
    uint64_t elements;  // of the whole buffer
    const void* input;
    void* output;
    const char* algorithm;     // "" where the engine chose
    const char* op_name = "";  // of a user-defined operation
    uint64_t op_digest = 0;
    // The programs for arrays that are in shared memory on every rank, for large ones that every rank can read out of
    // the others' processes, and for all other cases. Null where it would not be faster.
    const Program* shared_program;
    const Program* readable_program;
    const Program* private_program;
    const Parts* parts = nullptr;  // where slices differ in length
    Fold fold;                     // null for a custom operation
    std::function<void(const void* const*, size_t, void* const*, size_t, size_t)> custom_fold;
    Clock::duration timeout;
    bool pinned = false;  // a device uses the pages of the arrays, so they cannot be replaced: see let_go()
};

class Communicator {
  public:
    struct Member {
        std::shared_ptr<Arena> arena;
        size_t post;  // offsets in the arena
        size_t work;
    };

    // `fetches`: arrays may be read out of other processes, if the system permits it. `group`: a number that is the
    // same on all ranks of this communicator and used by no other, for inspection from outside. `first_error`: shared
    // with the channel of the same communicator.
    Communicator(uint32_t rank, std::vector<Member> members, std::string label, bool fetches, uint64_t group,
                 std::shared_ptr<FirstError> first_error = std::make_shared<FirstError>());
    ~Communicator();

    // Allocates what a member needs in its arena for a communicator; called before the members exchange their offsets.
    static size_t post_bytes();
    static size_t work_bytes() { return 2 * window_bytes + small_areas * small_bytes; }

    // Before the first call: see Patience::for_wires.
    void sleep_early() { patience_ = Patience::for_wires(); }

    // Before the first call: this communicator works only as long as `outer`, which has the same ranks. A wait here for
    // a rank that gave up there fails, with the cause of that.
    void follow(std::shared_ptr<const Communicator> outer) { outer_ = std::move(outer); }
    // Throws, in the name of `name`, if one of these ranks gave up, here or in a communicator that this one follows.
    void check_given_up(const char* name, const std::vector<uint32_t>& ranks) const;
    // Those of these ranks that would cause it to throw.
    std::vector<uint32_t> given_up(const std::vector<uint32_t>& ranks) const;

    // `before_blocking` is called when a wait takes longer than a short spin. `interrupted` is called now and then
    // during long waits; it ends the call by throwing. Calls take turns: a call that is made while another one is in
    // progress waits for it, within its timeout.
    void run(const Call& call, const std::function<void()>& before_blocking, const std::function<void()>& interrupted);

    // The next calls are parts of one that these ranks and others make; nothing: they are calls of their own. Ranks
    // compare whole calls, and errors name them. To be called by the thread that makes the calls.
    struct Whole {
        Signature signature;
        uint64_t digest, number;
    };
    void part_of(const std::optional<Whole>& whole) { whole_ = whole; }
    // By rank: the record of the first of the last calls that differs between ranks, if it is there; those of the last
    // call, if none differs.
    std::vector<std::optional<CallRecord>> first_difference() const;

    // Before this rank leaves: did all ranks make the same last call? A rank that needed no peer in it does not know
    // yet. Waits a moment for ranks that have not reached it, and throws if one differs.
    void compare_last_call(const std::function<void()>& interrupted);

    // Stores the exception that this rank ends with, for peers that ask why it ended. To be called before retire().
    void say_last(const std::string& words);

    // Ends this rank's part for good: no further call works here, nor on the other ranks as soon as they notice.
    void retire(Standing standing);
    // Before retire(): these ranks are the cause, as the caller knows from elsewhere.
    void blame(const std::vector<uint32_t>& peers) { blame_.lost_elsewhere(peers); }

    uint32_t rank() const { return rank_; }
    uint32_t size() const { return static_cast<uint32_t>(posts_.size()); }
    bool in_shared_memory(const void* pointer, size_t bytes) const;
    uint64_t calls() const { return call_; }
    // Where to record every instruction from the next call on; null: nowhere. Waits for the call in progress.
    void trace_to(std::vector<Event>* events, Clock::duration timeout);

    // Throws, in the name of `name`, if no call may be made here and now: because this process was forked from the
    // rank's, or because this thread is already inside a call (in a custom operation or a signal handler), and the new
    // call would wait for its end.
    void check_caller(const char* name) const;
    // True if a call that has waited for its turn since `since` gives up: after its timeout, unless the call before it
    // is about to fail. That error explains more, and if this rank ended first, the others would learn only of this
    // one.
    bool gives_up_turn(Clock::time_point since, Clock::duration timeout) const;
    // The error of a call that did not get its turn in time. It names the rank that the call before it waits for.
    EngineError not_my_turn(const char* name, Clock::duration timeout) const;
    // Throws if this rank was aborted while a call is in progress.
    void check_not_aborted(const char* name) const;
    void check_here(const char* name) const { members_[rank_].arena->need_here(name); }
    // True if a thread is in a call here, or waits for its turn.
    bool is_in_call() const { return turn_.load(std::memory_order_relaxed) != 0; }
    bool is_here() const { return members_[rank_].arena->is_here(); }

  private:
    struct Running;
    class Turn;
    class Writing;

    void enter(Running& running, const Call& call);
    void offer(CallRecord& record, const Call& call);
    bool can_fetch();
    bool arrays_are_fetchable(const Call& call);
    const Program* agree(Running& running, const Call& call);
    void perform(Running& running, const Call& call, const Program& program);
    void execute(Running& running, const Call& call, const Program& program, uint32_t instruction, uint32_t segment);
    void combine(const Call& call, const void* const* sources, size_t source_count, void* const* destinations,
                 size_t destination_count, uint64_t elements, bool complete, const void* from_memory = nullptr) const;
    void fetch_and_combine(Running& running, const Call& call, const Slot* slots, const void** sources,
                           size_t source_count, void** destinations, size_t destination_count, uint64_t elements,
                           bool complete);
    void fetch_from(Running& running, uint32_t peer, const void* source, void* target, size_t bytes);
    char* locate(const Running& running, const Slot& slot, uint64_t start) const;
    void await_peer(Running& running, uint32_t peer, uint64_t target);
    void await_all(Running& running, uint64_t target);
    // True if a rank that has reached this call has made a different call, now or before.
    bool is_elsewhere(const Post& post) const {
        return post.chain[call_ % chains_kept].load(std::memory_order_relaxed) != static_cast<uint32_t>(chain_);
    }
    void meet(Running& running, uint32_t peer);
    void confirm(Running& running, const Slot* slots, const Slot* end);
    void let_go(const Running& running, const Call& call);
    Clock::duration on_stall(Running& running, uint32_t peer);
    void check_peers(Running& running, uint32_t awaited, bool asks);
    using Needed = std::function<bool(uint32_t)>;
    std::vector<uint32_t> given_up_here(const Needed& needed) const;
    void check_given_up_here(const char* name, const Blame& asker, const Needed& needed) const;
    // The ranks that have not reached a call, or else the one that has and keeps the others waiting.
    struct Late {
        bool came;
        std::vector<uint32_t> ranks;
        std::string sentence() const;
    };
    [[noreturn]] void fail_lost(Running& running, const std::vector<uint32_t>& peers, const Late& late);
    void publish_progress(uint64_t value);
    void check_open(const Call& call) const;
    [[noreturn]] void fail_mismatch(Running& running);
    std::vector<std::optional<CallRecord>> first_difference(uint64_t& last) const;
    uint64_t last_call() const;  // of any rank: this one may not have reached the call that differs
    EngineError mismatch_up_to(uint64_t last) const;
    [[noreturn]] void fail_late(Running& running, uint32_t late, uint32_t awaited);
    [[noreturn]] void fail_timeout(Running& running, uint32_t peer);
    // Store in this rank's post which rank it waits for, and for which progress of that rank. Release: a peer that sees
    // the rank sees the progress. (It may see that of a later wait: a rank that makes progress is not the culprit.)
    static constexpr uint64_t never = ~uint64_t{0};
    void mark_wait(uint32_t peer, uint64_t until) {
        posts_[rank_]->waiting_until.store(until, std::memory_order_relaxed);
        posts_[rank_]->waiting_for.store(peer + 1, std::memory_order_release);
    }
    void blame_late(uint32_t culprit);
    bool is_open(uint32_t peer) const {
        return posts_[peer]->standing.load(std::memory_order_relaxed) == static_cast<uint32_t>(Standing::open);
    }
    bool is_here(uint32_t peer) const;
    std::vector<uint32_t> absent() const;
    Late late_for(uint64_t call, uint32_t awaited) const;
    bool waits(uint32_t peer) const;
    uint32_t held_up_by(uint32_t peer) const;
    static const char* name_of(const Running& running);
    std::string where(uint64_t call) const;
    std::string last_seen(uint32_t peer) const;

    uint32_t rank_;
    std::string label_;
    std::shared_ptr<const Communicator> outer_;  // see follow()
    std::vector<Member> members_;
    Blame blame_;
    std::vector<Post*> posts_;
    std::vector<char*> work_;
    std::vector<uint64_t> seen_;  // by rank: the progress that was last seen
    std::vector<uint8_t> met_;    // see Running
    std::vector<const char*> inputs_;
    std::vector<char*> outputs_;
    std::vector<uint8_t> far_;  // the peer's arrays are in its own memory: to be fetched
    Patience patience_;
    Crowd crowd_;
    bool fenced_by_sleepers_ = false;  // true once every rank has announced it
    enum class Fetching { untried, works, fails } fetching_;
    struct Fetchable {
        const void* array = nullptr;
        size_t bytes = 0;
        bool can = false;
    } fetchable_[2];  // the input and the output of the last call that offered them
    uint64_t probe_word_;
    Entry* entry_ = nullptr;     // in the directory of this rank's arena
    std::vector<char> fetched_;  // tiles of peers' arrays, on their way into a fold
    // The addresses of one instruction, and of a tile of it; as many as the longest one needs.
    std::vector<const void*> sources_, near_;
    std::vector<void*> destinations_, here_;
    std::atomic<uint64_t> turn_{0};          // see Turn
    std::atomic<std::thread::id> runner_{};  // the thread that has it
    std::atomic<Clock::rep> fails_at_{0};    // while it waits for a peer: when it will have waited too long; else 0
    std::shared_ptr<FirstError> first_error_;
    std::vector<Event>* trace_ = nullptr;
    uint64_t call_ = 0;
    uint64_t chain_ = 0;
    std::optional<Whole> whole_;
    uint64_t base_ = 0;                // progress at the end of the last call, the same on all ranks
    uint64_t ends_[chains_kept] = {};  // progress at the ends of the last calls, by their numbers
    // Of calls that use the two large work areas, or the two inline ones:
    uint64_t settled_ = 0;     // progress when the area that comes next was last used
    uint64_t last_end_ = 0;    // progress at the end of the last such call
    uint64_t areas_used_ = 0;  // over all such calls; its parity says which area is next
};

}  // namespace allfold
