// Messages from one rank to another, with tags.
//
// Every rank has an inbox in its own arena: for each peer a ring of bytes, which the peer fills and the rank empties,
// and a bell. A message is a header and its bytes; one that is longer than the ring streams through it. A thread that
// waits, to send or to receive, makes progress on everything that the rank has in flight in both directions, so that
// two ranks that send to each other at the same time cannot block each other. A helper thread makes progress when no
// thread waits, because the rank computes or is in a collective.
//
// Everything that a rank can wait for (bytes in one of its rings, room in a peer's ring) is announced by its own bell.
// The bell is only rung for a sleeping thread: while both sides are awake, a message costs its own bytes and one store
// to `head`.
//
// A message that does not fit into the ring may be offered instead: its header goes into the ring, and the receiver
// reads the sender's array out of its process (see fetch.hpp), which saves a copy on each side. If it cannot do that,
// or if the sender takes the offer back, the bytes stream through the ring after all.
//
// A message belongs to a context, and only a receive of the same context takes it: the messages of a program never meet
// those that are sent on its behalf. A sender may ask for an acknowledgement, which the receiver's channel sends in a
// context of its own as soon as a receive takes the message.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/dtypes.hpp"
#include "peers/blame.hpp"
#include "shared/arena.hpp"
#include "shared/errors.hpp"
#include "shared/first_error.hpp"
#include "shared/layout.hpp"
#include "shared/wait.hpp"

namespace allfold {

inline constexpr int64_t any_source = INT64_MIN;  // not -1, which could be a wrongly computed rank
inline constexpr int64_t any_tag = -1;
inline constexpr int64_t highest_tag = INT32_MAX;
inline constexpr uint8_t acknowledgements = 255;  // a context

// The two ends of one ring, counted in bytes over all time. Both are multiples of a header.
struct Ring {
    alignas(line_bytes) std::atomic<uint64_t> head;  // written so far, by the sender
    alignas(line_bytes) std::atomic<uint64_t> tail;  // taken so far, by the receiver
    // Of the message whose header was written last, if it says that it is offered; and where it lies in its process.
    alignas(line_bytes) std::atomic<uint64_t> offer, address;
};

// `offered` and `reading` alternate until the receiver has read all of it (`taken`), cannot (`refused`), or the sender
// takes it back (`revoked`).
enum class Offer : uint64_t { none, offered, reading, taken, refused, revoked };

struct MessageHeader {
    uint64_t elements = 0;
    int32_t tag = 0;
    uint8_t dtype = 0, context = 0;
    uint8_t asks = 0;     // 1: for an acknowledgement
    uint8_t offered = 0;  // 1: its bytes are not in the ring
};
static_assert(sizeof(MessageHeader) == 16);

struct Message {
    uint32_t source = 0;
    int32_t tag = 0;
    uint64_t elements = 0;
};

// One message to send or to receive. It and its array belong to the channel from run() or start() until it is done.
struct Operation {
    // A probe ends when there is a message for it, and leaves the message there. A take receives a message of any type
    // and length, into memory of its own.
    enum class Kind : uint8_t { send, receive, probe, take };

    Kind kind = Kind::send;
    DType dtype = DType::uint8;
    int64_t peer = 0;  // or any_source
    int64_t tag = 0;   // or any_tag
    uint8_t context = 0;
    bool asks = false;  // a send: for an acknowledgement
    char* data = nullptr;
    uint64_t elements = 0;

    bool background = false;
    bool started = false;  // the header of a send is in the ring
    bool offered = false;  // and says that its receiver may read the array
    uint64_t moved = 0;    // bytes
    Message message;       // what was received
    std::optional<EngineError> error;
    std::unique_ptr<char[]> copy;  // a copy of the array, if its owner did not wait for the end
    std::unique_ptr<char[]> own;   // what a take has received
    bool withdrawn = false;
    // Release, as the last access: a thread that acquires it sees the array and the fields above, and may free the
    // operation.
    std::atomic<bool> done = false;

    uint64_t bytes() const { return elements * size_of(dtype); }
};

class Channel {
  public:
    struct Member {
        std::shared_ptr<Arena> arena;
        size_t post;  // offsets in the arena
        size_t inbox;
    };
    using Interrupted = std::function<void()>;  // ends a wait by throwing
    using BeforeBlocking = std::function<void()>;

    // `first_error`: shared with the collectives of the same communicator.
    // `fetches`: long messages may be read out of the processes of their senders.
    Channel(uint32_t rank, std::vector<Member> members, std::string label, bool fetches,
            std::shared_ptr<FirstError> first_error);
    ~Channel();

