// The path of messages from Python into the engine.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.hpp"
#include "messages/channel.hpp"
#include "shared/attachment.hpp"

namespace allfold {

// An operation and the array that it needs. Always released with the GIL held: the engine's threads never touch Python.
struct PyOperation {
    Array array;
    Operation operation;
};

// Acquire: what the thread that finished the operation wrote is visible.
inline bool is_done(const PyOperation& job) { return job.operation.done.load(std::memory_order_acquire); }

// The part of a channel that all messages need. PyChannel, in channel.cpp, has the rest.
class MessageEntry {
  public:
    using MemberTuple = std::tuple<std::shared_ptr<Arena>, size_t, size_t>;

    MessageEntry(uint32_t rank, const std::vector<MemberTuple>& members, std::string label, double timeout,
                 bool fetches, std::shared_ptr<FirstError> first_error, std::shared_ptr<Attachment> attachment);
    ~MessageEntry();
    MessageEntry(const MessageEntry&) = delete;

    // The operations of these have their arrays. The lock is kept where that is quicker: see Interpreter.
    Message performed(Operation& operation, Clock::duration limit);
    std::shared_ptr<PyOperation> begin(std::shared_ptr<PyOperation> job);
    Message finished(PyOperation& job, Clock::duration limit);
    bool poll(PyOperation& job);  // true once it is done

    Channel& native() { return *native_; }
    double timeout() const { return timeout_; }  // seconds

  protected:
    void keep(const std::shared_ptr<PyOperation>& job);

    std::shared_ptr<Attachment> attachment_;  // first, so that it ends last
    double timeout_;
    std::vector<std::shared_ptr<PyOperation>> kept_;
    size_t sweep_at_ = 16;
    std::unique_ptr<Channel> native_;  // last, so that it ends before what it uses
};

// The bytes that a take has received. They belong to Python then.
nanobind::object data_of(Operation& taken);

MessageEntry& messages_of(nanobind::handle channel);

}  // namespace allfold
