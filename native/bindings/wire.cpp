// Wires for Python: arrays in, waits without the GIL.
#include "wire/wire.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "wire/tcp.hpp"
#include "wire/ucx.hpp"

namespace allfold {

namespace {

using Sent = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Room = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A transfer, and the array that it needs. Dropping it leaves the transfer.
template <class Memory>
class PyTransfer {
  public:
    PyTransfer(std::shared_ptr<Wire> wire, Memory memory, WireTransfer* transfer)
        : wire_(std::move(wire)), memory_(std::move(memory)), transfer_(transfer) {}
    ~PyTransfer() {
        if (transfer_->is_over()) {
            wire_->release(transfer_);
        } else {
            WithoutGil without;  // another thread may hold the lock while it moves bytes
            wire_->release(transfer_);
        }
    }
    PyTransfer(const PyTransfer&) = delete;

    // The rank that it came from or went to; nothing if it has failed, or has not ended within the time.
    nb::object wait(double seconds) {
        if (!transfer_->is_over() && seconds > 0) {
            WithoutGil without;
            auto limit =
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, 1e8)));
            auto deadline = Clock::now() + limit;
            while (true) {
                uint64_t seen = wire_->turn();
                if (transfer_->is_over() || Clock::now() >= deadline) break;
                wire_->sleep(seen, deadline);
            }
        }
        if (transfer_->state() != WireTransfer::State::done) return nb::none();
        return nb::int_(transfer_->peer());
    }
    const char* why() const { return transfer_->is_over() ? transfer_->why() : ""; }

  private:
    std::shared_ptr<Wire> wire_;
    Memory memory_;
    WireTransfer* transfer_;
};

template <class Memory>
void bind_transfer(nb::module_& module, const char* name) {
    nb::class_<PyTransfer<Memory>>(module, name)
        .def("wait", &PyTransfer<Memory>::wait)
        .def_prop_ro("why", &PyTransfer<Memory>::why);
}

template <class Memory, class Begin>
std::unique_ptr<PyTransfer<Memory>> begun(std::shared_ptr<Wire> wire, Memory memory, Begin begin) {
    WireTransfer* transfer;
    {
        WithoutGil without;
        transfer = begin(*wire);
    }
    return std::make_unique<PyTransfer<Memory>>(std::move(wire), std::move(memory), transfer);
}

}  // namespace

void bind_wire(nb::module_& module) {
    bind_transfer<Sent>(module, "WireSend");
    bind_transfer<Room>(module, "WireReceive");
    nb::class_<Wire>(module, "Wire")
        .def_prop_ro("rank", &Wire::rank)
        .def_prop_ro("size", &Wire::size)
        .def("send",
             [](std::shared_ptr<Wire> self, int peer, Sent data, uint64_t tag) {
                 return begun(std::move(self), data,
                              [&](Wire& wire) { return wire.send(peer, data.data(), data.nbytes(), tag); });
             })
        .def("receive",
             [](std::shared_ptr<Wire> self, int peer, Room data, uint64_t tag) {
                 return begun(std::move(self), data,
                              [&](Wire& wire) { return wire.receive(peer, data.data(), data.nbytes(), tag); });
             })
        .def("look_first",
             [](Wire& self, double seconds) {
                 self.look_first(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
             })
        .def("cut", &Wire::cut, nb::call_guard<WithoutGil>())
        .def("lost", [](const Wire& self) {
            nb::list found;
            for (int peer = 0; peer < self.size(); ++peer)
                if (peer != self.rank() && self.lost(peer)) found.append(peer);
            return found;
        });
    module.def("tcp_wire", &tcp_wire, nb::arg("rank"), nb::arg("descriptors"), nb::arg("seconds"));
    // With the GIL: the environment is changed for a moment while the library is loaded, and Python reads it.
    nb::class_<ucx::Context>(module, "UcxContext").def(nb::init<const ucx::Context::Settings&>(), nb::arg("settings"));
    nb::class_<ucx::Worker>(module, "UcxWorker")
        .def(nb::init<std::shared_ptr<ucx::Context>>(), nb::arg("context"))
        .def_prop_ro("address",
                     [](const ucx::Worker& self) { return nb::bytes(self.address.data(), self.address.size()); });
    module.def(
        "ucx_wire",
        [](std::shared_ptr<ucx::Worker> worker, int rank, const std::vector<int>& descriptors,
           const std::vector<nb::bytes>& addresses, size_t longest_eager) {
            std::vector<std::string> copies;
            for (const nb::bytes& one : addresses) copies.emplace_back(one.c_str(), one.size());
            WithoutGil without;
            return ucx_wire(std::move(worker), rank, descriptors, copies, longest_eager);
        },
        nb::arg("worker"), nb::arg("rank"), nb::arg("descriptors"), nb::arg("addresses"), nb::arg("longest_eager"));
}

}  // namespace allfold
