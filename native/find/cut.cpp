// Dinkelbach's method. With weight/capacity of the best set so far as p/q, a source feeds q · weight into every vertex
// and every edge carries p · capacity. If all of it reaches a sink, no set without that sink is worse. If not, the
// minimum cut is a worse set. A sink that is satisfied stays so, because p/q only grows.
#include "find/cut.hpp"

#include <numeric>
#include <set>
#include <utility>

namespace allfold::find {

namespace {

Cut measured(const Graph& graph, const std::vector<int64_t>& weight, std::vector<uint8_t> inside) {
    Cut cut;
    cut.inside = std::move(inside);
    for (int32_t vertex = 0; vertex < graph.vertices; ++vertex)
        if (cut.inside[vertex]) cut.weight += weight[vertex];
    for (size_t edge = 0; edge < graph.tail.size(); ++edge)
        if (cut.inside[graph.tail[edge]] && !cut.inside[graph.head[edge]]) cut.capacity += graph.capacity[edge];
    return cut;
}

bool worse(const Cut& one, const Cut& other) {
    return static_cast<__int128>(one.weight) * other.capacity > static_cast<__int128>(other.weight) * one.capacity;
}

}  // namespace

Cut tightest_cut(const Graph& graph, const std::vector<int64_t>& weight, const std::vector<int32_t>& sinks,
                 const Stop& stop) {
    Cut best;
    best.capacity = 1;
    best.inside.assign(graph.vertices, 0);
    // The first guess: all vertices but one, by the capacity that enters it.
    std::vector<int64_t> entering(graph.vertices, 0);
    for (size_t edge = 0; edge < graph.tail.size(); ++edge) entering[graph.head[edge]] += graph.capacity[edge];
    int64_t in_all = std::accumulate(weight.begin(), weight.end(), int64_t{0});
    int32_t least = -1;
    for (int32_t sink : sinks) {
        Cut all_but_one{in_all - weight[sink], entering[sink], {}};
        if (worse(all_but_one, best))
            best.weight = all_but_one.weight, best.capacity = all_but_one.capacity, least = sink;
    }
    if (least >= 0) {
        best.inside.assign(graph.vertices, 1);
        best.inside[least] = 0;
    }
    FlowGraph flows(graph.vertices + 1);
    for (size_t edge = 0; edge < graph.tail.size(); ++edge) flows.add(graph.tail[edge], graph.head[edge], 0);
    std::vector<int32_t> fed;
    for (int32_t vertex = 0; vertex < graph.vertices; ++vertex)
        if (weight[vertex]) fed.push_back(flows.add(graph.vertices, vertex, 0));
    int64_t wanted = 0;
    auto guess = [&] {
        int64_t divisor = std::gcd(best.weight, best.capacity);
        int64_t p = best.weight / divisor, q = best.capacity / divisor;
        for (size_t edge = 0; edge < graph.tail.size(); ++edge)
            flows.set(static_cast<int32_t>(edge), p * graph.capacity[edge]);
        size_t next = 0;
        for (int32_t vertex = 0; vertex < graph.vertices; ++vertex)
            if (weight[vertex]) flows.set(fed[next++], q * weight[vertex]);
        wanted = q * in_all;
    };
    guess();
    for (int32_t sink : sinks) {
        while (best.capacity && flows.flow(graph.vertices, sink) < wanted) {
            std::vector<uint8_t> inside(graph.vertices);
            for (int32_t vertex = 0; vertex < graph.vertices; ++vertex) inside[vertex] = flows.inside(vertex);
            best = measured(graph, weight, std::move(inside));
            guess();
        }
        if (stop()) throw Stopped{};
    }
    return best;
}

std::vector<std::vector<uint8_t>> cuts_below(const Graph& graph, const std::vector<int64_t>& weight,
                                             const std::vector<int32_t>& sinks, int64_t wanted, const Stop& stop) {
    FlowGraph flows(graph.vertices + 1);
    for (size_t edge = 0; edge < graph.tail.size(); ++edge)
        flows.add(graph.tail[edge], graph.head[edge], graph.capacity[edge]);
    for (int32_t vertex = 0; vertex < graph.vertices; ++vertex)
        if (weight[vertex]) flows.add(graph.vertices, vertex, weight[vertex]);
    std::set<std::vector<uint8_t>> found;
    for (int32_t sink : sinks) {
        if (flows.flow(graph.vertices, sink, wanted) < wanted) {
            std::vector<uint8_t> inside(graph.vertices);
            for (int32_t vertex = 0; vertex < graph.vertices; ++vertex) inside[vertex] = flows.inside(vertex);
            found.insert(std::move(inside));
        }
        if (stop()) throw Stopped{};
    }
    return {found.begin(), found.end()};
}

}  // namespace allfold::find
