// Access to Python's communicators and channels for other bindings.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "bindings/calls/entry.hpp"
#include "bindings/calls/plans.hpp"
#include "collectives/communicator.hpp"
#include "messages/channel.hpp"

namespace allfold {

// They live as long as the Python object.
Communicator& communicator_of(nb::handle object);
CallEntry& entry_of(nb::handle object);
Plans& plans_of(nb::handle object);  // of the same object
Channel& channel_of(nb::handle object);

}  // namespace allfold
