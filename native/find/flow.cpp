#include "find/flow.hpp"

#include <algorithm>

namespace allfold::find {

int32_t FlowGraph::add(int32_t tail, int32_t head, int64_t capacity) {
    tail_.insert(tail_.end(), {tail, head});
    head_.insert(head_.end(), {head, tail});
    capacity_.insert(capacity_.end(), {capacity, 0});
    indexed_ = false;
    return static_cast<int32_t>(head_.size() / 2) - 1;
}

void FlowGraph::index() {
    first_.assign(vertices_ + 1, 0);
    for (int32_t tail : tail_) ++first_[tail + 1];
    for (int32_t vertex = 0; vertex < vertices_; ++vertex) first_[vertex + 1] += first_[vertex];
    std::vector<int32_t> place(first_.begin(), first_.end() - 1);
    arcs_.resize(tail_.size());
    for (size_t arc = 0; arc < tail_.size(); ++arc) arcs_[place[tail_[arc]]++] = static_cast<int32_t>(arc);
    level_.resize(vertices_);
    next_.resize(vertices_);
    queue_.resize(vertices_);
    indexed_ = true;
}

// Breadth first, over arcs that have capacity left. True if the sink was reached; then levels beyond it are not set.
bool FlowGraph::spread(int32_t source, int32_t sink) {
    std::fill(level_.begin(), level_.end(), -1);
    level_[source] = 0;
    queue_[0] = source;
    for (int32_t at = 0, end = 1; at < end; ++at) {
        int32_t vertex = queue_[at];
        for (int32_t i = first_[vertex]; i < first_[vertex + 1]; ++i) {
            int32_t arc = arcs_[i], head = head_[arc];
            if (left_[arc] <= 0 || level_[head] >= 0) continue;
            level_[head] = level_[vertex] + 1;
            if (head == sink) return true;
            queue_[end++] = head;
        }
    }
    return false;
}

int64_t FlowGraph::push(int32_t vertex, int32_t sink, int64_t most) {
    if (vertex == sink) return most;
    int64_t pushed = 0;
    for (int32_t& i = next_[vertex]; i < first_[vertex + 1]; ++i) {
        int32_t arc = arcs_[i], head = head_[arc];
        if (left_[arc] <= 0 || level_[head] != level_[vertex] + 1) continue;
        int64_t through = push(head, sink, std::min(most - pushed, left_[arc]));
        left_[arc] -= through;
        left_[arc ^ 1] += through;
        pushed += through;
        if (pushed == most) return pushed;
    }
    return pushed;
}

int64_t FlowGraph::flow(int32_t source, int32_t sink, int64_t enough) {
    if (!indexed_) index();
    left_ = capacity_;
    int64_t total = 0;
    while (total < enough && spread(source, sink)) {
        std::copy(first_.begin(), first_.end() - 1, next_.begin());
        total += push(source, sink, enough - total);
    }
    return total;
}

}  // namespace allfold::find
