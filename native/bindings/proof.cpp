// The parts of the proof of compiled programs that look at every instruction. Arrays are those of src/allfold/programs.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"
#include "bindings/gil.hpp"
#include "proof/conflicts.hpp"
#include "proof/fold.hpp"
#include "proof/follow.hpp"
#include "proof/happens_before.hpp"
#include "proof/in_order.hpp"
#include "proof/step.hpp"
#include "proof/versions.hpp"

namespace allfold {

namespace nb = nanobind;

namespace {

bool within(const Ints& values, int64_t end) {
    return std::all_of(values.data(), values.data() + values.size(), [=](int64_t v) { return v >= 0 && v < end; });
}

// Where each row's entries begin: rising from 0 to the number of entries.
bool are_starts(const Ints& starts, size_t entries) {
    return starts.size() > 0 && starts(0) == 0 && starts(starts.size() - 1) == static_cast<int64_t>(entries) &&
           std::is_sorted(starts.data(), starts.data() + starts.size());
}

proof::Programs programs_of(const Ints& starts, const Ints& wait_starts, const Ints& rank, const Ints& count) {
    need(starts.size() > 0 && wait_starts.size() == static_cast<size_t>(starts(starts.size() - 1)) + 1 &&
             are_starts(wait_starts, rank.size()) && rank.size() == count.size(),
         "waits: columns of different lengths");
    proof::Programs programs{static_cast<int64_t>(starts.size()) - 1, starts.data(), wait_starts.data(), rank.data(),
                             count.data()};
    proof::check_ranges(programs);
    return programs;
}

nb::object rounds(nb::args given) {
    Arguments next(std::move(given), 4);
    const Ints starts = next, wait_starts = next, rank = next, count = next;
    const proof::Programs programs = programs_of(starts, wait_starts, rank, count);
    std::vector<int64_t> when;
    {
        WithoutGil without;
        when = proof::rounds(programs);
    }
    return array_of(std::move(when));
}

nb::object needed_waits(nb::args given) {
    Arguments next(std::move(given), 6);
    const Ints starts = next, wait_starts = next, rank = next, count = next, when = next;
    const int64_t horizon = next;
    const proof::Programs programs = programs_of(starts, wait_starts, rank, count);
    need(static_cast<int64_t>(when.size()) == programs.rows() && within(when, programs.rows()), "rows without a round");
    std::vector<uint8_t> needed;
    {
        WithoutGil without;
        needed = proof::needed_waits(programs, when.data(), horizon);
    }
    return array_of<uint8_t, bool>(std::move(needed));
}

nb::object first_unordered(nb::args given) {
    Arguments next(std::move(given), 7);
    const Ints starts = next, wait_starts = next, rank = next, count = next, when = next, earlier = next, later = next;
    const proof::Programs programs = programs_of(starts, wait_starts, rank, count);
    need(static_cast<int64_t>(when.size()) == programs.rows() && within(when, programs.rows()), "rows without a round");
    need(earlier.size() == later.size() && earlier.size() < INT32_MAX && within(earlier, programs.rows()) &&
             within(later, programs.rows()),
         "pairs of rows that do not exist");
    int64_t first = 0;
    {
        WithoutGil without;
        first = proof::first_unordered(programs, when.data(), earlier.data(), later.data(),
                                       static_cast<int64_t>(earlier.size()));
    }
    return nb::int_(first);
}

// `sources` and `destinations`: starts, rank and slot of each.
nb::object follow(nb::args given) {
    Arguments next(std::move(given), 11);
    const Ints when = next, source_starts = next, source_rank = next, source_slot = next, destination_starts = next,
               destination_rank = next, destination_slot = next;
    const int64_t ranks = next;
    const Column<int32_t> datum = next;
    const Column<uint64_t> bits = next;
    const Column<int32_t> count = next;
    const size_t rows = when.size();
    const int64_t slots = ranks > 0 ? static_cast<int64_t>(datum.size()) / ranks : 0;
    need(within(when, static_cast<int64_t>(rows)), "rows without a round");
    need(datum.size() == static_cast<size_t>(ranks * slots) && bits.size() == datum.size() &&
             count.size() == datum.size() && source_starts.size() == rows + 1 &&
             destination_starts.size() == rows + 1 && are_starts(source_starts, source_rank.size()) &&
             source_rank.size() == source_slot.size() && are_starts(destination_starts, destination_rank.size()) &&
             destination_rank.size() == destination_slot.size(),
         "follow: columns of different lengths");
    for (size_t row = 0; row < rows; ++row)
        need(source_starts(row) < source_starts(row + 1), "follow: an instruction without a source");
    need(within(source_rank, ranks) && within(destination_rank, ranks) && within(source_slot, slots) &&
             within(destination_slot, slots),
         "follow: accesses to places that do not exist");
    std::vector<int32_t> found_datum(rows), found_count(rows);
    std::vector<uint8_t> mixed(rows);
    {
        WithoutGil without;
        proof::follow(when.data(), static_cast<int64_t>(rows),
                      {source_starts.data(), source_rank.data(), source_slot.data()},
                      {destination_starts.data(), destination_rank.data(), destination_slot.data()},
                      {slots, datum.data(), bits.data(), count.data()},
                      {found_datum.data(), found_count.data(), reinterpret_cast<bool*>(mixed.data())});
    }
    return nb::make_tuple(array_of(std::move(found_datum)), array_of(std::move(found_count)),
                          array_of<uint8_t, bool>(std::move(mixed)));
}

// The positions of the keys in sorted order; equal keys keep their order.
nb::object order(nb::args given) {
    Arguments next(std::move(given), 1);
    const Ints keys = next;
    std::vector<int64_t> positions;
    {
        WithoutGil without;
        positions = proof::order(keys.data(), static_cast<int64_t>(keys.size()));
    }
    return array_of(std::move(positions));
}

// The pairs (earlier, later) of rows that must be ordered.
nb::object conflicts(nb::args given) {
    Arguments next(std::move(given), 5);
    const Ints row = next, place = next;
    const Column<const bool> writes = next;
    const Ints when = next, starts = next;
    need(row.size() == place.size() && row.size() == writes.size() && starts.size() > 0 &&
             are_starts(starts, when.size()) && when.size() < INT32_MAX,
         "conflicts: columns of different lengths");
    need(within(row, static_cast<int64_t>(when.size())) && within(place, INT64_MAX) && within(when, INT64_MAX),
         "conflicts: accesses of rows that do not exist");
    proof::Conflicts found;
    {
        WithoutGil without;
        found = proof::conflicts({static_cast<int64_t>(row.size()), row.data(), place.data(), writes.data()},
                                 when.data(), starts.data(), static_cast<int64_t>(starts.size()) - 1);
    }
    return nb::make_tuple(array_of(std::move(found.earlier)), array_of(std::move(found.later)));
}

// What is wrong (0: nothing) and where, whether a copy goes to a chunk that may be shorter, and the folds.
nb::object folds_of(nb::args given) {
    Arguments next(std::move(given), 13);
    const Column<const int32_t> reduces = next, chunk = next, source = next, destination = next, into = next;
    const int64_t ranks = next, width = next, chunks = next, part = next;
    const Column<const int32_t> datum = next, first = next;
    const Column<int64_t> written = next;
    const int64_t number = next;
    const size_t moves = reduces.size();
    need(chunk.size() == moves && source.size() == moves && destination.size() == moves && into.size() == moves &&
             ranks >= 0 && width >= 0 && part > 0 && datum.size() == static_cast<size_t>(ranks * width) &&
             first.size() == datum.size() && written.size() == datum.size(),
         "folds_of: columns of different lengths");
    auto below = [moves](const Column<const int32_t>& values, int64_t end) {
        return std::all_of(values.data(), values.data() + moves, [=](int32_t v) { return v >= 0 && v < end; });
    };
    need(below(source, ranks) && below(destination, ranks) && below(chunk, width) && below(into, width),
         "folds_of: cells that do not exist");
    proof::StepFolds folds = proof::folds_of(
        {static_cast<int64_t>(moves), reduces.data(), chunk.data(), source.data(), destination.data(), into.data()},
        {ranks, width, chunks, part, datum.data(), first.data(), written.data()}, number);
    return nb::make_tuple(static_cast<int>(folds.wrong), folds.at, folds.elsewhere, array_of(std::move(folds.target)),
                          array_of(std::move(folds.starts)), array_of(std::move(folds.operands)),
                          array_of(std::move(folds.move)));
}

// `steps`: where the folds of each step begin among those of all. `cell` and `sizes`: of the versions that are there
// from the start, whose `datum` and `count` are given, and then of all folds.
nb::object versions(nb::args given) {
    Arguments next(std::move(given), 7);
    const Ints steps = next, cell = next, sizes = next, operands = next;
    const Column<const int32_t> datum = next, count = next;
    const int64_t cells = next;
    const size_t total = cell.size(), initial = datum.size();
    need(initial <= total && sizes.size() == total && count.size() == initial && are_starts(steps, total - initial) &&
             within(sizes, static_cast<int64_t>(operands.size()) + 1) &&
             std::accumulate(sizes.data(), sizes.data() + total, int64_t{0}) == static_cast<int64_t>(operands.size()),
         "versions: columns of different lengths");
    need(cells >= 0 && within(cell, cells) && within(operands, cells), "versions: cells that do not exist");
    for (size_t i = 0; i < total; ++i) need((sizes(i) > 0) == (i >= initial), "versions: a fold of nothing");
    proof::Versions made;
    {
        WithoutGil without;
        made = proof::versions({steps.data(), static_cast<int64_t>(steps.size()) - 1, cell.data(), sizes.data(),
                                operands.data(), static_cast<int64_t>(operands.size())},
                               datum.data(), count.data(), static_cast<int64_t>(initial), cells);
    }
    need(made.whole, "versions: a fold of cells that hold nothing");
    return nb::make_tuple(array_of(std::move(made.operand)), array_of(std::move(made.previous)),
                          array_of(std::move(made.datum)), array_of(std::move(made.count)),
                          array_of(std::move(made.current)));
}

using Words = nb::ndarray<uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// What is wrong (0: nothing), in which fold, and with which operand of it.
nb::object fold_symbols(nb::args given) {
    Arguments next(std::move(given), 13);
    const Ints target = next, starts = next, operands = next;
    const Column<int32_t> datum = next, first = next, last = next, count = next;
    const Column<bool> in_order = next;
    const Column<uint64_t> expression = next, bits = next;
    const Words members = next.or_none<Words>();
    const bool twice_is_wrong = next, write = next;
    const size_t size = datum.size();
    need(first.size() == size && last.size() == size && count.size() == size && in_order.size() == size &&
             expression.size() == size && bits.size() == size && (!members.is_valid() || members.shape(0) == size) &&
             starts.size() == target.size() + 1 && are_starts(starts, operands.size()),
         "fold_symbols: columns of different lengths");
    need(within(target, static_cast<int64_t>(size)) && within(operands, static_cast<int64_t>(size)),
         "fold_symbols: cells that do not exist");
    for (size_t i = 0; i < target.size(); ++i) need(starts(i) < starts(i + 1), "fold_symbols: a fold of nothing");
    const proof::Cells cells{datum.data(),
                             first.data(),
                             last.data(),
                             count.data(),
                             in_order.data(),
                             expression.data(),
                             bits.data(),
                             members.is_valid() ? members.data() : nullptr,
                             members.is_valid() ? static_cast<int64_t>(members.shape(1)) : 0};
    const proof::Folds folds{static_cast<int64_t>(target.size()), target.data(), starts.data(), operands.data()};
    const proof::FoldFault fault = proof::fold(cells, folds, twice_is_wrong, write);
    return nb::make_tuple(static_cast<int>(fault.what), fault.fold, fault.operand);
}

}  // namespace

void bind_proof(nb::module_& module) {
    module.def("order", &order);
    module.def("conflicts", &conflicts);
    module.def("folds_of", &folds_of);
    module.def("versions", &versions);
    module.def("fold_symbols", &fold_symbols);
    module.def("rounds", &rounds);
    module.def("needed_waits", &needed_waits);
    module.def("first_unordered", &first_unordered);
    module.def("follow", &follow);
}

}  // namespace allfold
