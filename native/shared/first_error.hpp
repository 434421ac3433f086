// What ended a communicator on this rank: for its later calls, and for its messages, to say again. The call that it
// ended may have been one in the background that nobody waited for.
#pragma once

#include <time.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "shared/errors.hpp"

namespace allfold {

class FirstError {
  public:
    void set(const EngineError& error) {
        std::lock_guard lock(mutex_);
        if (!error_) error_ = error;
    }

    // Throws it again, as what it was, in the name of another call; returns if there is nothing to say. `patience` is
    // for an error that is about to come: who sees ranks disagree says so at once, and a little later who came with
    // what.
    void say_again(const std::string& name, std::chrono::nanoseconds patience = {}) {
        auto limit = std::chrono::steady_clock::now() + patience;
        while (true) {
            {
                std::lock_guard lock(mutex_);
                if (error_)
                    throw EngineError(error_->fault, name + ": this communicator is broken by an earlier error: " +
                                                         error_->what() + "; go on with shrink(), or make a new one");
            }
            if (std::chrono::steady_clock::now() >= limit) return;
            timespec moment{0, 1000000};
            nanosleep(&moment, nullptr);
        }
    }

  private:
    std::mutex mutex_;
    std::optional<EngineError> error_;
};

}  // namespace allfold