    // Allocates what a member needs in its arena; called before the members exchange their offsets.
    static size_t inbox_bytes(uint32_t ranks);

    // Sends or receives. A send returns when its array may be used again, that is when all of it is in the ring.
    // `before_blocking` is called before anything that may take long. It must not wait.
    Message run(Operation& operation, Clock::duration timeout, const BeforeBlocking& before_blocking,
                const Interrupted& interrupted);

    // The same in the background. wait() throws at the timeout, and the operation continues.
    void start(Operation& operation, const BeforeBlocking& before_blocking = [] {});
    Message wait(Operation& operation, Clock::duration timeout, const Interrupted& interrupted);
    bool done(Operation& operation);

    // The message that a receive with this source and tag would take, if one has arrived.
    std::optional<Message> probe(int64_t source, int64_t tag, uint8_t context);

    // Ends an operation of which nothing has been sent or received yet; false if it is too late for that.
    bool withdraw(Operation& operation);

    // Ends the helper thread, and ends all unfinished operations with an error.
    void close();

    // Throws, in the name of `name`, if this process was forked from the rank's.
    void check_caller(const char* name) const { members_[rank_].arena->need_here(name); }
    bool is_here() const { return members_[rank_].arena->is_here(); }

  private:
    struct Inbound;
    struct Outbound;
    struct Stored;
    enum class State : uint8_t { present, left, gave_up, gone };

    void check(const Operation& operation, const BeforeBlocking& before_blocking) const;
    void post(Operation& operation);
    void post_send(Operation& operation);
    void post_receive(Operation& operation);
    bool progress();
    bool drain(uint32_t source);
    bool push(Outbound& out);
    bool write(Outbound& out, Operation& operation);
    bool is_worth_offering(const Operation& operation) const;
    bool is_receiving() const;
    bool was_taken(Outbound& out, Operation& operation);
    void revoke(Outbound& out, Operation& operation);
    bool fetch_more(Inbound& in);
    bool can_fetch(Inbound& in);
    void settle(Inbound& in, const MessageHeader& header, const char* prefix, uint64_t length);
    void finish_arrival(Inbound& in);
    bool accept(Operation& operation, uint32_t source, const MessageHeader& header);
    void acknowledge(uint32_t source, MessageHeader& header);
    void send_owed();
    void finish(Operation& operation);
    void cancel(Operation& operation);
    void adopt_rest(Outbound& out, Operation& operation);

    std::optional<EngineError> drive(Operation& operation, Clock::duration timeout, const Interrupted& interrupted);
    void doze(const Operation* operation, Clock::duration at_most);
    void help();
    void help_while_needed(std::unique_lock<std::mutex>& lock);
    void end_lost(const std::vector<State>& states);
    void call_helper();

    std::vector<State> check_peers(const Operation* operation) const;
    std::optional<EngineError> find_loss(const Operation& operation, const std::vector<State>& states) const;
    EngineError timed_out(const Operation& operation, Clock::duration timeout) const;
    std::string where() const { return " (" + label_ + ")"; }

    uint32_t rank_;
    std::string label_;
    std::vector<Member> members_;
    Blame blame_;
    std::vector<Post*> posts_;
    std::vector<Counter*> bells_;
    std::shared_ptr<FirstError> first_error_;
    Patience patience_;
    Crowd crowd_;
    uint64_t ring_bytes_;
    bool fetches_;
    uint64_t piece_bytes_;  // copied before the other side is told: a part of the ring, so that both work
                            // at once

    std::mutex mutex_;  // over everything below
    std::vector<Inbound> inbound_;
    std::vector<Outbound> outbound_;
    std::deque<Operation*> posted_;               // receives without a message yet, oldest first
    std::list<Stored> stored_;                    // messages that arrived before their receive, oldest first
    std::list<std::unique_ptr<Operation>> rest_;  // the remainders of sends that were given up halfway
    std::vector<Message> owed_;                   // messages whose acknowledgements are still to be sent
    uint32_t queued_ = 0;                         // sends that are not in their ring yet
    uint32_t background_ = 0;                     // operations that a helper may have to drive
    bool closed_ = false;
    std::atomic<uint32_t> drivers_ = 0;  // threads that drive while they wait
    std::thread helper_;
    std::condition_variable helper_called_;
    bool helper_asleep_ = false;
};

}  // namespace allfold
