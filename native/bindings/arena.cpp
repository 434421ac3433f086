#include "shared/arena.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.hpp"

namespace allfold {

namespace nb = nanobind;

namespace {

// Bytes in shared memory, as an array that frees them when neither it nor any view of it is in use.
nb::object empty(std::shared_ptr<Arena> arena, size_t bytes) {
    struct Loan {
        std::shared_ptr<Arena> arena;
        size_t offset;
        ~Loan() { arena->release(offset); }
    };
    auto* loan = new Loan{arena, arena->allocate(bytes)};
    arena->lend_to_children(loan->offset);
    nb::capsule owner(loan, [](void* pointer) noexcept { delete static_cast<Loan*>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(arena->at(loan->offset), {bytes}, owner));
}

// Bytes that were allocated in an arena, by this process or the one that owns it, as an array that keeps it mapped.
nb::object view(std::shared_ptr<Arena> arena, size_t offset, size_t bytes) {
    if (offset > arena->size() || bytes > arena->size() - offset)
        throw nb::value_error("these bytes are not in the arena");
    auto* held = new std::shared_ptr<Arena>(arena);
    nb::capsule owner(held, [](void* pointer) noexcept { delete static_cast<std::shared_ptr<Arena>*>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(arena->at(offset), {bytes}, owner));
}

}  // namespace

void bind_arena(nb::module_& module) {
    nb::class_<Arena>(module, "Arena")
        .def(nb::init<size_t>())
        .def(nb::init<int, size_t>())
        .def("allocate", &Arena::allocate)
        .def("release", &Arena::release)
        .def("view", &view)
        .def_prop_ro("descriptor", &Arena::descriptor)
        .def_prop_ro("size", &Arena::size)
        .def_prop_ro("in_use", &Arena::in_use);
    module.def("empty", &empty);
}

}  // namespace allfold
