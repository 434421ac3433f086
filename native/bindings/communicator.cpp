// The communicator for Python: takes arrays, runs calls without the GIL, compiles programs on demand and caches them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <thread>
#include <unordered_map>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/deferred.hpp"
#include "bindings/gil.hpp"
#include "bindings/program.hpp"
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

uint64_t program_generation = 0;  // incremented, under the GIL, when compiled programs have become stale

struct Plan {  // the programs of one algorithm, by memory mode; compiled when first needed
    int collective;
    std::string algorithm;
    int root;
    uint32_t manner;  // of moving ordinary arrays: a number that the compiler in Python understands
    std::shared_ptr<Program> programs[3];

    const Program* program(Memory memory) const { return programs[static_cast<size_t>(memory)].get(); }
};

struct Way {  // how ordinary arrays of up to `limit` bytes are moved
    uint64_t limit;
    bool fetches;  // out of their processes, where the system permits it
    uint32_t manner;
};

struct Choice {  // up to way.limit bytes, the engine chooses this algorithm by default
    Way way;
    std::string algorithm;
    bool shared;                               // access arrays directly if they are in shared memory
    std::vector<std::shared_ptr<Plan>> plans;  // by root, once it was used
};

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
        : compile_(std::move(compile)), long_way_(std::move(long_way)), failed_(std::move(failed)),
          timeout_(seconds(timeout)) {
        std::vector<Communicator::Member> list;
        for (auto& [arena, post, work] : members) list.push_back({arena, post, work});
        // Whoever can reach the communicator keeps what it uses.
        native_ = std::shared_ptr<Communicator>(
            new Communicator(rank, std::move(list), std::move(label), fetches, group, std::move(first_error)),
            [attachment = std::move(attachment), events = events_](Communicator* native) {
                if (native->is_here()) delete native;  // a forked child must not destroy its copy
            });
    }

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

    // Both lists by the bytes of the whole buffer, the smallest first: the algorithms of calls that name none, and the
    // ways of calls that do. They are cut where either changes, so that a call looks for its size once.
    void choose(int collective, const std::vector<std::tuple<uint64_t, std::string, bool>>& choices,
                const std::vector<std::tuple<uint64_t, bool, uint32_t>>& ways) {
        if (choices.empty() || ways.empty() || std::get<0>(choices.back()) != std::get<0>(ways.back()))
            throw nb::value_error("choices and ways must end at the same size");
        ways_[collective].clear();
        for (auto& [limit, fetches, manner] : ways) ways_[collective].push_back({limit, fetches, manner});
        choices_[collective].clear();
        auto way = ways_[collective].begin();
        for (auto& [limit, name, shared] : choices)
            while (way != ways_[collective].end()) {
                Way here{std::min(limit, way->limit), way->fetches, way->manner};
                choices_[collective].push_back(
                    {here, name, shared, std::vector<std::shared_ptr<Plan>>(native_->size())});
                if (way->limit <= limit) ++way;
                if (here.limit == limit) break;
            }
    }

    // Forget the programs of an algorithm. Calls that were made keep theirs.
    void forget(int collective, const std::string& algorithm) {
        std::erase_if(plans_, [&](const auto& known) {
            return known.second->collective == collective && known.second->algorithm == algorithm;
        });
    }

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

    // A call that can take the fast path, for `perform`; None if it cannot. Other threads make no calls meanwhile.
    nb::object prepared(int collective, nb::handle output, nb::handle op, int root, nb::handle dtype, bool vouched) {
        auto job = std::make_unique<Job>();
        try {
            nb::object number = nb::none();
            if (!op.is_none()) number = nb::borrow(PyDict_GetItem(op_numbers().ptr(), op.ptr()));
            if (!number.is_valid()) return nb::none();
            nb::float_ forever(1e7);  // whoever calls watches over the time
            prepare(*job, collective, nb::none(), output, number, root, nb::none(), forever, dtype, vouched);
        } catch (const std::exception&) {
            return nb::none();
        }
        return nb::cast(job.release(), nb::rv_policy::take_ownership);
    }

    // Runs one call, or passes it to the worker and returns its ticket.
    nb::object run(int collective, nb::handle input, nb::handle output, nb::handle op, int root, nb::handle algorithm,
                   nb::handle timeout, nb::handle dtype, bool in_background) {
        check_caller(collectives[collective].name);
        if (in_background || (worker_ && worker_->busy())) {
            auto job = shared_job();
            prepare(*job, collective, input, output, op, root, algorithm, timeout, dtype);
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
                    throw native_->not_my_turn(collectives[collective].name, job->call.timeout);
            }
        } else {
            Job job;
            prepare(job, collective, input, output, op, root, algorithm, timeout, dtype);
            perform(job);
        }
        return nb::none();
    }

    // One call for later, and for as many times as it is performed. Whoever asks for it makes no other calls in
    // between.
    std::unique_ptr<Deferred> deferred(int collective, nb::handle input, nb::handle output, nb::handle op, int root,
                                       nb::handle algorithm, nb::handle timeout, nb::handle dtype,
                                       std::shared_ptr<Outcome> outcome) {
        check_caller(collectives[collective].name);
        auto job = shared_job();
        prepare(*job, collective, input, output, op, root, algorithm, timeout, dtype);
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

    // An error is about to leave a call. An error in handling it never replaces it.
    void tell(nb::python_error& error) noexcept {
        try {
            call_python(failed_, error.value());
        } catch (nb::python_error& trouble) {
            trouble.discard_as_unraisable("allfold");
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

    struct Job {
        Array input, output;
        std::string algorithm, op_name;
        std::shared_ptr<Plan> plan;
        nb::object function;
        Call call{};
        bool is_taken = false;  // the arrays can be used as they lie; whatever is wrong from then on is an error
        Job() = default;
        Job(const Job&) = delete;
    };

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
                 nb::handle algorithm, nb::handle timeout, nb::handle dtype, bool vouched = false) {
        try {
            take(job, collective, input, output, op, root, timeout, dtype, vouched);
        } catch (const nb::builtin_exception& error) {
            throw EngineError(Fault::usage, std::string(collectives[collective].name) + ": " + error.what());
        } catch (const nb::python_error& error) {
            if (!error.matches(PyExc_BufferError)) throw;
            nb::object unfit = nb::module_::import_("allfold.engines.engine").attr("UnfitArray");
            PyErr_SetObject(unfit.ptr(), error.value().attr("args").ptr());
            throw nb::python_error();
        }
        find_programs(job, collective, root, algorithm);
    }

    void take(Job& job, int collective, nb::handle input, nb::handle output, nb::handle op, int root,
              nb::handle timeout, nb::handle dtype, bool vouched) {
        double limit = timeout.is_none() ? 0 : nb::cast<double>(timeout);
        if (!(limit >= 0)) throw nb::value_error("the timeout is a number of seconds from 0 up");  // NaN is none either
        job.call.timeout = timeout.is_none() ? timeout_ : seconds(limit);
        std::optional<DType> as;
        if (!dtype.is_none()) as = dtype_named(dtype);
        if (!input.is_none()) job.input = vouched ? Array::vouched(input, false, as) : Array(input, false, as);
        if (!output.is_none()) job.output = vouched ? Array::vouched(output, true, as) : Array(output, true, as);
        bool has_input = !input.is_none(), has_output = !output.is_none();
        bool differ = has_input && has_output && job.input.dtype != job.output.dtype;
        if (!differ && has_input && has_output && overlap(job.input, job.output)) {
            PyErr_SetString(PyExc_BufferError, "the input and the output overlap");
            throw nb::python_error();
        }
        job.is_taken = true;
        if (differ)
            throw nb::type_error(
                (std::string("the input is ") + name_of(job.input.dtype) + ", the output " + name_of(job.output.dtype))
                    .c_str());
        Call& call = job.call;
        call.collective = static_cast<Collective>(collective);
        call.root = root;
        call.input = has_input ? job.input.data : nullptr;
        call.output = has_output ? job.output.data : nullptr;
        call.dtype = has_output ? job.output.dtype : has_input ? job.input.dtype : DType::uint8;
        call.elements = whole(call.collective, job, has_input, has_output);
        set_op(job, op);
    }

    void find_programs(Job& job, int collective, int root, nb::handle algorithm) {
        Call& call = job.call;
        bool reach = true, fetches = false;
        size_t bytes = call.elements * size_of(call.dtype);
        if (algorithm.is_none()) {
            for (Choice& choice : choices_[collective]) {
                if (bytes > choice.way.limit) continue;
                reach = choice.shared;
                fetches = choice.way.fetches;
                auto& plan = choice.plans[root];
                if (!plan) plan = find_plan(collective, choice.algorithm, root, choice.way.manner);
                job.plan = plan;
                break;
            }
        } else {
            job.algorithm = nb::cast<std::string>(algorithm);
            for (const Way& way : ways_[collective]) {
                if (bytes > way.limit) continue;
                fetches = way.fetches;
                job.plan = find_plan(collective, job.algorithm, root, way.manner);
                break;
            }
        }
        call.algorithm = job.algorithm.c_str();
        Plan& plan = *job.plan;
        call.private_program = compiled(plan, Memory::private_);
        call.shared_program = reach ? compiled(plan, Memory::shared) : nullptr;
        call.readable_program = reach && fetches ? compiled(plan, Memory::readable) : nullptr;
    }

    // The elements of the whole buffer: the longer of the two arrays, checked against the shorter one.
    uint64_t whole(Collective collective, const Job& job, bool has_input, bool has_output) {
        uint64_t size = native_->size();
        uint64_t in = has_input ? job.input.elements : 0, out = has_output ? job.output.elements : 0;
        auto need = [&](bool good, const std::string& what) {
            if (!good)
                throw nb::value_error((what + ", got " + std::to_string(in) + " and " + std::to_string(out)).c_str());
        };
        bool in_place = facts_of(collective).in_place;
        bool lacks_input = !has_input && !in_place && collective != Collective::scatter;
        bool lacks_output = !has_output && collective != Collective::gather && collective != Collective::barrier;
        if (lacks_input || lacks_output)
            throw nb::type_error("expected an array that speaks the buffer protocol or DLPack, got None");
        switch (collective) {
            case Collective::all_gather:
            case Collective::gather:
                need(!has_output || out == in * size, "the output must hold one input of every rank");
                return in * size;
            case Collective::reduce_scatter:
            case Collective::scatter:
                need(!has_input || in == out * size, "the input must hold one output for every rank");
                return out * size;
            case Collective::all_to_all:
                need(in == out && in % size == 0, "input and output must be equally long, a multiple of the ranks");
                return in;
            default: return out;
        }
    }

    void set_op(Job& job, nb::handle op) {
        Call& call = job.call;
        call.op = 0;
        bool reduces = facts_of(call.collective).reduces;
        if (reduces == op.is_none())
            throw nb::type_error(reduces ? "an operation is needed, not None" : "it takes no operation");
        if (op.is_none()) return;
        if (nb::isinstance<nb::int_>(op)) {
            auto number = nb::cast<uint8_t>(op);
            call.op = number;
            call.fold = find_fold(static_cast<Op>(number), call.dtype);
            if (!call.fold) {
                const char* name = name_of(static_cast<Op>(number));
                nb::object why = nb::module_::import_("allfold.ops").attr("WHY_NOT")[name];
                throw nb::type_error((std::string(name) + " is not defined for " + name_of(call.dtype) + ": " +
                                      nb::cast<std::string>(why))
                                         .c_str());
            }
            return;
        }
        call.op = custom_op;
        auto [function, name, digest] = nb::cast<std::tuple<nb::object, std::string, uint64_t>>(op);
        job.function = function;
        job.op_name = name;
        call.op_name = job.op_name.c_str();
        call.op_digest = digest;
        DType dtype = call.dtype;
        call.custom_fold = [native = native_.get(), function = job.function.ptr(), dtype](
                               const void* const* sources, size_t count, void* const* destinations, size_t copies,
                               size_t elements) {
            WithGil with;
            // Copies, because the operation may keep its arguments, and this memory is soon overwritten or freed. In
            // pieces that stay in the cache.
            size_t most = std::max<size_t>((size_t{1} << 18) / size_of(dtype), 1);
            for (size_t done = 0; done < elements; done += most) {
                size_t start = done * size_of(dtype), bytes = std::min(most, elements - done) * size_of(dtype);
                nb::list list;
                for (size_t i = 0; i < count; ++i)
                    list.append(nb::bytes(static_cast<const char*>(sources[i]) + start, bytes));
                nb::object result = call_python(function, list, name_of(dtype));
                native->check_here("an operation");         // it may have forked, and this may be the child
                native->check_not_aborted("an operation");  // then its arrays belong to the caller again
                Array array(result, false, dtype);
                if (array.elements * size_of(dtype) != bytes)
                    throw nb::value_error("an operation gave another length than it got");
                for (size_t i = 0; i < copies; ++i)
                    std::memcpy(static_cast<char*>(destinations[i]) + start, array.data, bytes);
            }
        };
    }

    std::shared_ptr<Plan> find_plan(int collective, const std::string& algorithm, int root, uint32_t manner) {
        if (known_programs_ != program_generation) {  // a name now means another algorithm
            known_programs_ = program_generation;
            plans_.clear();
            for (auto& choices : choices_)
                for (Choice& choice : choices) choice.plans.assign(native_->size(), nullptr);
        }
        auto& known = plans_[std::to_string(collective) + "/" + algorithm + "/" + std::to_string(root) + "/" +
                             std::to_string(manner)];
        if (!known) known = std::make_shared<Plan>(collective, algorithm, root, manner);
        return known;
    }

    const Program* compiled(Plan& plan, Memory memory) {
        if (auto* known = plan.program(memory)) return known;
        auto number = static_cast<size_t>(memory);
        native_->check_here(
            "a collective");  // in a forked child, Python's own locks may be held by threads of its parent
        auto made = make_program(
            nb::cast<nb::dict>(call_python(compile_, plan.collective, plan.algorithm, plan.root, number, plan.manner)));
        if (made->rank != native_->rank() || made->ranks != native_->size() || made->memory != memory)
            throw nb::value_error("the program is another rank's");
        // Compiling runs Python, so another thread may meanwhile have compiled the same program and be running it.
        if (!plan.programs[number]) plan.programs[number] = made;
        return plan.program(memory);
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

    uint64_t known_programs_ = program_generation;
    nb::object compile_, long_way_, failed_;
    Clock::duration timeout_;
    std::shared_ptr<Communicator> native_;
    std::unique_ptr<Worker> worker_;
    std::unordered_map<std::string, std::shared_ptr<Plan>> plans_;
    std::vector<Choice> choices_[16];
    std::vector<Way> ways_[16];
    const std::shared_ptr<std::vector<Event>> events_ = std::make_shared<std::vector<Event>>();
};

}  // namespace

// The entry to PyCommunicator::call, as a plain C function: nanobind's overhead for ten arguments would be noticeable
// in the smallest calls.
static PyObject* call_directly(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count, bool vouched) noexcept {
    auto* self = static_cast<PyCommunicator*>(PyCapsule_GetPointer(capsule, nullptr));
    try {
        if (count != 9) throw EngineError(Fault::usage, "a call takes 9 arguments");
        auto collective = static_cast<int>(PyLong_AsLong(arguments[0]));
        auto root_error = [&] {
            PyErr_Clear();
            return EngineError(Fault::usage, std::string(collectives[collective].name) +
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
        self->tell(error);
        error.restore();
    } catch (const EngineError& error) {
        raise(error);
        nb::python_error raised;
        self->tell(raised);
        raised.restore();
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
    nb::class_<PyCommunicator::Job>(module, "Prepared");
    nb::class_<PyCommunicator>(module, "Communicator")
        .def(nb::init<uint32_t, const std::vector<PyCommunicator::MemberTuple>&, std::string, nb::object, nb::object,
                      nb::object, double, bool, uint64_t, std::shared_ptr<FirstError>, std::shared_ptr<Attachment>>())
        .def("choose", &PyCommunicator::choose)
        .def("forget", &PyCommunicator::forget)
        .def("run", &PyCommunicator::run, nb::arg("collective"), nb::arg("input").none(), nb::arg("output").none(),
             nb::arg("op").none(), nb::arg("root"), nb::arg("algorithm").none(), nb::arg("timeout").none(),
             nb::arg("dtype").none(), nb::arg("in_background"))
        .def("prepared", &PyCommunicator::prepared, nb::arg("collective"), nb::arg("output"), nb::arg("op").none(),
             nb::arg("root"), nb::arg("dtype").none(), nb::arg("vouched"))
        .def("perform", &PyCommunicator::perform)
        .def("deferred", &PyCommunicator::deferred, nb::arg("collective"), nb::arg("input").none(),
             nb::arg("output").none(), nb::arg("op").none(), nb::arg("root"), nb::arg("algorithm").none(),
             nb::arg("timeout").none(), nb::arg("dtype").none(), nb::arg("outcome"))
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
    module.def("forget_programs", [] { ++program_generation; });
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
    nb::list known;
    for (const CollectiveFacts& one : collectives)
        known.append(nb::make_tuple(one.name, one.rooted, one.reduces, one.in_place));
    module.attr("COLLECTIVES") = nb::tuple(known);
    module.attr("OPS") = nb::make_tuple("sum", "avg", "product", "min", "max", "band", "bor", "bxor");
}

}  // namespace allfold
