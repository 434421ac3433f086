#include <nanobind/nanobind.h>

#include "bindings/bindings.hpp"
#include "shared/errors.hpp"

namespace nb = nanobind;

namespace allfold {

// noexcept: see gil.hpp.
void raise(const EngineError& error) noexcept {
    const char* names[] = {"UsageError", "MismatchError", "RankLost", "CollectiveTimeout", "SharedMemoryError"};
    try {
        nb::object errors = nb::module_::import_("allfold.errors");
        PyErr_SetString(errors.attr(names[static_cast<size_t>(error.fault)]).ptr(), error.what());
    } catch (nb::python_error& trouble) {
        trouble.restore();
    }
}

}  // namespace allfold

NB_MODULE(_engine, module) {
    using namespace allfold;
    module.doc() = "The native engine of allfold.";
    // The exceptions are Python's own classes, so that there is one hierarchy.
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const EngineError& error) {
            raise(error);
        }
    });
    // Objects that an exiting interpreter leaves to the system are not leaks that users should be warned about.
    nb::set_leak_warnings(false);
    bind_arena(module);
    bind_channel(module);
    bind_check(module);
    bind_deferred(module);
    bind_communicator(module);
    bind_find(module);
    bind_find_greedy(module);
    bind_fold(module);
    bind_inspect(module);
    bind_islands(module);
    bind_direct(module);
    bind_lane(module);
    bind_mpi(module);
    bind_proof(module);
    bind_wire(module);
}
