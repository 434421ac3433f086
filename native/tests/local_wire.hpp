// A wire between threads of one process, for tests: a message goes from memory to memory under one lock.
#pragma once

#include <condition_variable>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "wire/wire.hpp"

namespace allfold {

class LocalWire : public Wire {
  public:
    static std::vector<std::shared_ptr<LocalWire>> group(int size) {
        auto hub = std::make_shared<Hub>();
        std::vector<std::shared_ptr<LocalWire>> made;
        for (int rank = 0; rank < size; ++rank)
            made.push_back(std::shared_ptr<LocalWire>(new LocalWire(rank, size, hub)));
        for (auto& one : made) hub->ends.push_back(one.get());
        return made;
    }

    ~LocalWire() override { cut(); }

    WireTransfer* send(int peer, const void* data, size_t bytes, uint64_t tag) override {
        return begin(new Moving(*this, true, peer, const_cast<void*>(data), bytes, tag));
    }
    WireTransfer* receive(int peer, void* data, size_t bytes, uint64_t tag) override {
        return begin(new Moving(*this, false, peer, data, bytes, tag));
    }
    void release(WireTransfer* transfer) override {
        auto* moving = static_cast<Moving*>(transfer);
        {
            std::lock_guard lock(hub_->mutex);
            hub_->waiting.remove(moving);
        }
        delete moving;
    }
    bool progress() override { return false; }
    void sleep(uint64_t seen, Clock::time_point deadline) override {
        std::unique_lock lock(hub_->mutex);
        auto most = std::min<Clock::time_point>(deadline, Clock::now() + longest_sleep);
        hub_->moved.wait_until(lock, most, [&] { return turn() != seen; });
    }
    void wake() override {
        std::lock_guard lock(hub_->mutex);
        change();
    }
    void watch(int) override {}
    void cut() override {
        std::lock_guard lock(hub_->mutex);
        is_cut_ = true;
        std::list<Moving*> failed;
        for (Moving* one : hub_->waiting)
            if (one->owner.rank() == rank() || one->to == rank()) failed.push_back(one);
        for (Moving* one : failed) {
            hub_->waiting.remove(one);
            one->fail();
        }
    }
    bool lost(int peer) const override {
        std::lock_guard lock(hub_->mutex);
        return is_lost(peer);
    }

  private:
    struct Moving : WireTransfer {
        Moving(LocalWire& owner, bool sends, int to, void* data, size_t bytes, uint64_t tag)
            : owner(owner), sends(sends), to(to), tag(tag), data(static_cast<char*>(data)), room(bytes) {
            peer_ = to;
        }
        void end(size_t bytes) {
            bytes_ = bytes;
            state_.store(State::done, std::memory_order_release);
            owner.change();
        }
        void fail() {
            why_ = "it was cut";
            state_.store(State::failed, std::memory_order_release);
            owner.change();
        }
        LocalWire& owner;
        bool sends;
        int to;
        uint64_t tag;
        char* data;
        size_t room;
        std::unique_ptr<char[]> copy;
    };
    struct Hub {
        std::mutex mutex;
        std::condition_variable moved;
        std::list<Moving*> waiting;
        std::vector<LocalWire*> ends;
    };

    LocalWire(int rank, int size, std::shared_ptr<Hub> hub) : Wire(rank, size), hub_(std::move(hub)) {}

    bool is_lost(int peer) const { return is_cut_ || hub_->ends[static_cast<size_t>(peer)]->is_cut_; }
    void change() {
        turn_.fetch_add(1, std::memory_order_release);
        hub_->moved.notify_all();
    }
    WireTransfer* begin(Moving* moving) {
        std::lock_guard lock(hub_->mutex);
        if (is_lost(moving->to)) {
            moving->fail();
            return moving;
        }
        for (Moving* other : hub_->waiting) {
            if (other->sends == moving->sends || other->to != rank() || moving->to != other->owner.rank() ||
                other->tag != moving->tag)
                continue;
            hub_->waiting.remove(other);
            Moving &sent = moving->sends ? *moving : *other, &received = moving->sends ? *other : *moving;
            if (sent.room > received.room) {
                sent.fail();
                received.fail();
                return moving;
            }
            std::memcpy(received.data, sent.data, sent.room);
            received.end(sent.room);
            sent.end(sent.room);
            return moving;
        }
        hub_->waiting.push_back(moving);
        return moving;
    }

    std::shared_ptr<Hub> hub_;
    bool is_cut_ = false;
};

}  // namespace allfold
