// The sleeping part of a wire: one epoll, in which one waiting thread (the leader) sleeps for all, or the keeper does.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "shared/fork.hpp"
#include "wire/keeper.hpp"
#include "wire/wire.hpp"

namespace allfold {

// A subclass adds its descriptors to the epoll, and handles their events under the lock.
class EventWire : public Wire, public Keeper::Client {
  public:
    ~EventWire() override;

    bool progress() final;
    void sleep(uint64_t seen, Clock::time_point deadline) final;
    void look_first(Clock::duration time) final { looks_.store(time, std::memory_order_relaxed); }
    void wake() final;
    void watch(int descriptor) final;

    // False in a forked child, which leaves its copy alone: another thread may have held the lock, or waited, when it
    // was forked.
    bool is_here() const { return forks_ == forks(); }

    bool keep() final;
    bool look_after() final;
    void close_in_child() final;

  protected:
    static constexpr uint64_t is_bell = ~uint64_t{0};

    EventWire(int rank, int size);
    // The last line of a constructor, and the first of a destructor: between them the keeper may call this wire.
    void begin_keeping();
    void end_keeping();

    // All of these are called under the lock.
    //
    // A thread is about to wait for something that has not arrived.
    virtual void before_sleep() {}
    // True if the epoll will report when there is more to do.
    virtual bool may_sleep() = 0;
    // Move what can be moved now, because of these events or otherwise. True if something moved.
    virtual bool handle(const epoll_event* events, int count) = 0;
    // Only in a forked child: close the descriptors that the wire owns.
    virtual void close_descriptors() = 0;

    void add(int descriptor, uint32_t events, uint64_t what);
    void remove(int descriptor);
    // Wake the thread that sleeps in the epoll, to look for more to do.
    void ring();
    // Wake all sleeping threads because something has ended, unless it was only the transfer of this call itself.
    void announce(const WireTransfer* own = nullptr);

    std::mutex mutex_;
    uint32_t ended_ = 0;  // transfers and peers since the last `announce`

  private:
    bool look();
    // The number of events that came until the time is up.
    int await_events(epoll_event* events, int most, Clock::duration left);

    std::condition_variable changed_;
    int epoll_ = -1, bell_ = -1;
    bool has_leader_ = false;  // a thread sleeps in the epoll
    int inside_ = 0, followers_ = 0;
    bool is_watched_ = true, is_left_alone_ = false;  // by the keeper
    uint64_t entered_ = 0, entered_before_ = 0;
    uint32_t forks_ = forks();
    // See `look_first`. Relaxed: a length of time, on which nothing else depends.
    std::atomic<Clock::duration> looks_{Clock::duration::zero()};
};

}  // namespace allfold
