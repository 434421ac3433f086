// A call that is prepared now and made later, by `perform`: a CUDA stream calls it when it reaches that point.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>

namespace allfold {

// The outcome of calls made one after the other: their number, and the first error. After it, no more are made.
class Outcome {
  public:
    uint64_t performed() const { return performed_.load(std::memory_order_acquire); }
    bool failed() const { return failed_.load(std::memory_order_acquire); }
    void rethrow() const {
        if (failed()) std::rethrow_exception(error_);
    }
    void fail(std::exception_ptr error) {
        error_ = error;
        failed_.store(true, std::memory_order_release);  // the error is there to be read
    }
    void end_one() { performed_.fetch_add(1, std::memory_order_release); }

  private:
    std::atomic<uint64_t> performed_{0};
    std::atomic<bool> failed_{false};
    std::exception_ptr error_;
};

class Deferred {
  public:
    // The work keeps what it needs alive. It is not destroyed by `perform`, whose thread must not wait for Python.
    Deferred(std::function<void()> work, std::shared_ptr<Outcome> outcome)
        : work_(std::move(work)), outcome_(std::move(outcome)) {}

    // A plain C function for streams, called on a thread that Python does not know.
    static void perform(void* self) noexcept {
        auto* deferred = static_cast<Deferred*>(self);
        // A copy: a waiting thread may destroy the object as soon as the call has ended.
        auto outcome = deferred->outcome_;
        if (!outcome->failed()) {
            try {
                deferred->work_();
            } catch (...) {
                outcome->fail(std::current_exception());
            }
        }
        outcome->end_one();
    }

  private:
    std::function<void()> work_;
    std::shared_ptr<Outcome> outcome_;
};

}  // namespace allfold
