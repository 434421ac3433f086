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
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/calls/communicator.hpp"
#include "bindings/calls/entry.hpp"
#include "bindings/calls/job.hpp"
#include "bindings/calls/plans.hpp"
#include "bindings/calls/program.hpp"
#include "bindings/deferred.hpp"
#include "bindings/gil.hpp"
#include "collectives/communicator.hpp"
#include "collectives/signature.hpp"
#include "shared/attachment.hpp"
#include "shared/worker.hpp"

namespace allfold {

namespace {

// How long an interrupted call waits for the thread that makes it. That thread checks every 20 ms whether to stop,
// unless it is in a user-defined operation; then it stops when that returns, and writes nothing.
constexpr auto aborts_within = std::chrono::seconds(5);

// What released workers keep alive: those of dropped communicators, and all of them when the process ends. An entry is
// gone when its worker has ended. Changed with the GIL held.
using Dropped = std::shared_ptr<Communicator>;
std::vector<std::weak_ptr<Dropped>> dropped;

void after_fork() {
    forget_other_threads();
    dropped.clear();  // their workers are the parent's
}

std::vector<Communicator::Member> listed(const std::vector<CallEntry::MemberTuple>& members) {
    std::vector<Communicator::Member> list;
    for (auto& [arena, post, work] : members) list.push_back({arena, post, work});
    return list;
}

class PyCommunicator : public CallEntry {
  public:
    using CallEntry::CallEntry;

    Plans& plans() { return plans_; }
    Communicator& native() { return *native_; }

    // A call that can take the fast path, for `perform`; None if it cannot. Other threads make no calls meanwhile.
    nb::object prepared(int collective, nb::handle output, nb::handle op, int root, nb::handle dtype, bool vouched) {
        auto job = std::make_unique<Job>();
        try {
            nb::object number = nb::none();
            if (!op.is_none()) number = Job::number_of(op);
            if (!number.is_valid()) return nb::none();
            nb::float_ forever(1e7);  // the caller has a timeout of its own
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
                    // The call failed, or a signal handler raised. The caller gets its arrays back, so the call must
                    // not continue: if it has not begun it never will, otherwise it is aborted.
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

    // A call to be performed later, any number of times. The caller makes no other calls in between.
    std::unique_ptr<Deferred> deferred(int collective, nb::handle input, nb::handle output, nb::handle op, int root,
                                       nb::handle algorithm, nb::handle timeout, nb::handle dtype, nb::handle counts,
                                       std::shared_ptr<Outcome> outcome) {
        check_caller(collectives[collective].name.c_str());
        auto job = shared_job();
        prepare(*job, collective, input, output, op, root, algorithm, timeout, dtype, false, counts);
        job->call.pinned = true;  // deferred calls are for data that a device copies
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
                    throw nb::python_error(
                        error);  // a copy: raising it in Python consumes it, and other threads may wait too
                }
                return true;
            }
            if (Clock::now() >= limit) return false;
        }
    }

    // `compares`: check that all ranks made the same last call. Calls still in progress are not waited for.
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
    // it. Returns true if a call was abandoned.
    bool end() {
        if (!native_->is_here()) return false;
        bool pending = native_->is_in_call() || (worker_ && worker_->busy());
        if (pending) native_->retire(Standing::aborted);
        let_worker_go();
        return pending;
    }

    void abort(const std::vector<uint32_t>& because_of) {
        native_->check_here("abort");
        native_->blame(because_of);
        native_->retire(Standing::aborted);
    }
    bool in_shared_memory(nb::handle object) {
        Array array(object, false, std::nullopt);
        return native_->in_shared_memory(array.data, array.elements * size_of(array.dtype));
    }
    void sleep_early() { native_->sleep_early(); }
    void follow(const PyCommunicator& outer) { native_->follow(outer.native_); }
    void check_given_up(const std::string& name, const std::vector<uint32_t>& ranks) const {
        native_->check_given_up(name.c_str(), ranks);
    }
    std::vector<uint32_t> given_up(const std::vector<uint32_t>& ranks) const { return native_->given_up(ranks); }
    uint64_t calls() const { return native_->calls(); }

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

    // A job holds Python objects, and this one may be destroyed on the worker's thread. Only this kind takes the lock
    // for that, because in a small call that would take noticeable time.
    static std::shared_ptr<Job> shared_job() {
        return {new Job, [](Job* job) {
                    WithGil with;
                    delete job;
                }};
    }

  private:
    // See Communicator::check_caller. An operation may also run on the worker's thread.
    void check_caller(const char* name) {
        native_->check_caller(name);
        if (worker_ && worker_->is_this_thread())
            throw EngineError(Fault::usage,
                              std::string(name) +
                                  ": called inside a user-defined operation of the same communicator, where it " +
                                  "would wait for itself");
    }

    std::shared_ptr<Ticket> submit(std::shared_ptr<Job> job) {
        if (!worker_) worker_ = std::make_unique<Worker>();
        return worker_->submit([native = native_.get(), job] { native->run(job->call, nullptr, nullptr); });
    }
};

}  // namespace

