// One root after the other. First optimistically: level by level, over the edge with the most capacity left, and no
// test at all. If a root gets stuck, once more over wide edges first; and if that gets stuck too, with a test after
// every root that what remains is enough for the others; a root whose easy trees fail the test gets its trees edge by
// edge, each edge tested (Bérczi and Frank's order).
#include "find/pack.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

namespace allfold::find {

namespace {

struct Partial {
    int64_t times;
    std::vector<int32_t> parent;
    std::vector<int32_t> members;  // in the order in which they were added
    std::vector<uint8_t> has;
};

class Packer {
  public:
    Packer(const Graph& graph, const std::vector<int64_t>& wanted, const Stop& stop)
        : graph_(graph), left_(graph.capacity), wanted_(wanted), stop_(stop), leaving_(graph.vertices) {
        for (size_t edge = 0; edge < graph.tail.size(); ++edge)
            leaving_[graph.tail[edge]].push_back(static_cast<int32_t>(edge));
    }

    std::vector<Tree> all(const std::vector<int32_t>& order, bool may_be_careful) {
        for (Manner manner : {Manner::by_level, Manner::by_width, Manner::carefully}) {
            bool careful = manner == Manner::carefully;
            if (careful && (!may_be_careful || !can_pack(graph_, wanted_, stop_))) break;
            left_ = graph_.capacity;
            owed_ = wanted_;
            trees_.clear();
            by_width_ = manner == Manner::by_width;
            bool done = true;
            for (int32_t root : order) {
                done = !owed_[root] || (careful ? add_carefully(root) : add_easily(root));
                if (!done) break;
                if (stop_()) throw Stopped{};
            }
            if (done) return trees_;
        }
        return {};
    }

  private:
    enum class Manner { by_level, by_width, carefully };

    bool add_easily(int32_t root) {
        int64_t owed = std::exchange(owed_[root], 0), times = owed;
        while (owed) {
            times = std::min(times, owed);
            if (by_width_ ? grow_by_width(root, times) : grow(root, times)) {
                owed -= times;
            } else if (times == 1) {
                return false;
            } else {
                times /= 2;
            }
        }
        return true;
    }

    // A tree level by level: every vertex outside takes, of the edges from the level before, the one with most left.
    bool grow(int32_t root, int64_t times) {
        std::vector<int32_t> parent(graph_.vertices, -1), edge_of(graph_.vertices, -1), level{root}, next;
        std::vector<uint8_t> has(graph_.vertices, 0);
        has[root] = 1;
        int32_t many = 1;
        while (!level.empty()) {
            next.clear();
            for (int32_t tail : level)
                for (int32_t edge : leaving_[tail]) {
                    int32_t head = graph_.head[edge];
                    if (has[head] == 1 || left_[edge] < times) continue;
                    if (!has[head]) next.push_back(head), has[head] = 2;
                    if (edge_of[head] < 0 || left_[edge] > left_[edge_of[head]]) edge_of[head] = edge;
                }
            for (int32_t head : next) has[head] = 1, parent[head] = graph_.tail[edge_of[head]], ++many;
            level.swap(next);
        }
        if (many < graph_.vertices) return false;
        for (int32_t edge : edge_of)
            if (edge >= 0) left_[edge] -= times;
        trees_.push_back({root, times, std::move(parent)});
        return true;
    }

    // A tree over the widest edges, near the root where they are about equal: a group of vertices with wide edges
    // between them is entered once, and narrow edges into it are left to other trees.
    bool grow_by_width(int32_t root, int64_t times) {
        std::vector<int32_t> parent(graph_.vertices, -1), depth(graph_.vertices, -1), used;
        std::priority_queue<std::tuple<int32_t, int32_t, int64_t, int32_t>> open;  // width, −depth, −turn, edge
        int64_t turn = 0;
        auto reach = [&](int32_t vertex, int32_t at) {
            depth[vertex] = at;
            for (int32_t edge : leaving_[vertex])
                if (left_[edge] >= times && depth[graph_.head[edge]] < 0)
                    open.emplace(static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(left_[edge]))), -at, --turn,
                                 edge);
        };
        reach(root, 0);
        while (!open.empty() && used.size() + 1 < static_cast<size_t>(graph_.vertices)) {
            int32_t edge = std::get<3>(open.top());
            open.pop();
            int32_t head = graph_.head[edge];
            if (depth[head] >= 0) continue;
            parent[head] = graph_.tail[edge];
            used.push_back(edge);
            reach(head, depth[parent[head]] + 1);
        }
        if (used.size() + 1 < static_cast<size_t>(graph_.vertices)) return false;
        for (int32_t edge : used) left_[edge] -= times;
        trees_.push_back({root, times, std::move(parent)});
        return true;
    }

