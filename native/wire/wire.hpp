// Messages between the processes of a group: the interface that every carrier of bytes implements.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shared/wait.hpp"

namespace allfold {

// One message that is being sent or received. The wire uses its memory until the transfer has ended or is released.
class WireTransfer {
  public:
    enum class State : uint8_t { under_way, done, failed };

    // Acquire: pairs with the release in the thread that ends it, so that the data and the fields below are visible.
    State state() const { return state_.load(std::memory_order_acquire); }
    bool is_over() const { return state() != State::under_way; }
    // Once it has ended:
    int peer() const { return peer_; }        // where it came from, or went to
    size_t bytes() const { return bytes_; }   // that were sent, or that arrived
    const char* why() const { return why_; }  // why it failed: a sentence that lives as long as the wire

    // For wires: ends it.
    void end(State state, int peer, size_t bytes, const char* why) {
        peer_ = peer;
        bytes_ = bytes;
        why_ = why;
        state_.store(state, std::memory_order_release);  // a thread that sees it also sees the data and the fields
    }

  protected:
    WireTransfer() = default;
    ~WireTransfer() = default;
    std::atomic<State> state_{State::under_way};
    int peer_ = -1;
    size_t bytes_ = 0;
    const char* why_ = "";
};

// One process's end of the connections of a group. All of it may be called by any thread.
//
// Messages of a pair of ranks with the same tag arrive in the order in which they were sent. Transfers move while a
// thread is inside `progress` or `sleep`; otherwise a background thread moves them.
class Wire {
  public:
    static constexpr int any_peer = -1;
    static constexpr auto longest_sleep = std::chrono::milliseconds(200);

    virtual ~Wire() = default;
    Wire(const Wire&) = delete;
    int rank() const { return rank_; }
    int size() const { return size_; }

    // Both begin at once and never wait. A receive has room for at least what is sent: a longer message is a failure of
    // that receive and of the connection. A short send has usually ended when this returns.
    virtual WireTransfer* send(int peer, const void* data, size_t bytes, uint64_t tag) = 0;
    virtual WireTransfer* receive(int peer, void* data, size_t bytes, uint64_t tag) = 0;  // `peer` may be any_peer
    // To be called once for every transfer, whose memory then belongs to the caller. If it has not ended: a receive is
    // cancelled, and what has begun to arrive for it is lost; a send continues from a copy. Where the carrier cannot do
    // that, because it reads and writes the memory itself, the connection to that peer is closed with the transfer.
    virtual void release(WireTransfer* transfer) = 0;

    // Move what can be moved without waiting. True if something moved.
    virtual bool progress() = 0;

    // A number that changes whenever a transfer ends, a peer is lost, or `wake` is called. To wait for something: read
    // it, then check whether the thing is there, then sleep with the number read before.
    //
    // Acquire: what was written before the number changed is visible.
    uint64_t turn() const { return turn_.load(std::memory_order_acquire); }
    // Move what can be moved, until `turn` is no longer `seen`, or the time is up; at most `longest_sleep`, after which
    // the caller looks for faults. May return early.
    virtual void sleep(uint64_t seen, Clock::time_point deadline) = 0;
    // From now on, a thread in `sleep` first looks for events for this long. A wake-up takes longer than many short
    // messages are on their way; but where ranks share cores, a thread that looks keeps another one from running.
    virtual void look_first(Clock::duration) {}
    // Let `turn` change.
    virtual void wake() = 0;
    // From now on every write to this eventfd changes `turn` too, even one by another process. It need not be read. The
    // wire does not own it.
    virtual void watch(int descriptor) = 0;

    // Every transfer fails, and every new one. The others see this end as lost.
    virtual void cut() = 0;
    // True while `cut` would still keep messages from arriving whose sends have ended.
    virtual bool is_draining() { return false; }
    // True if its connection has ended. Messages that arrived before may still be received.
    virtual bool lost(int peer) const = 0;

  protected:
    Wire(int rank, int size) : rank_(rank), size_(size) {}
    std::atomic<uint64_t> turn_{0};

  private:
    int rank_, size_;
};

}  // namespace allfold
