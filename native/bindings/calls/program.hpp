// Programs that Python has compiled, for the engine.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "bindings/arrays.hpp"
#include "collectives/program.hpp"

namespace allfold {

// From the columns that `engines/shared_memory/programs.py` makes of them. Throws unless `check_program` accepts it.
std::shared_ptr<Program> make_program(nb::dict facts);

}  // namespace allfold
