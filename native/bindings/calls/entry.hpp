// The path of ordinary calls from Python into the engine. It has its own files because it is compiled with -O2, and the
// other bindings with -O1.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/calls/job.hpp"
#include "bindings/calls/plans.hpp"
#include "collectives/communicator.hpp"
#include "shared/attachment.hpp"
#include "shared/worker.hpp"

namespace allfold {

inline Clock::duration seconds(double value) {
    // A year is practically forever, and does not overflow.
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(value, 3.15e7)));
}

// The part of a communicator that all calls need. PyCommunicator, in communicator.cpp, has the rest.
class CallEntry {
  public:
    using MemberTuple = std::tuple<std::shared_ptr<Arena>, size_t, size_t>;

    CallEntry(uint32_t rank, const std::vector<MemberTuple>& members, std::string label, nb::object compile,
              nb::object long_way, nb::object failed, double timeout, bool fetches, uint64_t group,
              std::shared_ptr<FirstError> first_error, std::shared_ptr<Attachment> attachment);
    ~CallEntry();
    CallEntry(const CallEntry&) = delete;

    // The fast path for almost all calls: blocking, with a built-in operation, a registered algorithm and a contiguous
    // array. It keeps Python's overhead below a microsecond. Everything else takes the long path, including arrays that
    // are not in main memory or must be copied first. `vouched`: see Array.
    nb::object call(int collective, nb::handle input, nb::handle output, nb::handle op, int root, nb::handle algorithm,
                    nb::handle in_background, nb::handle timeout, nb::handle dtype, bool vouched);
    nb::object call_the_long_way(PyObject* const* arguments);

    // Raises UsageError for a wrong argument, and UnfitArray for an array that must be copied first.
    void prepare(Job& job, int collective, nb::handle input, nb::handle output, nb::handle op, int root,
                 nb::handle algorithm, nb::handle timeout, nb::handle dtype, bool vouched = false,
                 nb::handle counts = Py_None);
    // The same for a job that has its arrays and, unless the engine chooses, the name of its algorithm.
    void prepare_taken(Job& job, int collective, nb::handle op, int root);
    void perform(Job& job);

    // False while calls of this communicator run in the background: others must wait behind them.
    bool is_free() const { return !worker_ || !worker_->busy(); }

    // Does `work`, and returns its result. If it throws, sets the Python error as `raise_told` does and returns
    // nothing.
    template <class Work>
    nb::object telling(Work&& work) noexcept {
        try {
            return work();
        } catch (nb::python_error& error) {
            raise_told(error);
        } catch (const EngineError& error) {
            raise(error);
            nb::python_error raised;
            raise_told(raised);
        } catch (const std::exception& error) {
            PyErr_SetString(PyExc_RuntimeError, error.what());
        }
        return {};
    }

    // Raises the error of a call, after the engine has attached its information. An interrupt meanwhile replaces it.
    void raise_told(nb::python_error& error) noexcept;

  protected:
    void let_worker_go();
    void set_programs(Job& job);

    nb::object long_way_, failed_;
    Clock::duration timeout_;
    const std::shared_ptr<std::vector<Event>> events_ = std::make_shared<std::vector<Event>>();
    std::shared_ptr<Communicator> native_;
    Plans plans_;
    std::unique_ptr<Worker> worker_;
};

// A Python function that calls `entry`, a part of `communicator`, and keeps that alive.
nb::object function_of(CallEntry* entry, nb::handle communicator, bool vouched);

}  // namespace allfold
