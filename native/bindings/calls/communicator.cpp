// The communicator for Python: runs calls without the GIL, at once or in the background.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/calls/job.hpp"
#include "bindings/calls/plans.hpp"
#include "bindings/calls/program.hpp"
#include "bindings/deferred.hpp"
#include "bindings/gil.hpp"
#include "collectives/communicator.hpp"
#include "shared/attachment.hpp"
#include "shared/worker.hpp"

namespace allfold {

namespace {

Clock::duration seconds(double value) {
    // A year is practically forever, and does not overflow.
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(value, 3.15e7)));
}

// How long an interrupted call waits for the thread that makes it. That thread looks around every 20 ms, unless an
// operation of the user's own keeps it busy; then it ends, and writes nothing, when that returns.
constexpr auto aborts_within = std::chrono::seconds(5);

// What the workers keep that were let go, because their communicators were dropped or the process ends. It is gone when
// the worker has ended. Changed with the GIL held.
using Dropped = std::shared_ptr<Communicator>;
std::vector<std::weak_ptr<Dropped>> dropped;

void after_fork() {
    forget_other_threads();
    dropped.clear();  // their workers are the parent's
}

class PyCommunicator {
  public:
    using MemberTuple = std::tuple<std::shared_ptr<Arena>, size_t, size_t>;

    PyCommunicator(uint32_t rank, const std::vector<MemberTuple>& members, std::string label, nb::object compile,
                   nb::object long_way, nb::object failed, double timeout, bool fetches, uint64_t group,
                   std::shared_ptr<FirstError> first_error, std::shared_ptr<Attachment> attachment)
        : long_way_(std::move(long_way)), failed_(std::move(failed)), timeout_(seconds(timeout)),
          // Whoever can reach the communicator keeps what it uses.
          native_(new Communicator(rank, listed(members), std::move(label), fetches, group, std::move(first_error)),
                  [attachment = std::move(attachment), events = events_](Communicator* native) {
                      if (native->is_here()) delete native;  // a forked child must not destroy its copy
                  }),
          plans_(*native_, std::move(compile)) {}

    ~PyCommunicator() {
        if (!worker_) return;
        if (!native_->is_here()) {  // a forked child has no such thread
            static_cast<void>(worker_.release());
        } else if (worker_->busy() || worker_->is_this_thread()) {
            let_worker_go();  // the last reference may be that of a job
        } else {
            WithoutGil without;  // the worker may still need it, to release the arrays of its last job
            worker_.reset();
        }
    }

    Plans& plans() { return plans_; }

    // The fast path for almost all calls: blocking, with a built-in operation, a registered algorithm and a contiguous
    // array. It keeps Python's overhead below a microsecond. Everything else takes the long path, also arrays that are
    // not in main memory or must be copied first. `vouched`: see Array.
    nb::object call(int collective, nb::handle input, nb::handle output, nb::handle op, int root, nb::handle algorithm,
                    nb::handle in_background, nb::handle timeout, nb::handle dtype, bool vouched) {
        bool plain = in_background.ptr() == Py_False &&
                     (algorithm.is_none() || PyUnicode_CheckExact(algorithm.ptr())) && root >= 0 &&
                     static_cast<uint32_t>(root) < native_->size() && !(worker_ && worker_->busy());
        nb::object number = nb::none();
        if (plain && !op.is_none()) {
            number = nb::borrow(PyDict_GetItem(op_numbers().ptr(), op.ptr()));
            plain = number.is_valid();
        }
        if (plain) {
            Job job;
            try {
                prepare(job, collective, input, output, number, root, algorithm, timeout, dtype, vouched);
            } catch (const nb::python_error& error) {
                if (job.is_taken || is_interrupt(error)) throw;
                plain = false;
            } catch (const std::exception&) {
                if (job.is_taken) throw;
                plain = false;
            }
            if (plain) {
                perform(job);
                return nb::none();
            }
        }
        return call_python(long_way_, collective, input, output, op, root, algorithm, in_background, timeout, dtype);
    }

