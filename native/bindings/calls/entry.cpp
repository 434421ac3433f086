#include "bindings/calls/entry.hpp"

#include <algorithm>
#include <optional>

#include "bindings/gil.hpp"
#include "shared/text.hpp"

namespace allfold {

nb::object CallEntry::call(int collective, nb::handle input, nb::handle output, nb::handle op, int root,
                           nb::handle algorithm, nb::handle in_background, nb::handle timeout, nb::handle dtype,
                           bool vouched) {
    bool plain = in_background.ptr() == Py_False && (algorithm.is_none() || PyUnicode_CheckExact(algorithm.ptr())) &&
                 root >= 0 && static_cast<uint32_t>(root) < native_->size() && is_free();
    nb::object number = nb::none();
    if (plain && !op.is_none()) {
        number = Job::number_of(op);
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

nb::object CallEntry::call_the_long_way(PyObject* const* a) {
    nb::handle given[10];
    std::copy(a, a + 10, given);
    return call_python(long_way_, given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7],
                       given[8], given[9]);
}

void CallEntry::prepare(Job& job, int collective, nb::handle input, nb::handle output, nb::handle op, int root,
                        nb::handle algorithm, nb::handle timeout, nb::handle dtype, bool vouched, nb::handle counts) {
    take_arguments(collectives[collective].name.c_str(), [&] {
        double limit = timeout.is_none() ? 0 : nb::cast<double>(timeout);
        if (!(limit >= 0)) throw nb::value_error("timeout must be a non-negative number of seconds");  // nor NaN
        job.call.timeout = timeout.is_none() ? timeout_ : seconds(limit);
        job.take(input, output, dtype, vouched);
        job.set({*native_, native_->rank(), native_->size()}, collective, op, root, counts);
    });
    if (!algorithm.is_none()) job.algorithm = nb::cast<std::string>(algorithm);
    set_programs(job);
}

void CallEntry::prepare_taken(Job& job, int collective, nb::handle op, int root) {
    job.call.timeout = timeout_;
    job.set({*native_, native_->rank(), native_->size()}, collective, op, root, Py_None);
    set_programs(job);
}

void CallEntry::set_programs(Job& job) {
    job.call.algorithm = job.algorithm ? job.algorithm->c_str() : "";
    job.plan = plans_.set_programs(job.call, job.algorithm ? &*job.algorithm : nullptr);
    job.set_parts();
}

void CallEntry::perform(Job& job) {
    Interpreter interpreter(job.call.elements * size_of(job.call.dtype));
    native_->run(job.call, [&] { interpreter.release(); }, check_signals);
}

void CallEntry::raise_told(nb::python_error& error) noexcept {
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

namespace {

// The entry to CallEntry::call, as a plain C function: nanobind's overhead for ten arguments would be noticeable
// in the smallest calls.
PyObject* call_directly(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count, bool vouched) noexcept {
    auto* self = static_cast<CallEntry*>(PyCapsule_GetPointer(capsule, nullptr));
    auto made = self->telling([&] {
        // Calls with uneven slices take the long path.
        if (count == 10) return self->call_the_long_way(arguments);
        if (count != 9) throw EngineError(Fault::usage, "a call takes 9 or 10 arguments");
        auto collective = static_cast<int>(PyLong_AsLong(arguments[0]));
        auto root_error = [&] {
            drop_error();
            return EngineError(Fault::usage,
                               joined({collectives[collective].name, ": root must be a rank, a whole number, not ",
                                       shown(arguments[4])}));
        };
        nb::object index = nb::steal(in_python([&] { return PyNumber_Index(arguments[4]); }));
        if (!index.is_valid()) throw root_error();
        long root = PyLong_AsLong(index.ptr());
        if (root == -1 && PyErr_Occurred()) throw root_error();
        root = std::clamp<long>(root, INT32_MIN, INT32_MAX);
        return self->call(collective, arguments[1], arguments[2], arguments[3], static_cast<int>(root), arguments[5],
                          arguments[6], arguments[7], arguments[8], vouched);
    });
    return made.release().ptr();
}

template <bool vouched>
PyObject* call_entry(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) noexcept {
    return call_directly(capsule, arguments, count, vouched);
}

}  // namespace

nb::object function_of(CallEntry* entry, nb::handle communicator, bool vouched) {
    auto definition = [](PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
        return PyMethodDef{"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL,
                           "Run one collective."};
    };
    static PyMethodDef checked = definition(call_entry<false>), unchecked = definition(call_entry<true>);
    // The function keeps the communicator alive, as the context of the capsule that it is bound to.
    nb::object capsule = nb::steal(PyCapsule_New(
        entry, nullptr, [](PyObject* object) { Py_DECREF(static_cast<PyObject*>(PyCapsule_GetContext(object))); }));
    PyCapsule_SetContext(capsule.ptr(), communicator.inc_ref().ptr());
    return nb::steal(PyCFunction_New(vouched ? &unchecked : &checked, capsule.ptr()));
}

}  // namespace allfold
