// Maximum flows in 64-bit whole numbers (Dinic), on a graph whose capacities change from one flow to the next.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace allfold::find {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max() / 4;

// Thrown by long computations when they are asked to stop.
struct Stopped {};

// Called now and then by long computations: true if they should stop.
using Stop = std::function<bool()>;

class FlowGraph {
  public:
    explicit FlowGraph(int32_t vertices) : vertices_(vertices) {}

    int32_t vertices() const { return vertices_; }
    int32_t add_vertex() { return vertices_++; }
    int32_t add(int32_t tail, int32_t head, int64_t capacity);  // the number of the edge
    int64_t capacity(int32_t edge) const { return capacity_[2 * edge]; }
    void set(int32_t edge, int64_t capacity) { capacity_[2 * edge] = capacity; }

    // The largest flow from source to sink, or `enough` if it is larger.
    int64_t flow(int32_t source, int32_t sink, int64_t enough = unlimited);
    // After a flow that did not reach `enough`: true if a vertex is on the source's side of the minimum cut.
    bool inside(int32_t vertex) const { return level_[vertex] >= 0; }

  private:
    void index();
    bool spread(int32_t source, int32_t sink);
    int64_t push(int32_t vertex, int32_t sink, int64_t most);

    int32_t vertices_;
    std::vector<int32_t> tail_, head_;  // of edge e: arcs 2e forwards, 2e + 1 backwards
    std::vector<int64_t> capacity_, left_;
    std::vector<int32_t> first_, arcs_;  // the arcs that leave each vertex, in compressed rows
    std::vector<int32_t> level_, next_, queue_;
    bool indexed_ = false;
};

}  // namespace allfold::find
