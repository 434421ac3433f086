// Streams of a GPU for Python: what a call puts into one, when it has ended, and whether all ranks made the same calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "cuda/lane.hpp"
#include "cuda/ledger.hpp"

namespace allfold {

namespace nb = nanobind;

namespace {

using BatchRows = nb::ndarray<const int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Addresses = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Records = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class PyLane;

// An event that is done when a stream has reached a certain point.
class Mark {
  public:
    Mark(std::shared_ptr<PyLane> lane, Lane::Event event, std::optional<uint64_t> behind)
        : lane_(std::move(lane)), event_(event), behind_(behind) {}
    ~Mark();
    Mark(const Mark&) = delete;
    bool is_over() const;
    void hold(uint64_t later) const;
    std::optional<uint64_t> behind() const { return behind_; }
    std::atomic<bool> is_right = false;  // the call has ended, and nothing can have gone wrong in it

  private:
    std::shared_ptr<PyLane> lane_;
    Lane::Event event_;
    std::optional<uint64_t> behind_;  // the stream whose work it follows, if any
};

class PyLane : public std::enable_shared_from_this<PyLane> {
  public:
    // `refused` raises the error of a function of the driver; `captured` that of a stream that is being captured.
    PyLane(const Addresses& functions, uint64_t context, uint64_t stream, uint64_t aside, uint64_t word,
           nb::object refused, nb::object captured)
        : refused_(std::move(refused)), captured_(std::move(captured)),
          lane_(table(functions), context, stream, aside, word) {}

    std::unique_ptr<Mark> launch(const Batch& batch, uint32_t base, std::optional<uint64_t> before, bool holds) {
        return marked([&] { return lane_.launch(batch, base, before, holds); }, before);
    }
    void follow(uint64_t before) {
        guarded([&] { lane_.follow(before); });
    }
    void check(uint64_t stream) {
        guarded([&] { lane_.check(stream); });
    }
    bool stop_if_idle() {
        bool stopped = false;
        guarded([&] { stopped = lane_.stop_if_idle(); });
        return stopped;
    }
    std::unique_ptr<Mark> mark() {
        return marked([&] { return lane_.mark(); }, std::nullopt);
    }

    // Calls functions of the driver. They may block while its queue is full.
    template <class Work>
    void guarded(Work work) {
        std::optional<DriverError> error;
        bool captured = false;
        {
            WithoutGil without;
            try {
                work();
            } catch (const DriverError& thrown) {
                error = thrown;
            } catch (const CapturedStream&) {
                captured = true;
            }
        }
        if (captured) call_python(captured_);
        if (error) call_python(refused_, static_cast<size_t>(error->function), error->status);
        if (captured || error) throw nb::value_error("the GPU's driver refused a call");  // if they raised nothing
    }

    Lane& lane() { return lane_; }

  private:
    static Lane::Functions table(const Addresses& functions) {
        Lane::Functions found;
        if (functions.shape(0) != found.size()) throw nb::value_error("expected the address of every function");
        std::copy_n(functions.data(), found.size(), found.begin());
        return found;
    }
    template <class Work>
    std::unique_ptr<Mark> marked(Work work, std::optional<uint64_t> behind) {
        Lane::Event event{};
        guarded([&] { event = work(); });
        return std::make_unique<Mark>(shared_from_this(), event, behind);
    }

    nb::object refused_, captured_;
    Lane lane_;
};

Mark::~Mark() { lane_->lane().give_back(event_); }

bool Mark::is_over() const {
    bool over = false;
    lane_->guarded([&] { over = lane_->lane().is_over(event_); });
    return over;
}

void Mark::hold(uint64_t later) const {
    lane_->guarded([&] { lane_->lane().hold(later, event_); });
}

std::unique_ptr<Batch> make_batch(const BatchRows& rows, nb::bytes arguments, uint32_t threads) {
    auto batch = std::make_unique<Batch>();
    for (size_t i = 0; i < rows.shape(0); ++i) {
        const int64_t* row = rows.data() + 4 * i;
        batch->rows.push_back({row[0], row[1], row[2], row[3]});
    }
    const auto* bytes = static_cast<const uint8_t*>(arguments.data());
    batch->arguments.assign(bytes, bytes + arguments.size());
    batch->threads = threads;
    batch->waits = std::any_of(batch->rows.begin(), batch->rows.end(),
                               [](const Batch::Row& row) { return row.kind == Batch::wait; });
    return batch;
}

class PyLedger {
  public:
    PyLedger(uint32_t rank, std::vector<Records> records) : records_(std::move(records)), ledger_(rank, sheets()) {}
    Ledger& operator*() { return ledger_; }

