// Messages over the host's own UCX, for networks with RDMA.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "wire/ucx_library.hpp"
#include "wire/wire.hpp"

namespace allfold {

// `worker`: this rank's, which is used for nothing else. `addresses`: of the workers of all ranks. `descriptors`: of
// connected and authenticated sockets, by rank, -1 for this rank; the wire owns them from now on. No data go through
// them: UCX itself does not always say that a peer has ended, but the kernel closes its sockets.
// `longest_eager`: longer messages wait until their receive is posted. It must fit into one segment of the transport.
std::shared_ptr<Wire> ucx_wire(std::shared_ptr<ucx::Worker> worker, int rank, const std::vector<int>& descriptors,
                               const std::vector<std::string>& addresses, size_t longest_eager);

}  // namespace allfold
