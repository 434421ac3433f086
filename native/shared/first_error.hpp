// The error that ended a communicator on this rank, to be repeated by its later calls and messages. The call that
// failed may have been a background call that nobody waited for.
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

    // Throws it again, with its original type, in the name of another call; returns if there is none. `patience` is how
    // long to wait for an error that is about to be recorded: a mismatch is announced at once, and a little later the
    // error says which rank called what.
    void say_again(const std::string& name, std::chrono::nanoseconds patience = {}) {
        auto limit = std::chrono::steady_clock::now() + patience;
        while (true) {
            {
                std::lock_guard lock(mutex_);
                if (error_)
                    throw EngineError(error_->fault,
                                      name + ": this communicator is broken by an earlier error: " + error_->what() +
                                          "; continue with shrink(), or create a new one");
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
