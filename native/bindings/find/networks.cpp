// The inner loops of `allfold.find`: cuts, trees and rounds of networks.
#include "bindings/find/find.hpp"

#include <chrono>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "find/cut.hpp"
#include "find/pack.hpp"
#include "find/rounds.hpp"

namespace allfold {

void run_interruptible(double seconds, const std::function<void(const find::Stop&)>& work) {
    using Clock = std::chrono::steady_clock;
    auto start = Clock::now(), asked = start;
    bool interrupted = false;
    find::Stop stop = [&] {
        auto now = Clock::now();
        if (std::chrono::duration<double>(now - start).count() > seconds) return true;
        if (now - asked > std::chrono::milliseconds(50)) {
            asked = now;
            WithGil with;
            interrupted = in_python([] { return PyErr_CheckSignals(); }) != 0;
        }
        return interrupted;
    };
    {
        WithoutGil without;
        try {
            work(stop);
        } catch (const find::Stopped&) {}
    }
    if (interrupted) throw nb::python_error();
}

namespace {

find::Graph graph_of(int32_t vertices, const Column<const int32_t>& tail, const Column<const int32_t>& head,
                     const Column<const int64_t>& capacity) {
    find::Graph graph{vertices, copied(tail), copied(head), copied(capacity)};
    auto outside = [&](int32_t vertex) { return vertex < 0 || vertex >= vertices; };
    bool wrong = vertices < 1 || graph.tail.size() != graph.head.size() || graph.tail.size() != graph.capacity.size();
    for (size_t edge = 0; !wrong && edge < graph.tail.size(); ++edge)
        wrong = outside(graph.tail[edge]) || outside(graph.head[edge]) || graph.capacity[edge] < 0;
    if (wrong) throw EngineError(Fault::usage, "a graph needs edges between its vertices, with capacities from 0 up");
    return graph;
}

std::vector<int64_t> per_vertex(int32_t vertices, const Column<const int64_t>& numbers) {
    if (numbers.shape(0) != static_cast<size_t>(vertices))
        throw EngineError(Fault::usage, "expected a number for every vertex");
    return copied(numbers);
}

// A graph, what its vertices have for all sinks, and the sinks.
struct Demand {
    find::Graph graph;
    std::vector<int64_t> weight;
    std::vector<int32_t> sinks;
};

Demand demand_of(int32_t vertices, const Column<const int32_t>& tail, const Column<const int32_t>& head,
                 const Column<const int64_t>& capacity, const Column<const int64_t>& weight,
                 const Column<const int32_t>& sinks) {
    Demand demand{graph_of(vertices, tail, head, capacity), per_vertex(vertices, weight), copied(sinks)};
    check_indices(demand.sinks, vertices, "a sink that is not a vertex");
    return demand;
}

nb::object tightest_cut(nb::args given) {
    Arguments next(std::move(given), 7);
    const int32_t vertices = next;
    const Column<const int32_t> tail = next, head = next;
    const Column<const int64_t> capacity = next, weight = next;
    const Column<const int32_t> sinks = next;
    const double seconds = next;
    Demand all = demand_of(vertices, tail, head, capacity, weight, sinks);
    auto cut = interruptible(
        seconds, [&](const find::Stop& stop) { return find::tightest_cut(all.graph, all.weight, all.sinks, stop); });
    if (!cut) return nb::none();
    return nb::make_tuple(cut->weight, cut->capacity,
                          array_of(std::move(cut->inside), {1, static_cast<size_t>(vertices)}));
}

nb::object cuts_below(nb::args given) {
    Arguments next(std::move(given), 8);
    const int32_t vertices = next;
    const Column<const int32_t> tail = next, head = next;
    const Column<const int64_t> capacity = next, weight = next;
    const Column<const int32_t> sinks = next;
    const int64_t wanted = next;
    const double seconds = next;
    Demand all = demand_of(vertices, tail, head, capacity, weight, sinks);
    auto cuts = interruptible(seconds, [&](const find::Stop& stop) {
        return find::cuts_below(all.graph, all.weight, all.sinks, wanted, stop);
    });
    if (!cuts) return nb::none();
    std::vector<uint8_t> inside;
    for (const auto& cut : *cuts) inside.insert(inside.end(), cut.begin(), cut.end());
    return array_of(std::move(inside), {cuts->size(), static_cast<size_t>(vertices)});
}

nb::object can_pack(nb::args given) {
    Arguments next(std::move(given), 6);
    const int32_t vertices = next;
    const Column<const int32_t> tail = next, head = next;
    const Column<const int64_t> capacity = next, wanted = next;
    const double seconds = next;
    find::Graph graph = graph_of(vertices, tail, head, capacity);
    std::vector<int64_t> roots = per_vertex(vertices, wanted);
    auto can = interruptible(seconds, [&](const find::Stop& stop) { return find::can_pack(graph, roots, stop); });
    return can ? nb::cast(*can) : nb::none();
}

// Trees as rows: roots, how many of each, and the parents of all vertices; None if time ran out, no rows if none exist.
nb::object pack_trees(nb::args given) {
    Arguments next(std::move(given), 8);
    const int32_t vertices = next;
    const Column<const int32_t> tail = next, head = next;
    const Column<const int64_t> capacity = next, wanted = next;
    const Column<const int32_t> order = next;
    const bool careful = next;
    const double seconds = next;
    find::Graph graph = graph_of(vertices, tail, head, capacity);
    std::vector<int64_t> roots = per_vertex(vertices, wanted);
    std::vector<int32_t> turns = copied(order);
    check_indices(turns, vertices, "a root that is not a vertex");
    auto trees = interruptible(
        seconds, [&](const find::Stop& stop) { return find::pack_trees(graph, roots, turns, careful, stop); });
    if (!trees) return nb::none();
    std::vector<int32_t> root, parent;
    std::vector<int64_t> times;
    parent.reserve(trees->size() * vertices);
    for (const find::Tree& tree : *trees) {
        root.push_back(tree.root);
        times.push_back(tree.times);
        parent.insert(parent.end(), tree.parent.begin(), tree.parent.end());
    }
    size_t many = trees->size();
    return nb::make_tuple(array_of(std::move(root), {1, many}), array_of(std::move(times), {1, many}),
                          array_of(std::move(parent), {many, static_cast<size_t>(vertices)}));
}

nb::object rounds_of(nb::args given) {
    Arguments next(std::move(given), 8);
    const int32_t vertices = next;
    const Column<const int32_t> tree = next, due = next, parent = next;
    const Column<const int64_t> offsets = next;
    const Column<const int32_t> links = next;
    const Column<const int64_t> capacity = next;
    const double seconds = next;
    find::Pieces pieces{vertices,        copied(tree),  copied(due),     copied(parent),
                        copied(offsets), copied(links), copied(capacity)};
    if (vertices < 1 || pieces.parent.size() % vertices || pieces.offsets.size() != pieces.parent.size() + 1)
        throw EngineError(Fault::usage, "rounds: a parent and a route for every vertex of every tree");
    check_indices(pieces.tree, static_cast<int64_t>(pieces.parent.size() / vertices), "a piece of no tree");
    check_indices(pieces.due, 1 << 24, "a piece that is due before the start, or too late");
    if (pieces.due.size() != pieces.tree.size()) throw EngineError(Fault::usage, "a due round for every piece");
    check_indices(pieces.links, static_cast<int64_t>(pieces.capacity.size()), "a link that is not there");
    for (size_t cell = 0; cell < pieces.parent.size(); ++cell)
        if (pieces.parent[cell] < -1 || pieces.parent[cell] >= vertices ||
            pieces.offsets[cell] > pieces.offsets[cell + 1] || pieces.offsets[cell] < 0)
            throw EngineError(Fault::usage, "rounds: a parent or a route that is not there");
    if (static_cast<size_t>(pieces.offsets.back()) > pieces.links.size())
        throw EngineError(Fault::usage, "rounds: a route that is not there");
    size_t many = pieces.tree.size();
    auto rounds = interruptible(seconds, [&](const find::Stop& stop) { return find::rounds_of(pieces, stop); });
    if (!rounds) return nb::none();
    return array_of(std::move(*rounds), {many, static_cast<size_t>(vertices)});
}

}  // namespace

void bind_find(nb::module_& module) {
    module.def("tightest_cut", &tightest_cut);
    module.def("cuts_below", &cuts_below);
    module.def("can_pack", &can_pack);
    module.def("pack_trees", &pack_trees);
    module.def("rounds_of", &rounds_of);
}

}  // namespace allfold