CallEntry::CallEntry(uint32_t rank, const std::vector<MemberTuple>& members, std::string label, nb::object compile,
                     nb::object long_way, nb::object failed, double timeout, bool fetches, uint64_t group,
                     std::shared_ptr<FirstError> first_error, std::shared_ptr<Attachment> attachment)
    : long_way_(std::move(long_way)), failed_(std::move(failed)), timeout_(seconds(timeout)),
      // The communicator keeps alive what it uses.
      native_(new Communicator(rank, listed(members), std::move(label), fetches, group, std::move(first_error)),
              [attachment = std::move(attachment), events = events_](Communicator* native) {
                  if (native->is_here()) delete native;  // a forked child must not destroy its copy
              }),
      plans_(*native_, std::move(compile)) {}

CallEntry::~CallEntry() {
    if (!worker_) return;
    if (!native_->is_here()) {  // a forked child has no such thread
        static_cast<void>(worker_.release());
    } else if (worker_->busy() || worker_->is_this_thread()) {
        let_worker_go();  // the last reference may be a job's
    } else {
        WithoutGil without;  // the worker may still need it, to release the arrays of its last job
        worker_.reset();
    }
}

// Calls that were made continue.
void CallEntry::let_worker_go() {
    if (!worker_) return;
    std::erase_if(dropped, [](const auto& one) { return one.expired(); });
    auto kept = std::make_shared<Dropped>(native_);
    dropped.push_back(kept);
    Worker::let_go(std::move(worker_), std::move(kept));
}

Communicator& communicator_of(nb::handle object) { return nb::cast<PyCommunicator*>(object)->native(); }
CallEntry& entry_of(nb::handle object) { return *nb::cast<PyCommunicator*>(object); }
Plans& plans_of(nb::handle object) { return nb::cast<PyCommunicator*>(object)->plans(); }

void bind_communicator(nb::module_& module) {
    nb::class_<Job>(module, "Prepared");
    nb::class_<PyCommunicator>(module, "Communicator")
        .def(nb::init<uint32_t, const std::vector<CallEntry::MemberTuple>&, std::string, nb::object, nb::object,
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
        .def("perform", &CallEntry::perform)
        .def("deferred", &PyCommunicator::deferred, nb::arg("collective"), nb::arg("input").none(),
             nb::arg("output").none(), nb::arg("op").none(), nb::arg("root"), nb::arg("algorithm").none(),
             nb::arg("timeout").none(), nb::arg("dtype").none(), nb::arg("counts").none(), nb::arg("outcome"))
        .def("wait", &PyCommunicator::wait)
        .def("close", &PyCommunicator::close)
        .def("say_last", &PyCommunicator::say_last)
        .def("end", &PyCommunicator::end)
        .def("abort", &PyCommunicator::abort, nb::arg("because_of") = std::vector<uint32_t>{})
        .def("in_shared_memory", &PyCommunicator::in_shared_memory)
        .def("sleep_early", &PyCommunicator::sleep_early)
        .def("follow", &PyCommunicator::follow)
        .def("check_given_up", &PyCommunicator::check_given_up)
        .def("given_up", &PyCommunicator::given_up)
        // See Communicator::part_of. `said`: see `said_bytes`; None for calls of their own.
        .def(
            "part_of",
            [](PyCommunicator& self, nb::object said) {
                std::optional<Communicator::Whole> whole;
                if (!said.is_none()) {
                    auto bytes = nb::cast<nb::bytes>(said);
                    if (bytes.size() < said_bytes) throw nb::value_error("too short for a call");
                    whole = whole_call(bytes.c_str());
                }
                self.native().part_of(whole);
            },
            nb::arg().none())
        // By rank: the number of the whole call and its signature, as signature.py packs it; None if it is not known.
        .def("first_difference",
             [](PyCommunicator& self) {
                 nb::list calls;
                 for (const auto& record : self.native().first_difference()) {
                     if (!record) {
                         calls.append(nb::none());
                         continue;
                     }
                     char packed[sizeof record->signature + sizeof(uint64_t)] = {};  // no place in a GPU's memory
                     std::memcpy(packed, &record->signature, sizeof record->signature);
                     calls.append(nb::make_tuple(record->number, nb::bytes(packed, sizeof packed)));
                 }
                 return calls;
             })
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
    // Waits until no thread is in a call without the interpreter's lock; false if one still is at the timeout.
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
    module.def("caller", [](nb::handle communicator, bool vouched) {
        return function_of(nb::cast<PyCommunicator*>(communicator), communicator, vouched);
    });
    module.attr("MOST_RANKS") = most_ranks;
    module.attr("POST_BYTES") = Communicator::post_bytes();
    module.attr("WORK_BYTES") = Communicator::work_bytes();
    // For tuning (src/allfold/tune).
    module.attr("WINDOW_BYTES") = window_bytes;
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
