// A call that is prepared now and made later, by whoever calls `perform`: a CUDA stream, when it has come that far.
#pragma once

#include <functional>
#include <memory>

#include "shared/worker.hpp"

namespace allfold {

class Deferred {
  public:
    // The work keeps what it needs alive. It is not destroyed by `perform`, whose thread must not wait for Python.
    explicit Deferred(std::function<void()> work) : work_(std::move(work)) {}

    // What a stream calls, once: a plain C function, on a thread that Python does not know.
    static void perform(void* self) noexcept {
        auto* deferred = static_cast<Deferred*>(self);
        std::exception_ptr error;
        try {
            deferred->work_();
        } catch (...) {
            error = std::current_exception();
        }
        // A copy: whoever waits may destroy the object as soon as the ticket is done.
        auto ticket = deferred->ticket_;
        ticket->finish(error);
    }

    const std::shared_ptr<Ticket>& ticket() const { return ticket_; }

  private:
    std::function<void()> work_;
    std::shared_ptr<Ticket> ticket_ = std::make_shared<Ticket>();
};

}  // namespace allfold