    nb::object call_the_long_way(PyObject* const* a) {
        nb::handle given[10];
        std::copy(a, a + 10, given);
        return call_python(long_way_, given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7],
                           given[8], given[9]);
    }

    // A call that can take the fast path, for `perform`; None if it cannot. Other threads make no calls meanwhile.
    nb::object prepared(int collective, nb::handle output, nb::handle op, int root, nb::handle dtype, bool vouched) {
        auto job = std::make_unique<Job>();
        try {
            nb::object number = nb::none();
            if (!op.is_none()) number = nb::borrow(PyDict_GetItem(op_numbers().ptr(), op.ptr()));
            if (!number.is_valid()) return nb::none();
            nb::float_ forever(1e7);  // whoever calls watches over the time
            prepare(*job, collective, nb::none(), output, number, root, nb::none(), forever, dtype, vouched);
        } catch (const nb::python_error& error) {
            if (is_interrupt(error)) throw;
            return nb::none();
        } catch (const std::exception&) {
            return nb::none();
        }
        return nb::cast(job.release(), nb::rv_policy::take_ownership);
    }

    // Runs one call, or passes it to the worker and returns its ticket.
    nb::object run(int collective, nb::handle input, nb::handle output, nb::handle op, int root, nb::handle algorithm,
                   nb::handle timeout, nb::handle dtype, nb::handle counts, bool in_background) {
        check_caller(collectives[collective].name.c_str());
        if (in_background || (worker_ && worker_->busy())) {
            auto job = shared_job();
            prepare(*job, collective, input, output, op, root, algorithm, timeout, dtype, false, counts);
            auto ticket = submit(job);
            if (in_background) return nb::cast(ticket);
            auto since = Clock::now();
            double moment = std::chrono::duration<double>(job->call.timeout).count();
            auto is_done = [&] {
                try {
                    return wait(*ticket, moment);
                } catch (...) {
                    // The call failed, or a signal handler raised. The caller's arrays are its own again, so the call
                    // must not go on: if it has not begun it never will, otherwise it is aborted.
                    if (!ticket->done() && !worker_->withdraw(*ticket)) {
                        native_->retire(Standing::aborted);
                        WithoutGil without;
                        ticket->wait_for(aborts_within);
                    }
                    throw;
                }
            };
            for (; !is_done(); moment = 0.05) {
                // Not begun in time: the calls before it take too long. Once begun, it has its own timeout.
                if (native_->gives_up_turn(since, job->call.timeout) && worker_->withdraw(*ticket))
                    throw native_->not_my_turn(collectives[collective].name.c_str(), job->call.timeout);
            }
        } else {
            Job job;
            prepare(job, collective, input, output, op, root, algorithm, timeout, dtype, false, counts);
            perform(job);
        }
        return nb::none();
    }

    // One call for later, and for as many times as it is performed. Whoever asks for it makes no other calls in
    // between.
    std::unique_ptr<Deferred> deferred(int collective, nb::handle input, nb::handle output, nb::handle op, int root,
                                       nb::handle algorithm, nb::handle timeout, nb::handle dtype, nb::handle counts,
                                       std::shared_ptr<Outcome> outcome) {
        check_caller(collectives[collective].name.c_str());
        auto job = shared_job();
        prepare(*job, collective, input, output, op, root, algorithm, timeout, dtype, false, counts);
        job->call.pinned = true;  // whoever defers calls moves data to and from a device
        return std::make_unique<Deferred>([native = native_, job] { native->run(job->call, nullptr, nullptr); },
                                          std::move(outcome));
    }

    bool wait(Ticket& ticket, double timeout) {
        if (!ticket.done()) check_caller("wait");
        auto limit = Clock::now() + (timeout < 0 ? seconds(1e9) : seconds(timeout));
        while (true) {
            bool done;
            {
                WithoutGil without;
                auto left = limit - Clock::now();
                done = ticket.wait_for(std::min<Clock::duration>(left, std::chrono::milliseconds(50)));
            }
            check_signals();
            if (done) {
                try {
                    ticket.rethrow();
                } catch (const nb::python_error& error) {
                    throw nb::python_error(error);  // a copy: raising it in Python uses it up, and others may wait too
                }
                return true;
            }
            if (Clock::now() >= limit) return false;
        }
    }

    // `compares`: check whether all ranks made the same last call. Calls still in progress were not waited for, and are
    // not now.
    void close(bool compares) {
        if (!native_->is_here()) return;  // a forked child leaves its parent's communicator alone
        check_caller("close");
        WithoutGil without;
        std::exception_ptr error;
        try {
            if (compares && !(worker_ && worker_->busy())) native_->compare_last_call(check_signals);
        } catch (...) {
            error = std::current_exception();
        }
        native_->retire(Standing::left);
        worker_.reset();
        if (error) std::rethrow_exception(error);
    }
    void say_last(const std::string& words) {
        if (native_->is_here()) native_->say_last(words);
    }
    // The interpreter is about to end, and the worker's thread needs it to finish its calls; `await_threads` waits for
    // it. Returns whether a call was abandoned.
    bool end() {
        if (!native_->is_here()) return false;
        bool pending = native_->is_in_call() || (worker_ && worker_->busy());
        if (pending) native_->retire(Standing::aborted);
        let_worker_go();
        return pending;
    }

    void abort() {
        native_->check_here("abort");
        native_->retire(Standing::aborted);
    }
    bool in_shared_memory(nb::handle object) {
        Array array(object, false, std::nullopt);
        return native_->in_shared_memory(array.data, array.elements * size_of(array.dtype));
    }
    void sleep_early() { native_->sleep_early(); }
    uint64_t calls() const { return native_->calls(); }

    // Lets an error leave a call, after the engine has added to it what it knows. Only an interrupt meanwhile takes its
    // place.
    void raise_told(nb::python_error& error) noexcept {
        try {
            try {
                call_python(failed_, error.value());
            } catch (nb::python_error& trouble) {
                if (is_interrupt(trouble)) throw;
                trouble.discard_as_unraisable("allfold");
            }
            error.restore();
        } catch (nb::python_error& interrupt) {
            PyException_SetContext(interrupt.value().ptr(), nb::borrow(error.value()).release().ptr());
            interrupt.restore();
        }
    }
    void start_trace() {
        events_->clear();
        WithoutGil without;  // a background call may need the interpreter to finish
        native_->trace_to(events_.get(), timeout_);
    }
    nb::list stop_trace() {
        {
            WithoutGil without;
            native_->trace_to(nullptr, timeout_);
        }
        nb::list list;
        for (const Event& e : *events_)
            list.append(nb::make_tuple(e.call, e.program, e.segment, e.instruction, e.start, e.ready, e.end, e.bytes));
        return list;
    }

    // What a job holds belongs to Python, and this one may be destroyed on the worker's thread. Only this kind takes
    // the lock for that: in a small call it would be noticeable.
    static std::shared_ptr<Job> shared_job() {
        return {new Job, [](Job* job) {
                    WithGil with;
                    delete job;
                }};
    }

    void perform(Job& job) {
        constexpr size_t small = 16 << 10;
        Interpreter interpreter;
#if defined(__SANITIZE_THREAD__)
        interpreter.release();  // if kept, it would order accesses that ThreadSanitizer should see as unordered
#endif
        if (job.call.elements * size_of(job.call.dtype) > small) interpreter.release();
        native_->run(job.call, [&] { interpreter.release(); }, check_signals);
    }

  private:
    // The interpreter's lock, released only when a call takes longer: a small call is over before another thread could
    // take the lock.
    class Interpreter {
      public:
        void release() {
            if (!without_) without_.emplace();
        }

      private:
        std::optional<WithoutGil> without_;
    };

    // See Communicator::check_caller. An operation may also run on the worker's thread.
    void check_caller(const char* name) {
        native_->check_caller(name);
        if (worker_ && worker_->is_this_thread())
            throw EngineError(Fault::usage, std::string(name) +
                                                ": called from inside an operation, while the call that it belongs " +
                                                "to is under way on the same communicator, and would wait for itself");
    }

    // Raises UsageError for a wrong argument, and UnfitArray for an array that must be copied first.
    void prepare(Job& job, int collective, nb::handle input, nb::handle output, nb::handle op, int root,
                 nb::handle algorithm, nb::handle timeout, nb::handle dtype, bool vouched = false,
                 nb::handle counts = Py_None) {
        take_arguments(collectives[collective].name.c_str(), [&] {
            double limit = timeout.is_none() ? 0 : nb::cast<double>(timeout);
            if (!(limit >= 0)) throw nb::value_error("the timeout is a number of seconds from 0 up");  // NaN neither
            job.call.timeout = timeout.is_none() ? timeout_ : seconds(limit);
            job.set(*native_, collective, input, output, op, root, dtype, vouched, counts);
        });
        if (!algorithm.is_none()) job.algorithm = nb::cast<std::string>(algorithm);
        job.call.algorithm = job.algorithm.c_str();
        job.plan = plans_.set_programs(job.call, algorithm.is_none() ? nullptr : &job.algorithm);
        job.set_parts();
    }

    // The calls that were made go on by themselves.
    void let_worker_go() {
        if (!worker_) return;
        std::erase_if(dropped, [](const auto& one) { return one.expired(); });
        auto kept = std::make_shared<Dropped>(native_);
        dropped.push_back(kept);
        Worker::let_go(std::move(worker_), std::move(kept));
    }

    std::shared_ptr<Ticket> submit(std::shared_ptr<Job> job) {
        if (!worker_) worker_ = std::make_unique<Worker>();
        return worker_->submit([native = native_.get(), job] { native->run(job->call, nullptr, nullptr); });
    }

    // The numbers of the operations by name, as a Python dictionary: the fastest lookup for a Python string.
    static nb::dict& op_numbers() {
        static nb::dict* numbers = [] {
            auto* made = new nb::dict();
            for (size_t i = 0; i < op_count; ++i) (*made)[name_of(static_cast<Op>(i))] = static_cast<int>(i);
            return made;
        }();
        return *numbers;
    }

    static std::vector<Communicator::Member> listed(const std::vector<MemberTuple>& members) {
        std::vector<Communicator::Member> list;
        for (auto& [arena, post, work] : members) list.push_back({arena, post, work});
        return list;
    }

    nb::object long_way_, failed_;
    Clock::duration timeout_;
    const std::shared_ptr<std::vector<Event>> events_ = std::make_shared<std::vector<Event>>();
    std::shared_ptr<Communicator> native_;
    Plans plans_;
    std::unique_ptr<Worker> worker_;
};

}  // namespace

