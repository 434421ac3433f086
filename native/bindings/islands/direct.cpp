// Calls between islands that need no Python: those with a built-in operation that Python has made a plan for.
//
// Python's `Calls` (engines/islands/calls.py) makes all others, watches the timeouts, and knows what has failed. It
// reads here what it must know of the calls made here: their number, the one in progress, and the last ones. All of
// that is read and changed with the GIL held.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "bindings/bindings.hpp"
#include "bindings/calls/job.hpp"
#include "bindings/gil.hpp"
#include "bindings/islands/links.hpp"
#include "collectives/signature.hpp"

namespace allfold {

namespace {

constexpr size_t noted_calls = 256, most_plans = 1000;

double since_1970() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double monotonic(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

// The bytes of a signature as signature.py packs it, for calls in main memory.
struct Packed {
    Signature signature;
    uint64_t place = 0;
};

class DirectCalls {
  public:
    struct Made {  // a call
        uint64_t number;
        Packed packed;
        double limit;
        Clock::time_point deadline;
        double begun, ended = 0;
        unsigned long thread;

        nb::tuple facts() const {
            return nb::make_tuple(number, nb::bytes(reinterpret_cast<const char*>(&packed), sizeof packed), limit,
                                  monotonic(deadline), begun, ended, thread);
        }
    };

    // `rank`: of the group. `turn`: the lock that calls hold. `failed`: raises the error of a call that failed.
    // `check`: raises the group's error, if it has failed. `timeout`: of calls that have none of their own.
    DirectCalls(nb::object links, uint32_t rank, nb::object turn, nb::object failed, nb::object check, double timeout,
                int all_reduce, int barrier)
        : links_(std::move(links)), turn_(std::move(turn)), failed_(std::move(failed)), check_(std::move(check)),
          timeout_(timeout), all_reduce_(all_reduce), barrier_(barrier), rank_(rank) {}
    DirectCalls(const DirectCalls&) = delete;

    size_t most_bytes = 0;                      // of an all_reduce whose data are sent with the headers
    std::shared_ptr<PyPlan> reduces, barriers;  // the plans of such calls, whatever their lengths

    // The plan of calls with a signature, if it is known; `algorithm` is the name that they give, or empty.
    std::shared_ptr<PyPlan> plan(nb::bytes packed, const std::string& algorithm) {
        auto found = plans_.find(key_of(unpacked(packed), algorithm));
        return is_current() && found != plans_.end() ? found->second.plan : nullptr;
    }
    void keep(nb::bytes packed, const std::string& algorithm, std::shared_ptr<PyPlan> plan) {
        if (!is_current() || plans_.size() >= most_plans) forget();
        Signature signature = unpacked(packed);
        plans_[key_of(signature, algorithm)] = {signature, std::move(plan)};
    }
    void forget() {
        plans_.clear();
        reduces = barriers = nullptr;
        names_ = Plans::names();
    }

    uint64_t made() const { return made_; }  // calls, here and in Python
    uint64_t next() { return ++made_; }      // the number of a call that Python makes
    // While it is shut, all calls are made in Python.
    void shut() { ++elsewhere_; }
    void open() { --elsewhere_; }
    // To be called when the group has failed.
    void fail() {
        shut();
        has_failed_ = true;
    }

    nb::object at_work() const { return work_ ? nb::object(work_->facts()) : nb::none(); }
    nb::list notes() const {
        nb::list all;
        for (const Made& one : notes_) all.append(one.facts());
        return all;
    }

    // False: the call is for Python. `a`: the arguments of an entry (engines/engine.py).
    bool call(PyObject* const* a, Py_ssize_t count, bool vouched) {
        if (elsewhere_ || work_ || count < 9 || (count > 9 && a[9] != Py_None) || a[6] != Py_False) return false;
        if (!PyLong_CheckExact(a[0]) || !PyLong_CheckExact(a[4])) return false;
        const long code = PyLong_AsLong(a[0]), root = PyLong_AsLong(a[4]);
        auto& links = *nb::cast<PyLinks*>(links_);
        const auto size = static_cast<uint32_t>(links.links.local.size());
        if (root < 0 || root >= static_cast<long>(size) || code < 0 || code >= static_cast<long>(collectives.size())) {
            drop_error();
            return false;
        }
        std::string algorithm;
        if (a[5] != Py_None) {
            if (!PyUnicode_CheckExact(a[5])) return false;
            const char* name = PyUnicode_AsUTF8(a[5]);
            if (!name || !*name) {
                drop_error();
                return false;
            }
            algorithm = name;
        }
        double limit = timeout_;
        if (a[7] != Py_None) {
            if (!PyFloat_CheckExact(a[7])) return false;
            limit = PyFloat_AsDouble(a[7]);
            if (!(limit > 0)) return false;
        }
        Job job;
        try {
            nb::object op = nb::none();
            if (a[3] != Py_None && (!PyUnicode_CheckExact(a[3]) || !(op = Job::number_of(a[3])).is_valid()))
                return false;
            job.take(a[1], a[2], a[8], vouched);
            job.set({*links.links.island, rank_, size}, static_cast<int>(code), op, static_cast<int>(root), nb::none());
        } catch (const nb::python_error& error) {
            if (is_interrupt(error)) throw;
            return false;  // Python finds the fault again, and raises the error
        } catch (const std::exception&) {
            return false;
        }
        job.call.algorithm = "";
        Signature signature = signature_of(job.call);
        std::shared_ptr<PyPlan> plan = find(signature, algorithm, job.call.elements * size_of(job.call.dtype));
        if (!plan || !links.links.island->is_here()) return false;  // or a forked child
        // Free, unless a call in the background has it.
        nb::object taken = call_python(turn_.attr("acquire"), false);
        if (taken.ptr() != Py_True) return false;
        if (work_ || elsewhere_) {  // acquiring the lock may have run Python
            call_python(turn_.attr("release"));
            return false;
        }
        perform(links, plan->plan, job, signature, limit);
        return true;
    }

  private:
    struct Known {
        Signature signature;
        std::shared_ptr<PyPlan> plan;
    };

    static Signature unpacked(const nb::bytes& packed) {
        need(packed.size() == sizeof(Packed), "a signature of the wrong length");
        Signature signature;
        std::memcpy(&signature, packed.c_str(), sizeof signature);
        return signature;
    }
    // By the whole name of the algorithm. Its schedule, and the part of the name in the signature, follow from it.
    static std::string key_of(Signature signature, const std::string& algorithm) {
        signature.schedule = 0;
        std::memset(signature.algorithm, 0, sizeof signature.algorithm);
        std::string key(reinterpret_cast<const char*>(&signature), sizeof signature);
        return key += algorithm;
    }
    // The name may mean another algorithm by now.
    bool is_current() const { return names_ == Plans::names(); }

    // Completes the signature.
    std::shared_ptr<PyPlan> find(Signature& signature, const std::string& algorithm, size_t bytes) {
        if (algorithm.empty() && signature.collective == all_reduce_ && bytes <= most_bytes) return reduces;
        if (algorithm.empty() && signature.collective == barrier_) return barriers;
        if (!is_current()) return nullptr;
        auto found = plans_.find(key_of(signature, algorithm));
        if (found == plans_.end()) return nullptr;
        signature = found->second.signature;
        return found->second.plan;
    }

    void perform(PyLinks& links, const CallPlan& plan, const Job& job, const Signature& signature, double limit) {
        // A year is practically forever, and does not overflow.
        auto time = std::chrono::duration<double>(std::min(limit, 3.15e7));
        auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
        work_ = Made{.number = ++made_,
                     .packed = {signature},
                     .limit = limit,
                     .deadline = deadline,
                     .begun = since_1970(),
                     .thread = PyThread_get_thread_ident()};
        char said[sizeof(uint64_t) * 2 + sizeof(Packed)];
        const uint64_t digest = digest_of(signature);
        std::memcpy(said, &digest, sizeof digest);
        std::memcpy(said + sizeof digest, &work_->number, sizeof work_->number);
        std::memcpy(said + 2 * sizeof digest, &work_->packed, sizeof(Packed));
        MessageArrays arrays;
        arrays.input = static_cast<const char*>(job.call.input);
        arrays.input_elements = job.input ? job.input->elements : 0;
        arrays.output = static_cast<char*>(job.call.output);
        arrays.output_elements = job.output ? job.output->elements : 0;
        nb::object trouble;
        try {
            links.perform(plan, arrays, job.call.dtype, static_cast<Op>(job.call.op), said, deadline);
            if (has_failed_) call_python(check_);  // it may have failed since the last message arrived
        } catch (const CallsDiffer& differ) {
            trouble = difference_of(differ);
        } catch (nb::python_error& error) {
            trouble = nb::borrow(error.value());
        } catch (const WireLost& error) {
            trouble = disconnected(error);
        } catch (const EngineError& error) {
            raise(error);
            trouble = nb::borrow(nb::python_error().value());
        } catch (const std::exception& error) {
            trouble = nb::borrow(PyExc_RuntimeError)(error.what());
        }
        nb::object facts = trouble.is_valid() ? nb::object(work_->facts()) : nb::none();
        if (trouble.is_valid()) {
            work_.reset();
            call_python(failed_, facts, trouble);  // it releases the turn
            return;
        }
        work_->ended = since_1970();
        notes_.push_back(*work_);
        if (notes_.size() > noted_calls) notes_.pop_front();
        work_.reset();
        call_python(turn_.attr("release"));
    }

    nb::object links_, turn_, failed_, check_;
    double timeout_;
    int all_reduce_, barrier_;
    uint32_t rank_;
    uint64_t names_ = Plans::names();
    std::unordered_map<std::string, Known> plans_;
    uint64_t made_ = 0;
    uint32_t elsewhere_ = 0;
    bool has_failed_ = false;
    std::optional<Made> work_;
    std::deque<Made> notes_;
};

// The object that an entry is bound to.
struct DirectEntry {
    nb::object calls, long_way;
    bool vouched;
};

PyObject* enter_directly(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) noexcept {
    auto* entry = static_cast<DirectEntry*>(PyCapsule_GetPointer(capsule, nullptr));
    try {
        if (nb::cast<DirectCalls*>(entry->calls)->call(arguments, count, entry->vouched))
            return nb::none().release().ptr();
        nb::object all = nb::steal(PyTuple_New(count));
        for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SetItem(all.ptr(), i, nb::borrow(arguments[i]).release().ptr());
        return in_python([&] { return PyObject_CallObject(entry->long_way.ptr(), all.ptr()); });
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const EngineError& error) {
        raise(error);
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

nb::object direct_entry(nb::object calls, nb::object long_way, bool vouched) {
    static PyMethodDef definition{"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(enter_directly)),
                                  METH_FASTCALL, "Run one collective."};
    auto* entry = new DirectEntry{std::move(calls), std::move(long_way), vouched};
    nb::object capsule = nb::steal(PyCapsule_New(entry, nullptr, [](PyObject* object) {
        delete static_cast<DirectEntry*>(PyCapsule_GetPointer(object, nullptr));
    }));
    return nb::steal(PyCFunction_New(&definition, capsule.ptr()));
}

}  // namespace

nb::object disconnected(const WireLost& error) {
    nb::object kind = nb::module_::import_("allfold.fabrics.fabric").attr("Disconnected");
    return kind(error.what(), error.peer < 0 ? nb::none() : nb::object(nb::int_(error.peer)));
}

void bind_direct(nb::module_& module) {
    static_assert(sizeof(Packed) == sizeof(Signature) + 8);
    nb::class_<DirectCalls>(module, "DirectCalls")
        .def(nb::init<nb::object, uint32_t, nb::object, nb::object, nb::object, double, int, int>())
        .def("plan", &DirectCalls::plan)
        .def("keep", &DirectCalls::keep)
        .def("forget", &DirectCalls::forget)
        .def("made", &DirectCalls::made)
        .def("next", &DirectCalls::next)
        .def("shut", &DirectCalls::shut)
        .def("open", &DirectCalls::open)
        .def("fail", &DirectCalls::fail)
        .def_rw("most_bytes", &DirectCalls::most_bytes)
        .def_rw("reduces", &DirectCalls::reduces)
        .def_rw("barriers", &DirectCalls::barriers)
        .def("at_work", &DirectCalls::at_work)
        .def("notes", &DirectCalls::notes)
        .def("entry", [](nb::object self, nb::object long_way, bool vouched) {
            return direct_entry(std::move(self), std::move(long_way), vouched);
        });
}

}  // namespace allfold