    bool add_carefully(int32_t root) {
        std::vector<int64_t> before = left_;
        int64_t owed = owed_[root];
        size_t trees = trees_.size();
        if (add_easily(root) && can_pack({graph_.vertices, graph_.tail, graph_.head, left_}, owed_, stop_)) return true;
        left_ = before;
        owed_[root] = owed;
        trees_.resize(trees);
        return add_exactly(root);
    }

    bool add_exactly(int32_t root) {
        std::vector<Partial> pending;
        Partial first{std::exchange(owed_[root], 0), std::vector<int32_t>(graph_.vertices, -1), {root}, {}};
        first.has.assign(graph_.vertices, 0);
        first.has[root] = 1;
        pending.push_back(std::move(first));
        while (!pending.empty()) {
            Partial tree = std::move(pending.back());
            pending.pop_back();
            if (!complete(tree, pending)) return false;
            trees_.push_back({root, tree.times, std::move(tree.parent)});
        }
        return true;
    }

    // Grow one tree until it is complete. Where an edge has room for some of its copies only, the others wait in
    // `pending`.
    bool complete(Partial& tree, std::vector<Partial>& pending) {
        FlowGraph flows(graph_.vertices);
        std::vector<int32_t> own(graph_.tail.size()), feeds(graph_.vertices);
        for (size_t edge = 0; edge < graph_.tail.size(); ++edge)
            own[edge] = flows.add(graph_.tail[edge], graph_.head[edge], left_[edge]);
        // What all other trees still need: it comes from where the edge under test begins.
        int32_t others = flows.add_vertex();
        int64_t needed = 0;
        for (int32_t vertex = 0; vertex < graph_.vertices; ++vertex) {
            feeds[vertex] = flows.add(vertex, others, 0);
            if (owed_[vertex]) flows.add(others, vertex, owed_[vertex]);
            needed += owed_[vertex];
        }
        auto add_pending = [&](const Partial& one) {
            int32_t its = flows.add_vertex();
            flows.add(others, its, one.times);
            for (int32_t member : one.members) flows.add(its, member, unlimited);
            needed += one.times;
        };
        for (const Partial& one : pending) add_pending(one);
        for (size_t at = 0; at < tree.members.size(); ++at) {
            int32_t tail = tree.members[at];
            std::vector<int32_t> edges = leaving_[tail];
            std::stable_sort(edges.begin(), edges.end(), [&](int32_t a, int32_t b) { return left_[a] > left_[b]; });
            for (int32_t edge : edges) {
                int32_t head = graph_.head[edge];
                int64_t most = std::min(left_[edge], tree.times);
                if (tree.has[head] || !most) continue;
                if (stop_()) throw Stopped{};
                flows.set(feeds[tail], unlimited);
                int64_t spare = flows.flow(tail, head, needed + most) - needed;
                flows.set(feeds[tail], 0);
                if (spare <= 0) continue;
                if (spare < tree.times) {
                    pending.push_back(tree);
                    pending.back().times -= spare;
                    add_pending(pending.back());
                    tree.times = spare;
                }
                left_[edge] -= spare;
                flows.set(own[edge], left_[edge]);
                tree.has[head] = 1;
                tree.parent[head] = tail;
                tree.members.push_back(head);
            }
        }
        return tree.members.size() == static_cast<size_t>(graph_.vertices);
    }

    const Graph& graph_;
    std::vector<int64_t> left_;  // capacity of every edge
    const std::vector<int64_t>& wanted_;
    std::vector<int64_t> owed_;  // trees that roots have not begun
    const Stop& stop_;
    bool by_width_ = false;
    std::vector<std::vector<int32_t>> leaving_;
    std::vector<Tree> trees_;
};

}  // namespace

bool can_pack(const Graph& graph, const std::vector<int64_t>& wanted, const Stop& stop) {
    FlowGraph flows(graph.vertices + 1);
    for (size_t edge = 0; edge < graph.tail.size(); ++edge)
        if (graph.capacity[edge]) flows.add(graph.tail[edge], graph.head[edge], graph.capacity[edge]);
    int64_t in_all = 0;
    for (int32_t vertex = 0; vertex < graph.vertices; ++vertex) {
        if (wanted[vertex]) flows.add(graph.vertices, vertex, wanted[vertex]);
        in_all += wanted[vertex];
    }
    for (int32_t vertex = 0; vertex < graph.vertices; ++vertex) {
        if (flows.flow(graph.vertices, vertex) < in_all) return false;
        if (stop()) throw Stopped{};
    }
    return true;
}

std::vector<Tree> pack_trees(const Graph& graph, const std::vector<int64_t>& wanted, const std::vector<int32_t>& order,
                             bool careful, const Stop& stop) {
    return Packer(graph, wanted, stop).all(order, careful);
}

}  // namespace allfold::find
