// Messages that are under way, as MPI's requests have them.
#pragma once

#include <memory>

#include "bindings/mpi/words.hpp"

namespace allfold::mpi {

// What a request of Python stands for: see PendingRequest in mpi4py/requests.py.
class Pending {
  public:
    Pending(nb::handle communicator, Calls& calls, std::shared_ptr<PyOperation> job)
        : communicator_(nb::borrow(communicator)), channel_(calls.channel), messages_(calls.messages),
          job_(std::move(job)) {}

    bool done();
    // Waits for its end. Raises the error as the communicator does; may be called again.
    void finish();
    nb::object wait();  // with the facts of the message, and the object that was received: none
    void cancel();

  private:
    nb::object communicator_, channel_;
    MessageEntry& messages_;
    std::shared_ptr<PyOperation> job_;
    Message message_;
    bool has_ended_ = false;
};

// A new request for an operation.
nb::object request_for(nb::handle communicator, Calls& calls, std::shared_ptr<PyOperation> job);

// An operation on the bytes of an array; false if the other arguments are not a rank and a tag.
bool set_send(const Given& given, const Calls& calls, PyOperation& job, size_t array, size_t peer, size_t tag);
bool set_receive(const Given& given, const Calls& calls, PyOperation& job, size_t array, size_t peer, size_t tag);

// Calls `work` and raises its errors as the communicator does.
template <class Work>
auto failing(nb::handle communicator, Work work) -> decltype(work()) {
    try {
        return work();
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const EngineError& error) {
        raise(error);
    }
    fail(communicator, "_fail");
}

Clock::duration limit_of(const MessageEntry& messages);

}  // namespace allfold::mpi
