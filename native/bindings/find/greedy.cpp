// The greedy search of `allfold.find`.
#include "find/greedy.hpp"
#include "bindings/bindings.hpp"
#include "bindings/find/find.hpp"

namespace allfold {

namespace {

find::Neighbours neighbours_of(uint32_t ranks, const Column<const int32_t>& source,
                               const Column<const int32_t>& destination, const Column<const int64_t>& offsets,
                               const Column<const int32_t>& links, const Column<const int32_t>& capacity) {
    find::Neighbours all{ranks, copied(source), copied(destination), copied(offsets), copied(links), copied(capacity)};
    check_indices(all.source, ranks, "neighbours: a source that is not a rank");
    check_indices(all.destination, ranks, "neighbours: a destination that is not a rank");
    check_indices(all.links, static_cast<int64_t>(all.capacity.size()), "neighbours: a link that is not there");
    bool wrong = all.source.size() != all.destination.size() || all.offsets.size() != all.source.size() + 1 ||
                 all.offsets.front() != 0 || all.offsets.back() != static_cast<int64_t>(all.links.size());
    for (size_t pair = 0; !wrong && pair < all.source.size(); ++pair) wrong = all.offsets[pair] > all.offsets[pair + 1];
    for (int32_t one : all.capacity) wrong = wrong || one < 1;
    if (wrong) throw EngineError(Fault::usage, "neighbours: expected routes of all pairs, and capacities from 1 up");
    return all;
}

nb::object as_tuple(std::optional<find::Rounds> rounds) {
    if (!rounds) return nb::none();
    size_t starts = rounds->starts.size(), moves = rounds->chunk.size();
    return nb::make_tuple(
        array_of(std::move(rounds->starts), {1, starts}), array_of(std::move(rounds->chunk), {1, moves}),
        array_of(std::move(rounds->source), {1, moves}), array_of(std::move(rounds->destination), {1, moves}));
}

// Where rounds start, and chunk, source and destination of all moves; None if time ran out.
nb::object spread(nb::args given) {
    Arguments next(std::move(given), 9);
    const uint32_t ranks = next;
    const Column<const int32_t> source = next, destination = next;
    const Column<const int64_t> offsets = next;
    const Column<const int32_t> links = next, capacity = next, holder = next;
    const uint64_t seed = next;
    const double seconds = next;
    find::Neighbours all = neighbours_of(ranks, source, destination, offsets, links, capacity);
    std::vector<int32_t> holders = copied(holder);
    check_indices(holders, ranks, "spread: a chunk that no rank holds");
    return as_tuple(
        interruptible(seconds, [&](const find::Stop& stop) { return find::spread(all, holders, seed, stop); }));
}

}  // namespace

void bind_find_greedy(nb::module_& module) { module.def("spread", &spread); }

}  // namespace allfold
