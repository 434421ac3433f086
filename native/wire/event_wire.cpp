#include "wire/event_wire.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "shared/errors.hpp"

namespace allfold {

EventWire::EventWire(int rank, int size) : Wire(rank, size) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll_ < 0 || bell_ < 0) {
        for (int one : {epoll_, bell_})
            if (one >= 0) close(one);
        throw EngineError(Fault::memory, "no more files can be opened");
    }
    add(bell_, EPOLLIN | EPOLLET, is_bell);
}

EventWire::~EventWire() {
    close(epoll_);
    close(bell_);
}

void EventWire::begin_keeping() {
    Keeper::of_process().add(this);
    Keeper::of_process().watch(epoll_);
}

void EventWire::end_keeping() { Keeper::of_process().remove(this); }

bool EventWire::progress() {
    if (!is_here()) return false;
    std::lock_guard lock(mutex_);
    if (has_leader_) return false;  // the kernel wakes the leader, which moves the bytes
    bool moved = look();
    announce();
    return moved;
}

void EventWire::sleep(uint64_t seen, Clock::time_point deadline) {
    if (!is_here()) return;
    deadline = std::min(deadline, Clock::now() + longest_sleep);
    std::unique_lock lock(mutex_);
    ++inside_;
    ++entered_;
    if (is_watched_) {
        is_watched_ = false;
        Keeper::of_process().unwatch(epoll_);
    }
    before_sleep();
    announce();
    // Relaxed, as everywhere below: it changes under the lock.
    while (turn_.load(std::memory_order_relaxed) == seen) {
        auto left = deadline - Clock::now();
        if (left <= Clock::duration::zero()) break;
        if (has_leader_) {
            ++followers_;
            changed_.wait_until(lock, deadline);
            --followers_;
            continue;
        }
        has_leader_ = true;
        std::array<epoll_event, 64> events;
        if (!may_sleep()) left = Clock::duration::zero();
        lock.unlock();
        int count = await_events(events.data(), events.size(), left);
        lock.lock();
        has_leader_ = false;
        handle(events.data(), count);
        announce();
    }
    --inside_;
    if (followers_ > 0 && !has_leader_) changed_.notify_one();  // to be the next leader
    if (inside_ == 0 && is_left_alone_) {
        is_left_alone_ = false;
        Keeper::of_process().ring();
    }
}

int EventWire::await_events(epoll_event* events, int most, Clock::duration left) {
    auto looks = std::min(left, looks_.load(std::memory_order_relaxed));
    if (looks > Clock::duration::zero()) {
        auto end = Clock::now() + looks;
        do {
            if (int count = epoll_wait(epoll_, events, most, 0); count != 0) return count;
        } while (Clock::now() < end);
    }
    // Rounded up: a wait of less than a millisecond would otherwise spin.
    auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    return epoll_wait(epoll_, events, most, static_cast<int>(milliseconds));
}

void EventWire::wake() {
    if (!is_here()) return;
    std::lock_guard lock(mutex_);
    ++ended_;
    announce();
}

void EventWire::watch(int descriptor) {
    if (is_here()) add(descriptor, EPOLLIN | EPOLLET, is_bell);
}

bool EventWire::keep() {
    std::lock_guard lock(mutex_);
    if (inside_ > 0 || !is_watched_) return false;
    look();
    announce();
    return !may_sleep();
}

// The keeper leaves this wire alone while a thread sleeps here for long; that thread wakes the keeper at the end.
bool EventWire::look_after() {
    std::lock_guard lock(mutex_);
    if (is_watched_ || is_left_alone_) return false;
    if (entered_ != entered_before_) {
        entered_before_ = entered_;
        return true;
    }
    if (inside_ > 0) {
        is_left_alone_ = true;
        return false;
    }
    is_watched_ = true;
    Keeper::of_process().watch(epoll_);
    return false;
}

void EventWire::close_in_child() {
    close_descriptors();
    close(epoll_);
    close(bell_);
}

void EventWire::add(int descriptor, uint32_t events, uint64_t what) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = what;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
}

void EventWire::remove(int descriptor) { epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr); }

void EventWire::ring() {
    uint64_t one = 1;
    [[maybe_unused]] auto written = write(bell_, &one, sizeof one);
}

void EventWire::announce(const WireTransfer* own) {
    if (ended_ == 0) return;
    bool only_own = ended_ == 1 && own != nullptr && own->is_over();
    ended_ = 0;
    if (only_own) return;
    // Release: pairs with turn(). It only changes under the lock.
    turn_.fetch_add(1, std::memory_order_release);
    if (followers_ > 0) changed_.notify_all();
    if (has_leader_) ring();
}

bool EventWire::look() {
    std::array<epoll_event, 64> events;
    return handle(events.data(), epoll_wait(epoll_, events.data(), events.size(), 0));
}

}  // namespace allfold
