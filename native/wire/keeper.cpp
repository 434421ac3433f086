#include "wire/keeper.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>

#include "shared/errors.hpp"
#include "shared/wait.hpp"

namespace allfold {

namespace {
constexpr auto look_again = std::chrono::milliseconds(5);
}

Keeper& Keeper::of_process() {
    static Keeper* keeper = new Keeper;  // never destroyed: its thread outlives everything
    return *keeper;
}

Keeper::Keeper() {
    // A child closes its copies of the connections: while they are open, peers would not see that its parent has ended.
    pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                   [] {
                       of_process().forget();
                       of_process().mutex_.unlock();
                   });
}

void Keeper::add(Client* wire) {
    std::lock_guard lock(mutex_);
    if (epoll_ < 0) begin();
    wires_.push_back(wire);
}

void Keeper::remove(Client* wire) {
    std::lock_guard lock(mutex_);
    std::erase(wires_, wire);
}

void Keeper::watch(int epoll) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = epoll;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, epoll, &event);
}

void Keeper::unwatch(int epoll) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, epoll, nullptr);
    ring();
}

void Keeper::ring() {
    uint64_t one = 1;
    [[maybe_unused]] auto written = write(bell_, &one, sizeof one);
}

void Keeper::begin() {
    int epoll = epoll_create1(EPOLL_CLOEXEC), bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll < 0 || bell < 0) {
        for (int one : {epoll, bell})
            if (one >= 0) close(one);
        throw EngineError(Fault::memory, "no more files can be opened");
    }
    epoll_ = epoll;
    bell_ = bell;
    watch(bell_);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // handlers run in the program's own threads
    std::thread([this] { run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Keeper::run() {
    std::array<epoll_event, 16> events;
    bool looks_after = false, more = false;
    auto looked = Clock::now();
    while (true) {
        int timeout = more ? 0 : looks_after ? static_cast<int>(look_again.count()) : -1;
        int count = epoll_wait(epoll_, events.data(), events.size(), timeout);
        std::lock_guard lock(mutex_);
        for (int i = 0; i < count; ++i)
            if (events[i].data.fd == bell_) {
                uint64_t rung;
                [[maybe_unused]] auto taken = read(bell_, &rung, sizeof rung);
                looks_after = true;
            }
        if (looks_after && Clock::now() >= looked + look_again) {
            looked = Clock::now();
            looks_after = false;
            for (Client* wire : wires_) looks_after |= wire->look_after();
        }
        more = false;
        for (Client* wire : wires_) more |= wire->keep();
    }
}

void Keeper::forget() {
    for (Client* wire : wires_) wire->close_in_child();
    wires_.clear();
    if (epoll_ >= 0) {
        close(epoll_);
        close(bell_);
    }
    epoll_ = bell_ = -1;  // the next wire of this process starts a new thread
}

}  // namespace allfold
