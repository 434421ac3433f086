// Calls that run without the thread that made them: in the background, or later, when a stream reaches them.
#include "bindings/deferred.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "shared/worker.hpp"

namespace allfold {

namespace nb = nanobind;

// An error may be raised several times, and raising it in Python consumes it.
template <class Ended>
static void raise_error(const Ended& ended) {
    try {
        ended.rethrow();
    } catch (const nb::python_error& error) {
        throw nb::python_error(error);
    }
}

void bind_deferred(nb::module_& module) {
    nb::class_<Ticket>(module, "Ticket").def("done", &Ticket::done).def("raise_error", &raise_error<Ticket>);
    nb::class_<Outcome>(module, "Outcome")
        .def(nb::init<>())
        .def_prop_ro("performed", &Outcome::performed)
        .def_prop_ro("failed", &Outcome::failed)
        .def("raise_error", &raise_error<Outcome>);
    nb::class_<Deferred>(module, "Deferred")
        .def("__init__",
             [](Deferred* self, nb::object function, std::shared_ptr<Outcome> outcome) {
                 // The function is a Python object, so the lock is needed to destroy it too.
                 std::shared_ptr<nb::object> held(new nb::object(std::move(function)), [](nb::object* object) {
                     WithGil with;
                     delete object;
                 });
                 new (self) Deferred(
                     [held] {
                         WithGil with;
                         call_python(*held);
                     },
                     std::move(outcome));
             })
        // A C function and its argument, for callbacks.
        .def_prop_ro("function", [](const Deferred&) { return reinterpret_cast<uintptr_t>(&Deferred::perform); })
        .def_prop_ro("argument", [](const Deferred& self) { return reinterpret_cast<uintptr_t>(&self); });
}

}  // namespace allfold
