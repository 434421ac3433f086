// Python's objects for links to other ranks and for plans, for the bindings of calls between islands.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <tuple>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/calls/communicator.hpp"
#include "bindings/columns.hpp"
#include "bindings/gil.hpp"
#include "islands/island_call.hpp"

namespace allfold {

nb::object disconnected(const WireLost& error);  // as Python's exception

// The rank of another leader that makes, or made, a different call, its header, and this rank's for the same call.
inline nb::tuple difference_of(const CallsDiffer& differ) {
    return nb::make_tuple(differ.peer, nb::bytes(differ.said.data(), differ.said.size()),
                          nb::bytes(differ.own.data(), differ.own.size()));
}

// A time of Python's `time.monotonic`.
inline Clock::time_point moment(double monotonic) {
    // A year from now is practically never, and does not overflow.
    auto most = Clock::now() + std::chrono::hours(24 * 365);
    auto seconds = std::chrono::duration<double>(monotonic);
    if (seconds > most.time_since_epoch()) return most;
    return Clock::time_point(std::chrono::duration_cast<Clock::duration>(seconds));
}

// The plan of calls with one signature, and the memory of its work slots.
struct PyPlan {
    PyPlan() = default;
    PyPlan(const PyPlan&) = delete;

    CallPlan plan;
    std::vector<Array> work;
};

class PyLinks {
  public:
    // `local`: by rank, its number in this rank's island, or -1. `calls` and `indices`: see PeerLinks::tags.
    PyLinks(std::shared_ptr<Wire> wire, nb::object channel, nb::object island, std::vector<int32_t> local,
            uint32_t calls, uint32_t indices)
        : wire_(std::move(wire)), channel_(std::move(channel)), island_(std::move(island)) {
        need(static_cast<size_t>(wire_->size()) == local.size(), "a wire for another number of ranks");
        links.wire = wire_.get();
        links.channel = &channel_of(channel_);
        links.island = &communicator_of(island_);
        links.local = std::move(local);
        need(calls > 0 && indices > 0, "no tags");
        links.tags = {calls, indices};
    }

    // Makes a call, without the GIL. Throws CallsDiffer, and the errors of waits.
    void perform(const CallPlan& plan, const MessageArrays& arrays, DType dtype, Op op, const char* said,
                 Clock::time_point deadline) {
        IslandCall call(plan, links, arrays, dtype, op, said, Waiting{deadline, check_signals});
        std::vector<std::shared_ptr<Plan>> plans;
        for (Call* kind : call.kinds()) plans.push_back(plans_of(island_).set_programs(*kind, nullptr));
        WithoutGil without;
        call.perform();
    }

    // For a rank that leads its island: see Fronts.
    void lead(std::vector<int> peers, size_t said, size_t digest, size_t along, size_t most, uint32_t front_tag,
              uint32_t long_tag) {
        links.fronts.emplace(*wire_, std::move(peers), Fronts::Limits{said, digest, along, most, front_tag, long_tag});
    }
    void send_fronts(nb::bytes said, double deadline) {
        need(said.size() == fronts().limits().said, "a header of the wrong length");
        WithoutGil without;
        links.send_fronts(said.c_str(), Waiting{moment(deadline), check_signals});
    }
    // A peer's header; or what `difference_of` says of an earlier call.
    nb::object receive_front(int peer, double deadline) {
        try {
            const char* said;
            {
                WithoutGil without;
                said = links.receive_front(peer, 0, Waiting{moment(deadline), check_signals});
            }
            return nb::bytes(said, fronts().limits().said);
        } catch (const CallsDiffer& differ) {
            return difference_of(differ);
        }
    }
    void refill() { fronts().refill(); }
    void settle(double deadline) {
        WithoutGil without;
        links.settle(Waiting{moment(deadline), check_signals});
    }

    void trace(bool on) { links.trace(on); }
    // (sends, rank, bytes, begun, ended) of every message since the last time, in nanoseconds of Python's clock.
    std::vector<std::tuple<bool, int, size_t, int64_t, int64_t>> moved() {
        std::vector<std::tuple<bool, int, size_t, int64_t, int64_t>> all;
        for (const WireEvent& one : links.take_events())
            all.emplace_back(one.sends, one.peer, one.bytes, one.begun, one.ended);
        return all;
    }

  private:
    Fronts& fronts() {
        need(links.fronts.has_value(), "this rank is not a leader, so it exchanges no headers");
        return *links.fronts;
    }

    std::shared_ptr<Wire> wire_;
    nb::object channel_, island_;

  public:
    PeerLinks links;  // last, so that it ends before what it uses
};

}  // namespace allfold
