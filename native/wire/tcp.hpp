// Messages over TCP: one connection to every other process of a group, established and authenticated by Python.
#pragma once

#include <memory>
#include <vector>

#include "wire/wire.hpp"

namespace allfold {

// `descriptors`: of connected sockets, by rank, which the wire owns from now on; -1 for this rank, and for ranks that
// it has no connection to. `seconds`: an idle connection to a host that has not answered for this long is closed.
std::shared_ptr<Wire> tcp_wire(int rank, const std::vector<int>& descriptors, double seconds);

// Longer messages wait until their receive is posted. Shorter ones are sent at once, and kept until they are received.
inline constexpr size_t tcp_longest_at_once = 4 << 20;
// The most bytes kept of one peer's messages. Beyond that, its connection is not read until another receive is posted,
// or a thread waits.
inline constexpr size_t tcp_most_kept = 64 << 20;

}  // namespace allfold
