// The interpreter of message programs: one rank's part of one call (or of one segment of it) between islands.
//
// Messages go through the channel of the island where the peer shares memory with this rank, and over the wire where it
// does not. Receives and sends begin where the program says, and continue in the background; the thread waits where the
// program waits. Every wait ends at the timeout of the call, or when a rank gives the call up: then the wire is cut,
// the channel is closed and the island's communicator is aborted, each of which ends waits.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/communicator.hpp"
#include "islands/fronts.hpp"
#include "islands/message_program.hpp"
#include "islands/waiting.hpp"
#include "messages/channel.hpp"
#include "wire/wire.hpp"

namespace allfold {

// Reuses memory for messages: the system takes longer to provide fresh memory than it takes to fill it.
class MessageMemory {
  public:
    struct Free {
        void operator()(char* memory) const { ::operator delete[](memory, std::align_val_t{line_bytes}); }
    };
    struct Block {
        std::unique_ptr<char[], Free> memory;
        size_t bytes = 0;
    };

    Block take(size_t bytes);
    // To be called after all transfers that use it have ended.
    void give_back(Block block);

  private:
    std::mutex mutex_;
    std::vector<Block> free_;
    size_t kept_ = 0;
};

struct WireEvent {  // a message, as a trace shows it; in nanoseconds
    bool sends;
    int peer;
    size_t bytes;
    int64_t begun, ended;
};

// The links from one rank of a group to the others, and what is kept from one call to the next.
struct PeerLinks {
    Wire* wire = nullptr;
    Channel* channel = nullptr;      // of this rank's island
    Communicator* island = nullptr;  // for collectives
    std::optional<Fronts> fronts;    // on the leader of an island
    std::vector<int32_t> local;      // by rank: its number in this rank's island; -1 if it is in another one
    struct {
        uint32_t calls = 1, indices = 1;  // the tags of a call, and of the messages in it: see fabrics/tags.py
    } tags;
    MessageMemory memory;
    std::mutex mutex;  // over what follows
    // Messages inside the island that were in flight when a call failed, and their memory. The channel uses them until
    // it is closed.
    struct Left {
        std::vector<std::unique_ptr<Operation>> operations;
        MessageMemory::Block block;
    };
    std::list<Left> left;
    std::vector<WireEvent> events;
    std::atomic<bool> is_traced = false;

    ~PeerLinks();

    void trace(bool on);
    // The events since the last time.
    std::vector<WireEvent> take_events();
    void note(bool sends, int peer, size_t bytes, int64_t begun);

    // Begin a call, and send its header to the leaders of all other islands, if this rank is a leader.
    void send_fronts(const char* said, const Waiting& waiting);
    // See Fronts.
    void send_front(int peer, const char* data = nullptr, size_t bytes = 0);
    const char* receive_front(int peer, size_t bytes, const Waiting& waiting);

    // Before this end is closed: wait until what was sent in calls that others may still be in has arrived.
    void settle(const Waiting& waiting);
};

struct MessageArrays {
    const char* input = nullptr;
    uint64_t input_elements = 0;
    char* output = nullptr;
    uint64_t output_elements = 0;
    char* work = nullptr;  // for the work slots; null: memory of its own
    size_t work_bytes = 0;
};

class MessageRun {
  public:
    // `divisor`: of averages. `tag`: of all messages of this run. `program` and `links` outlive it.
    // `calls`: what `calls_inside` returns, with programs.
    MessageRun(const MessageProgram& program, PeerLinks& links, ChunkDivision division, const MessageArrays& arrays,
               DType dtype, Op op, uint32_t divisor, uint32_t tag, Waiting waiting, std::vector<Call> calls = {});
    ~MessageRun() { leave(); }
    MessageRun(const MessageRun&) = delete;

    // The collectives of the island that a run makes, in their order, without arrays. They need their programs.
    static std::vector<Call> calls_inside(const MessageProgram& program, const PeerLinks& links,
                                          const ChunkDivision& division, DType dtype, Op op);

    // Run the program up to the first wait for other islands; up to the first wait for a message; to the end. After an
    // error no transfer uses the arrays of the call, except those inside the island, which end with the channel.
    void begin() { advance(program_.begins); }
    void start() { advance(program_.starts); }
    void finish();

    // Runs the program of a small call, whose data are sent with the headers; see `goes_along` in
    // programs/check_messages.py. `said`: the header. Throws CallsDiffer if another island's leader makes a different
    // call, or has made one a few calls ago.
    void along(const char* said);

  private:
    struct Flight {  // a message in flight
        WireTransfer* transfer = nullptr;
        std::unique_ptr<Operation> operation;
        size_t bytes = 0;
        int64_t begun = 0;  // while a trace is on
    };

    void advance(size_t until);
    void perform(uint32_t at);
    void fold(uint32_t at);
    void begin_message(uint32_t number);
    void end_message(uint32_t number);
    void perform_along(uint32_t at, const char* said);
    size_t bytes_along(uint32_t message) const;
    char* locate(const ChunkPlace& place) const;
    char* join(uint32_t number) const;
    uint64_t elements_of(uint32_t message) const;
    void leave();

    const MessageProgram& program_;
    PeerLinks& links_;
    ChunkDivision division_;
    MessageArrays arrays_;
    DType dtype_;
    size_t element_;
    Fold fold_;
    uint32_t divisor_, tag_;
    Waiting waiting_;
    uint32_t at_ = 0, called_ = 0;
    MessageMemory::Block block_;        // received messages, sends whose parts were copied together, and work slots
    std::vector<size_t> rooms_;         // by message: where its memory begins there
    std::vector<Flight> flights_;       // by message
    std::vector<const char*> arrived_;  // by message, where data are sent with the headers
    std::vector<Call> calls_;
    std::vector<const void*> sources_;
};

}  // namespace allfold
