#include "find/rounds.hpp"

#include <algorithm>

namespace allfold::find {

namespace {

struct Waiting {
    int32_t piece, vertex;
};

// The height of every vertex of a tree: the edges of the longest path down from it.
std::vector<int32_t> heights(const int32_t* parent, int32_t vertices) {
    std::vector<int32_t> height(vertices, 0), children(vertices, 0), leaves;
    for (int32_t vertex = 0; vertex < vertices; ++vertex)
        if (parent[vertex] >= 0) ++children[parent[vertex]];
    for (int32_t vertex = 0; vertex < vertices; ++vertex)
        if (!children[vertex]) leaves.push_back(vertex);
    while (!leaves.empty()) {
        int32_t vertex = leaves.back(), above = parent[vertex];
        leaves.pop_back();
        if (above < 0) continue;
        height[above] = std::max(height[above], height[vertex] + 1);
        if (!--children[above]) leaves.push_back(above);
    }
    return height;
}

}  // namespace

std::vector<int32_t> rounds_of(const Pieces& pieces, const Stop& stop) {
    int32_t vertices = pieces.vertices;
    size_t trees = pieces.parent.size() / vertices;
    std::vector<int32_t> height;
    std::vector<std::vector<int32_t>> children(trees * vertices);
    std::vector<int32_t> root(trees, -1);
    for (size_t tree = 0; tree < trees; ++tree) {
        const int32_t* parent = pieces.parent.data() + tree * vertices;
        std::vector<int32_t> own = heights(parent, vertices);
        height.insert(height.end(), own.begin(), own.end());
        for (int32_t vertex = 0; vertex < vertices; ++vertex) {
            if (parent[vertex] < 0)
                root[tree] = vertex;
            else
                children[tree * vertices + parent[vertex]].push_back(vertex);
        }
    }
    int32_t highest = height.empty() ? 0 : *std::max_element(height.begin(), height.end());
    int32_t latest = pieces.due.empty() ? 0 : *std::max_element(pieces.due.begin(), pieces.due.end());
    std::vector<std::vector<Waiting>> waiting(latest + highest + 1);  // by when they must leave, the first first
    std::vector<Waiting> arrived;
    for (size_t piece = 0; piece < pieces.tree.size(); ++piece)
        arrived.push_back({static_cast<int32_t>(piece), root[pieces.tree[piece]]});
    std::vector<int32_t> round(pieces.tree.size() * vertices, -1);
    std::vector<int64_t> left;
    size_t open = 0;
    for (int32_t now = 0;; ++now) {
        for (const Waiting& one : arrived) {
            size_t row = static_cast<size_t>(pieces.tree[one.piece]) * vertices;
            for (int32_t child : children[row + one.vertex]) {
                waiting[pieces.due[one.piece] + highest - height[row + child]].push_back({one.piece, child});
                ++open;
            }
        }
        arrived.clear();
        if (!open) return round;
        if (stop()) throw Stopped{};
        left = pieces.capacity;
        for (std::vector<Waiting>& row : waiting) {
            size_t kept = 0;
            for (const Waiting& one : row) {
                size_t cell = static_cast<size_t>(pieces.tree[one.piece]) * vertices + one.vertex;
                auto begin = pieces.links.begin() + pieces.offsets[cell],
                     end = pieces.links.begin() + pieces.offsets[cell + 1];
                if (std::all_of(begin, end, [&](int32_t link) { return left[link] > 0; })) {
                    for (auto link = begin; link != end; ++link) --left[*link];
                    round[static_cast<size_t>(one.piece) * vertices + one.vertex] = now;
                    arrived.push_back(one);
                    --open;
                } else {
                    row[kept++] = one;
                }
            }
            row.resize(kept);
        }
        if (arrived.empty()) throw Stopped{};  // a link without capacity: nothing more can move
    }
}

}  // namespace allfold::find
