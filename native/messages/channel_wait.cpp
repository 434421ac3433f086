// Waiting for messages, and failures meanwhile.
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <system_error>

#include "messages/channel.hpp"
#include "messages/channel_parts.hpp"
#include "peers/blame.hpp"
#include "peers/peers.hpp"
#include "shared/text.hpp"

namespace allfold {

// Make progress until the operation is done, or throw the reason why it will not be. The caller has counted itself
// among the drivers.
std::optional<EngineError> Channel::drive(Operation& operation, Clock::duration timeout,
                                          const Interrupted& interrupted) {
    struct Driving {
        std::atomic<uint32_t>& drivers;
        ~Driving() { drivers.fetch_sub(1, std::memory_order_relaxed); }
    } driving{drivers_};
    Clock::time_point deadline{};  // set when a wait first takes long: most messages never read a clock
    uint32_t idle = 0, busy = 0;
    Yields yields(patience_, crowd_);
    while (!operation.done.load(std::memory_order_acquire)) {
        bool moved = false;
        {
            // If another thread has the lock, that thread makes progress.
            std::unique_lock lock(mutex_, std::try_to_lock);
            if (lock) moved = progress();
        }
        if (moved) {
            idle = 0;
            yields.restart();
            if (++busy % 256 != 0) continue;  // messages for other operations may never stop arriving
        } else if (idle < patience_.looks) {
            ++idle;
            relax();
            continue;
        } else if (yields.once()) {
            continue;
        }
        auto time = Clock::now();
        Clock::duration at_most = 1ms;
        if (deadline == Clock::time_point{}) {
            deadline = time + timeout;
        } else {
            if (interrupted) {
                // This may have to wait for the interpreter's lock; meanwhile the helper makes progress.
                drivers_.fetch_sub(1, std::memory_order_relaxed);
                struct Again {
                    std::atomic<uint32_t>& drivers;
                    ~Again() { drivers.fetch_add(1, std::memory_order_relaxed); }
                } again{drivers_};
                interrupted();
            }
            if (auto error = find_loss(operation, check_peers(&operation))) return error;
            if (time >= deadline) {
                std::lock_guard lock(mutex_);
                return timed_out(operation, timeout);
            }
            at_most = nap;
        }
        if (!moved) doze(&operation, std::min<Clock::duration>(at_most, deadline - time));
    }
    return std::nullopt;
}

// Sleep until the bell is rung. Its number is read before the last check, so a bell that is rung after the check ends
// the sleep.
void Channel::doze(const Operation* operation, Clock::duration at_most) {
    Counter& bell = *bells_[rank_];
    bell.sleepers.fetch_add(1, std::memory_order_relaxed);
    uint64_t seen = bell.value.load(std::memory_order_acquire);
    order_all(bell.sleepers);  // see ring_bell()
    bool moved;
    {
        std::lock_guard lock(mutex_);
        moved = progress() || closed_ || (operation && operation->done.load(std::memory_order_relaxed));
    }
    if (!moved) sleep_on(bell.value, seen, at_most);
    bell.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Channel::call_helper() {
    if (helper_asleep_) helper_called_.notify_one();
    if (helper_.joinable()) return;
    try {
        helper_ = std::thread([this] { help(); });
    } catch (const std::system_error&) {
        // No thread could be started: operations then make progress whenever a call waits, as in most libraries.
    }
}

// The helper checks now and then for operations on which no thread makes progress. It is not woken for every operation:
// most are waited for at once, and waking a thread costs more than a message.
void Channel::help() {
    // Signals go to the threads of the program, not to this one.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    uint32_t idle = 0;
    while (!closed_) {
        if (background_ == 0 && ++idle > helper_rounds) {
            helper_asleep_ = true;
            helper_called_.wait(lock, [this] { return closed_ || background_ > 0; });
            helper_asleep_ = false;
            idle = 0;
        }
        helper_called_.wait_for(lock, helper_pause, [this] { return closed_; });
        if (background_ > 0) {
            idle = 0;
            help_while_needed(lock);
        }
    }
}

void Channel::help_while_needed(std::unique_lock<std::mutex>& lock) {
    Yields yields(patience_, crowd_);
    auto looked = Clock::now();
    while (!closed_ && background_ > 0 && drivers_.load(std::memory_order_relaxed) == 0) {
        bool moved = progress();
        lock.unlock();
        // No spinning: the rank has other work, and this thread should not take a core from it.
        if (moved) {
            yields.restart();
        } else if (!yields.once()) {
            doze(nullptr, nap);
            if (auto time = Clock::now(); time - looked >= helper_looks) {
                looked = time;
                auto states = check_peers(nullptr);
                lock.lock();
                end_lost(states);
                continue;
            }
        }
        lock.lock();
    }
}

// End background operations that wait for a lost rank.
void Channel::end_lost(const std::vector<State>& states) {
    auto lost = [&] {
        std::vector<Operation*> found;
        auto consider = [&](Operation* operation) {
            if (operation && operation->background && find_loss(*operation, states)) found.push_back(operation);
        };
        for (Operation* operation : posted_) consider(operation);
        for (Inbound& in : inbound_) consider(in.into);
        for (Outbound& out : outbound_)
            for (Operation* operation : out.queue) consider(operation);
        return found;
    };
    if (closed_ || lost().empty()) return;
    progress();  // what arrived before the peer left counts
    // One at a time: cancelling one can move others.
    for (auto found = lost(); !found.empty(); found = lost()) {
        Operation& operation = *found.front();
        operation.error.emplace(*find_loss(operation, states));
        if (operation.copy) {
            Outbound& out = outbound_[static_cast<size_t>(operation.peer)];
            out.cut = true;
            out.queue.pop_front();
            --queued_;
        } else {
            cancel(operation);
        }
        finish(operation);
    }
}

// The state of the peers that the operation depends on, or of all peers if it depends on none in particular.
std::vector<Channel::State> Channel::check_peers(const Operation* operation) const {
    std::vector<State> states(members_.size(), State::present);
    for (uint32_t peer = 0; peer < states.size(); ++peer) {
        // Acquire: what the peer wrote before it left is visible.
        auto standing = static_cast<Standing>(posts_[peer]->standing.load(std::memory_order_acquire));
        bool concerned = !operation || operation->peer == any_source || operation->peer == peer;
        if (standing == Standing::left)
            states[peer] = State::left;
        else if (standing != Standing::open)
            states[peer] = State::gave_up;
        else if (concerned && life_of(*members_[peer].arena) == Life::dead)
            states[peer] = State::gone;
    }
    return states;
}

std::optional<EngineError> Channel::find_loss(const Operation& operation, const std::vector<State>& states) const {
    const std::string name = name_of(operation) + ": ";
    auto lost = [&](const std::string& text) { return EngineError(Fault::rank_lost, joined({name, text, where()})); };
    auto blame = [&](uint32_t peer) {
        blame_.lost(peer);
        return lost(blame_.sentence({peer}));
    };
    if (states[rank_] == State::left) return lost("this communicator was closed");
    if (states[rank_] == State::gave_up) {
        uint32_t first = blame_.first(rank_);
        return lost("this communicator was aborted" + (first == rank_ ? "" : ": " + blame_.fate(first)));
    }
    bool alone = states.size() > 1;
    for (uint32_t peer = 0; peer < states.size(); ++peer) {
        if (peer == rank_) continue;
        alone = alone && states[peer] != State::present;
        // A receive from any rank: a rank that died may be the one that should have sent the message. A rank that
        // closed has sent everything that it wanted to send.
        if (states[peer] == State::gone && (operation.peer == peer || operation.peer == any_source)) return blame(peer);
        if (states[peer] == State::left && operation.peer == peer) return blame(peer);
    }
    // Last: a rank gives up because of another one, which should be named instead.
    for (uint32_t peer = 0; peer < states.size(); ++peer) {
        if (peer != rank_ && states[peer] == State::gave_up) return blame(peer);
    }
    if (alone && operation.peer == any_source) return lost("every other rank has left");
    return std::nullopt;
}

EngineError Channel::timed_out(const Operation& operation, Clock::duration timeout) const {
    char within[48];
    std::snprintf(within, sizeof within, " within %g s", std::chrono::duration<double>(timeout).count());
    std::string peer = operation.peer == any_source ? "any rank" : joined({"rank ", operation.peer});
    std::string tag = operation.tag == any_tag ? " with any tag" : joined({" with tag ", operation.tag});
    std::string text = name_of(operation) + ": ";
    auto part = [](uint64_t some, uint64_t all) { return joined({some, " of ", all, " bytes"}); };
    if (sends(operation)) {
        bool begun = operation.started;
        text += joined({peer, " took ", begun ? joined({"only ", part(operation.moved, operation.bytes())}) : "nothing",
                        " of ", what(operation.dtype, operation.elements), tag, within});
        if (operation.background)
            text += "; it continues";
        else
            text += begun ? "; the rest follows as soon as it does" : "; it was not sent";
        return EngineError(Fault::timeout, text + where());
    }
    auto arriving =
        std::find_if(inbound_.begin(), inbound_.end(), [&](const Inbound& in) { return in.into == &operation; });
    if (arriving != inbound_.end())
        text += joined(
            {"only ", part(arriving->got, arriving->total), " arrived from rank ", arriving->source, tag, within});
    else
        text += joined({"nothing arrived from ", peer, tag, within});
    // In most cases the message is there, with another tag or from another rank.
    size_t named = 0;
    for (const Stored& stored : stored_) {
        if (stored.header.context != operation.context) continue;
        if (named++ == 3) break;
        text += joined({named == 1 ? "; these did arrive: " : ", ",
                        what(static_cast<DType>(stored.header.dtype), stored.header.elements), " from rank ",
                        stored.source, " with tag ", stored.header.tag});
    }
    if (named > 3) text += " and more";
    return EngineError(Fault::timeout, text + where());
}

}  // namespace allfold