// The entry to PyCommunicator::call, as a plain C function: nanobind's overhead for ten arguments would be noticeable
// in the smallest calls.
static PyObject* call_directly(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count, bool vouched) noexcept {
    auto* self = static_cast<PyCommunicator*>(PyCapsule_GetPointer(capsule, nullptr));
    try {
        // Slices with lengths of their own take the long path.
        if (count == 10) return self->call_the_long_way(arguments).release().ptr();
        if (count != 9) throw EngineError(Fault::usage, "a call takes 9 or 10 arguments");
        auto collective = static_cast<int>(PyLong_AsLong(arguments[0]));
        auto root_error = [&] {
            drop_error();
            return EngineError(Fault::usage, collectives[collective].name +
                                                 ": root must be a rank, a whole number, not " + shown(arguments[4]));
        };
        nb::object index = nb::steal(in_python([&] { return PyNumber_Index(arguments[4]); }));
        if (!index.is_valid()) throw root_error();
        long root = PyLong_AsLong(index.ptr());
        if (root == -1 && PyErr_Occurred()) throw root_error();
        root = std::clamp<long>(root, INT32_MIN, INT32_MAX);
        return self
            ->call(collective, arguments[1], arguments[2], arguments[3], static_cast<int>(root), arguments[5],
                   arguments[6], arguments[7], arguments[8], vouched)
            .release()
            .ptr();
    } catch (nb::python_error& error) {
        self->raise_told(error);
    } catch (const EngineError& error) {
        raise(error);
        nb::python_error raised;
        self->raise_told(raised);
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

template <bool vouched>
static PyObject* call_entry(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) noexcept {
    return call_directly(capsule, arguments, count, vouched);
}

template <bool vouched>
static nb::object caller(nb::handle communicator) {
    static PyMethodDef definition{"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call_entry<vouched>)),
                                  METH_FASTCALL, "Run one collective."};
    // The function keeps the communicator alive, as the context of the capsule that it is bound to.
    nb::object capsule =
        nb::steal(PyCapsule_New(nb::cast<PyCommunicator*>(communicator), nullptr, [](PyObject* object) {
            Py_DECREF(static_cast<PyObject*>(PyCapsule_GetContext(object)));
        }));
    PyCapsule_SetContext(capsule.ptr(), communicator.inc_ref().ptr());
    return nb::steal(PyCFunction_New(&definition, capsule.ptr()));
}

void bind_communicator(nb::module_& module) {
    nb::class_<Job>(module, "Prepared");
    nb::class_<PyCommunicator>(module, "Communicator")
        .def(nb::init<uint32_t, const std::vector<PyCommunicator::MemberTuple>&, std::string, nb::object, nb::object,
                      nb::object, double, bool, uint64_t, std::shared_ptr<FirstError>, std::shared_ptr<Attachment>>())
        .def("choose", [](PyCommunicator& self, int collective, const Plans::Choices& choices,
                          const Plans::Ways& ways) { self.plans().choose(collective, choices, ways); })
        .def("forget", [](PyCommunicator& self, int collective,
                          const std::string& algorithm) { self.plans().forget(collective, algorithm); })
        .def("run", &PyCommunicator::run, nb::arg("collective"), nb::arg("input").none(), nb::arg("output").none(),
             nb::arg("op").none(), nb::arg("root"), nb::arg("algorithm").none(), nb::arg("timeout").none(),
             nb::arg("dtype").none(), nb::arg("counts").none(), nb::arg("in_background"))
        .def("prepared", &PyCommunicator::prepared, nb::arg("collective"), nb::arg("output"), nb::arg("op").none(),
             nb::arg("root"), nb::arg("dtype").none(), nb::arg("vouched"))
        .def("perform", &PyCommunicator::perform)
        .def("deferred", &PyCommunicator::deferred, nb::arg("collective"), nb::arg("input").none(),
             nb::arg("output").none(), nb::arg("op").none(), nb::arg("root"), nb::arg("algorithm").none(),
             nb::arg("timeout").none(), nb::arg("dtype").none(), nb::arg("counts").none(), nb::arg("outcome"))
        .def("wait", &PyCommunicator::wait)
        .def("close", &PyCommunicator::close)
        .def("say_last", &PyCommunicator::say_last)
        .def("end", &PyCommunicator::end)
        .def("abort", &PyCommunicator::abort)
        .def("in_shared_memory", &PyCommunicator::in_shared_memory)
        .def("sleep_early", &PyCommunicator::sleep_early)
        .def("calls", &PyCommunicator::calls)
        .def("start_trace", &PyCommunicator::start_trace)
        .def("stop_trace", &PyCommunicator::stop_trace);
    module.def("forget_programs", &Plans::forget_all);
    static const bool watching = pthread_atfork(nullptr, nullptr, after_fork) == 0;
    (void)watching;
    // Gives up the background calls of communicators that were dropped. Returns the number of these communicators.
    module.def("end_dropped", [] {
        size_t ended = 0;
        for (auto& one : dropped)
            if (auto kept = one.lock()) {
                ended += (*kept)->is_in_call();
                (*kept)->retire(Standing::aborted);
            }
        return ended;
    });
    // Waits until no thread is in a call without the interpreter's lock; false if one is when the time is up.
    module.def("await_threads", [](double limit) {
        auto any = [] {
            return threads_without_gil > 0 ||
                   !std::all_of(dropped.begin(), dropped.end(), [](const auto& one) { return one.expired(); });
        };
        for (auto end = Clock::now() + seconds(limit); any() && Clock::now() < end;) {
            nb::gil_scoped_release release;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return !any();
    });
    module.def("park_other_threads", &park_other_threads);
    module.def("check_program", [](nb::dict facts) { make_program(facts); });
    module.def("overlap", [](nb::handle one, nb::handle other) {
        return overlap(Array(one, false, std::nullopt), Array(other, false, std::nullopt));
    });
    module.def("caller", &caller<false>);
    module.def("caller_vouched", &caller<true>);
    module.attr("MOST_RANKS") = most_ranks;
    module.attr("POST_BYTES") = Communicator::post_bytes();
    module.attr("WORK_BYTES") = Communicator::work_bytes();
    // What tuning and the model of the engine (src/allfold/tune) need to know.
    module.attr("WINDOW_BYTES") = window_bytes;
    module.attr("SMALL_BYTES") = small_bytes;
    module.attr("FETCHED_BYTES") = fetched_bytes;
    module.attr("CACHED_BYTES") = cached_bytes;
    module.attr("MOST_HANDED") = habits.most_handed;
    module.attr("COPIES_IN_ROWS") = habits.copies_in_rows;
    module.def("segment_bytes", &segment_bytes);
    // The table of src/allfold/collectives.py, one dictionary per collective.
    module.def("define_collectives", [](const nb::list& table) {
        if (nb::len(table) > most_collectives)
            throw nb::value_error("more collectives than the extension has room for");
        collectives.clear();
        for (nb::handle one : table) {
            auto fact = [&](const char* name) { return nb::cast<bool>(one[name]); };
            collectives.push_back({nb::cast<std::string>(one["name"]), fact("rooted"), fact("takes_op"),
                                   fact("in_place"), fact("carries_data"), fact("exchanges"), fact("combines_all"),
                                   fact("brings_slice"), fact("gets_slice"), fact("root_brings"), fact("root_gets")});
        }
    });
    module.attr("OPS") = nb::make_tuple("sum", "avg", "product", "min", "max", "band", "bor", "bxor");
}

}  // namespace allfold