    uint64_t announce(nb::bytes given) {
        Ledger::Packed call;
        if (given.size() != sizeof call) throw nb::value_error("a signature of the wrong length");
        std::memcpy(call.data(), given.data(), sizeof call);
        return ledger_.announce(call);
    }

    nb::list next() const {
        nb::list found;
        for (const auto& [seen, call] : ledger_.next()) {
            if (seen == Ledger::Seen::nothing)
                found.append(nb::none());
            else
                found.append(nb::bytes(call.data(), seen == Ledger::Seen::it ? sizeof call : 0));
        }
        return found;
    }

  private:
    std::vector<Ledger::Sheet*> sheets() {
        std::vector<Ledger::Sheet*> found;
        for (Records& one : records_) {
            if (one.nbytes() != sizeof(Ledger::Sheet)) throw nb::value_error("records of the wrong length");
            found.push_back(reinterpret_cast<Ledger::Sheet*>(one.data()));
        }
        return found;
    }

    std::vector<Records> records_;  // keeps the memory alive
    Ledger ledger_;
};

}  // namespace

void bind_lane(nb::module_& module) {
    nb::class_<Batch>(module, "Batch").def(nb::new_(&make_batch));
    nb::class_<Mark>(module, "Mark")
        .def("is_over", &Mark::is_over)
        .def("hold", &Mark::hold)
        .def_prop_ro("behind", &Mark::behind)
        .def_prop_ro("is_right", [](const Mark& self) { return self.is_right.load(); })
        .def("confirm", [](Mark& self) { self.is_right = true; });
    nb::class_<PyLane>(module, "Lane")
        .def(nb::new_([](const Addresses& functions, uint64_t context, uint64_t stream, uint64_t aside, uint64_t word,
                         nb::object refused, nb::object captured) {
            return std::make_shared<PyLane>(functions, context, stream, aside, word, std::move(refused),
                                            std::move(captured));
        }))
        .def("launch", &PyLane::launch, nb::arg("batch"), nb::arg("base"), nb::arg("before").none(), nb::arg("holds"))
        .def("follow", &PyLane::follow)
        .def("check", &PyLane::check)
        .def("stop_if_idle", &PyLane::stop_if_idle)
        .def("go_on", [](PyLane& self) { self.lane().go_on(); })
        .def("set_turns", [](PyLane& self, bool turns) { self.lane().set_turns(turns); })
        .def_prop_ro("stream", [](PyLane& self) { return self.lane().stream(); })
        .def("mark", &PyLane::mark);
    nb::class_<PyLedger>(module, "Ledger")
        .def(nb::init<uint32_t, std::vector<Records>>())
        .def("announce", &PyLedger::announce)
        .def("blame", [](PyLedger& self, uint64_t ranks) { (*self).blame(ranks); })
        .def("blamed", [](PyLedger& self, uint32_t rank) { return (*self).blamed(rank); })
        .def("give_up", [](PyLedger& self, uint64_t covered) { (*self).give_up(covered); })
        .def("uncovered", [](PyLedger& self, uint64_t number) { return (*self).uncovered(number); })
        // None while a rank has not made the next call, True if all calls made here are the same everywhere.
        .def("compare",
             [](PyLedger& self) -> std::optional<bool> {
                 Ledger::State state = (*self).compare();
                 if (state == Ledger::State::waiting) return std::nullopt;
                 return state == Ledger::State::agreed;
             })
        // By rank: None if it has not made the call, its signature, or no bytes if that is no longer kept.
        .def("next", &PyLedger::next)
        .def_prop_ro("made", [](PyLedger& self) { return (*self).made(); })
        .def_prop_ro("agreed", [](PyLedger& self) { return (*self).agreed(); })
        .def_prop_ro_static("sheet_bytes", [](nb::handle) { return sizeof(Ledger::Sheet); });
}

}  // namespace allfold
