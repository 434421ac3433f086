#include "bindings/mpi/requests.hpp"

#include "bindings/gil.hpp"

namespace allfold::mpi {

bool Pending::done() {
    messages_.native().check_caller("done");
    return has_ended_ || messages_.poll(*job_);
}

void Pending::finish() {
    if (has_ended_) return;
    failing(communicator_, [&] {
        messages_.native().check_caller("wait");
        message_ = messages_.finished(*job_, limit_of(messages_));
    });
    has_ended_ = true;
}

nb::object Pending::wait() {
    finish();
    const Operation& operation = job_->operation;
    nb::object facts;
    if (operation.withdrawn)
        facts = call_python(known.arrived, known.any_source, known.any_tag, 0, true);
    else if (operation.kind == Operation::Kind::send)
        facts = call_python(known.arrived);
    else
        facts = call_python(known.arrived, message_.source, message_.tag, message_.elements);
    return nb::make_tuple(facts, nb::none());
}

void Pending::cancel() {
    if (has_ended_) return;
    messages_.native().check_caller("cancel");
    WithoutGil without;
    messages_.native().withdraw(job_->operation);
}

namespace {

PyObject* name_of_object() {
    static PyObject* const name = PyUnicode_InternFromString("_ob");
    return name;
}

void set_object(nb::handle request, nb::handle object) {
    if (PyObject_SetAttr(request.ptr(), name_of_object(), object.ptr()) != 0) throw nb::python_error();
}

// What a request stands for: a message, or nothing; false if it is something else.
bool is_message(nb::handle request, nb::object& keep, Pending*& pending) {
    static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(nb::type<Pending>().ptr());
    if (Py_TYPE(request.ptr()) != known.request) return false;
    keep = nb::steal(PyObject_GetAttr(request.ptr(), name_of_object()));
    if (!keep.is_valid()) throw nb::python_error();
    pending = nullptr;
    if (keep.is_none()) return true;
    if (Py_TYPE(keep.ptr()) != type) return false;
    pending = nb::inst_ptr<Pending>(keep);
    return true;
}

// The request is null afterwards, whatever happens.
void finish(nb::handle request, Pending& pending) {
    try {
        pending.finish();
    } catch (nb::python_error&) {
        set_object(request, nb::none());
        throw;
    }
    set_object(request, nb::none());
}

template <bool lower>
nb::object wait(const Given& given) {
    nb::object keep;
    Pending* pending;
    if (given.has(0) || !is_message(given.self, keep, pending)) return {};
    if (pending) finish(given.self, *pending);
    return lower ? nb::none() : nb::borrow(Py_True);
}

nb::object test(const Given& given) {
    nb::object keep;
    Pending* pending;
    if (given.has(0) || !is_message(given.self, keep, pending)) return {};
    if (pending && !pending->done()) return nb::borrow(Py_False);
    if (pending) finish(given.self, *pending);
    return nb::borrow(Py_True);
}

// Every request is waited for, even after an error; then the first error is raised.
nb::object wait_for_all(const Given& given) {
    PyObject* requests = given[0];
    const bool is_list = PyList_CheckExact(requests);
    if (given.has(1) || (!is_list && !PyTuple_CheckExact(requests))) return {};
    struct Waiting {
        nb::object request, keep;
        Pending* pending;
    };
    std::vector<Waiting> all(static_cast<size_t>(is_list ? PyList_Size(requests) : PyTuple_Size(requests)));
    for (size_t i = 0; i < all.size(); ++i) {
        const auto place = static_cast<Py_ssize_t>(i);
        Waiting& one = all[i];
        one.request = nb::borrow(is_list ? PyList_GetItem(requests, place) : PyTuple_GetItem(requests, place));
        if (!is_message(one.request, one.keep, one.pending)) return {};
    }
    std::optional<nb::python_error> first;
    for (Waiting& one : all) {
        if (!one.pending) continue;
        try {
            finish(one.request, *one.pending);
        } catch (nb::python_error& error) {
            if (!error.matches(PyExc_RuntimeError)) throw;
            if (!first) first.emplace(error);
        }
    }
    if (first) throw nb::python_error(*first);
    return nb::borrow(Py_True);
}

}  // namespace

nb::object request_for(nb::handle communicator, Calls& calls, std::shared_ptr<PyOperation> job) {
    nb::object request = nb::steal(PyType_GenericAlloc(known.request, 0));
    if (!request.is_valid()) throw nb::python_error();
    set_object(request, nb::cast(new Pending(communicator, calls, std::move(job)), nb::rv_policy::take_ownership));
    return request;
}

const std::vector<Word> request_words = {
    {"Wait", {"status"}, 0, wait<false>},
    {"wait", {"status"}, 0, wait<true>},
    {"Test", {"status"}, 0, test},
    {"Waitall", {"requests", "statuses"}, 1, wait_for_all, true},
};

}  // namespace allfold::mpi

namespace allfold {

void bind_mpi_requests(nb::module_& module);

void bind_mpi_requests(nb::module_& module) {
    using mpi::Pending;
    nb::class_<Pending>(module, "MpiPending")
        .def("done", &Pending::done)
        .def("wait", &Pending::wait)
        .def("cancel", &Pending::cancel)
        .def("freed", [](const Pending&) {})
        .def_prop_ro("is_persistent", [](const Pending&) { return false; })
        .def_prop_ro("is_active", [](const Pending&) { return true; });
}

}  // namespace allfold
