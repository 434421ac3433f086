// Calls that go on in the background, one after the other, in the order in which they were made.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace allfold {

class Ticket {
  public:
    void finish(std::exception_ptr error) {
        {
            std::lock_guard lock(mutex_);
            error_ = error;
            done_ = true;
        }
        changed_.notify_all();
    }
    bool done() {
        std::lock_guard lock(mutex_);
        return done_;
    }
    bool wait_for(std::chrono::nanoseconds time) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, time, [this] { return done_; });
    }
    void rethrow() {
        std::lock_guard lock(mutex_);
        if (error_) std::rethrow_exception(error_);
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    std::exception_ptr error_;
};

class Worker {
  public:
    Worker() : thread_([this] { loop(); }) {}
    ~Worker() {
        {
            std::lock_guard lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    std::shared_ptr<Ticket> submit(std::function<void()> job) {
        auto ticket = std::make_shared<Ticket>();
        {
            std::lock_guard lock(mutex_);
            jobs_.emplace_back(std::move(job), ticket);
        }
        changed_.notify_all();
        return ticket;
    }
    bool busy() {
        std::lock_guard lock(mutex_);
        return working_ || !jobs_.empty();
    }

  private:
    void loop() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
            if (jobs_.empty()) return;  // what was submitted before the end is still done
            auto [job, ticket] = std::move(jobs_.front());
            jobs_.pop_front();
            working_ = true;
            lock.unlock();
            std::exception_ptr error;
            try {
                job();
            } catch (...) {
                error = std::current_exception();
            }
            job = nullptr;
            // Not busy any more by the time somebody hears that it is done: the next call need not go through here.
            lock.lock();
            working_ = false;
            lock.unlock();
            ticket->finish(error);
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::pair<std::function<void()>, std::shared_ptr<Ticket>>> jobs_;
    bool working_ = false;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace allfold
