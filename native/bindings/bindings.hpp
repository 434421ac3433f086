// The parts of the extension module, one file per concern.
#pragma once

#include <nanobind/nanobind.h>

namespace allfold {

class EngineError;

void raise(const EngineError& error) noexcept;  // as the Python exception of its kind
void bind_arena(nanobind::module_& module);
void bind_channel(nanobind::module_& module);
void bind_check(nanobind::module_& module);
void bind_communicator(nanobind::module_& module);
void bind_deferred(nanobind::module_& module);
void bind_direct(nanobind::module_& module);
void bind_find(nanobind::module_& module);
void bind_find_greedy(nanobind::module_& module);
void bind_fold(nanobind::module_& module);
void bind_inspect(nanobind::module_& module);
void bind_islands(nanobind::module_& module);
void bind_lane(nanobind::module_& module);
void bind_mpi(nanobind::module_& module);
void bind_proof(nanobind::module_& module);
void bind_wire(nanobind::module_& module);

}  // namespace allfold
