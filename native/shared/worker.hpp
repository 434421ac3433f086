// Background calls, executed one after the other in the order in which they were made.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "shared/fork.hpp"
#include "shared/wait.hpp"

namespace allfold {

// No mutex and no condition variable: a forked child may have to destroy its copy while a thread of the parent waits.
class Ticket {
  public:
    void finish(std::exception_ptr error) {
        error_ = error;
        done_.store(1, std::memory_order_release);  // the error is there to be read
        wake_all(done_);
    }
    bool done() const { return done_.load(std::memory_order_acquire) != 0; }
    bool wait_for(Clock::duration time) {
        auto limit = Clock::now() + time;
        while (!done() && Clock::now() < limit) sleep_on(done_, 0, limit - Clock::now());
        return done();
    }
    void rethrow() const {
        if (error_) std::rethrow_exception(error_);
    }

  private:
    std::atomic<uint64_t> done_{0};
    std::exception_ptr error_;
};

class Worker {
  public:
    Worker()
        : thread_([this] {
              loop();
              auto itself = std::move(itself_);  // of a released worker, which nothing else owns
          }) {}
    ~Worker() {
        if (!thread_.joinable()) return;  // it was released by let_go()
        {
            std::lock_guard lock(mutex_);
            ends_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    // Release the worker, which then ends by itself after its last job. `kept` lives until then. A job may call this,
    // on the worker's own thread.
    static void let_go(std::unique_ptr<Worker> worker, std::shared_ptr<void> kept) {
        Worker& self = *worker;
        std::lock_guard lock(self.mutex_);
        self.kept_ = std::move(kept);
        self.itself_ = std::move(worker);
        self.ends_ = true;
        self.thread_.detach();
        self.changed_.notify_all();  // with the lock held: without it the worker may be destroyed already
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
    // Withdraw a submitted job; false if it has begun.
    bool withdraw(const Ticket& ticket) {
        std::lock_guard lock(mutex_);
        return std::erase_if(jobs_, [&](const auto& job) { return job.second.get() == &ticket; }) > 0;
    }
    bool busy() {
        std::lock_guard lock(mutex_);
        return working_ || !jobs_.empty();
    }
    bool is_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

  private:
    void loop() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
            if (jobs_.empty()) return;  // only now: jobs submitted before the end are still run
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
            // A child forked inside the job has no other thread, and nothing to return to.
            if (forks() != forks_) _exit(EXIT_FAILURE);
            job = nullptr;
            // Clear `busy` before the job is reported as done, so that the next call need not go through here.
            lock.lock();
            working_ = false;
            lock.unlock();
            ticket->finish(error);
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::list<std::pair<std::function<void()>, std::shared_ptr<Ticket>>> jobs_;
    bool working_ = false;
    bool ends_ = false;
    uint32_t forks_ = forks();
    std::shared_ptr<void> kept_;
    std::unique_ptr<Worker> itself_;
    std::thread thread_;
};

}  // namespace allfold
