#include "proof/fold.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "proof/hash.hpp"

namespace allfold::proof {

namespace {

struct Value {
    int32_t datum, first, last, count;
    bool in_order;
    uint64_t expression, bits;
};

}  // namespace

FoldFault fold(const Cells& cells, const Folds& folds, bool twice_is_wrong, bool write) {
    std::vector<Value> values(folds.size);
    std::vector<uint64_t> members(folds.size * cells.words);
    std::tuple<int64_t, Wrong, int64_t> fault{std::numeric_limits<int64_t>::max(), Wrong::nothing, -1};
    for (int64_t i = 0; i < folds.size; ++i) {
        const int64_t* operands = folds.operands + folds.starts[i];
        const int64_t size = folds.starts[i + 1] - folds.starts[i];
        const int64_t head = operands[0];
        Value total{cells.datum[head],    cells.first[head],      cells.last[head], cells.count[head],
                    cells.in_order[head], cells.expression[head], cells.bits[head]};
        uint64_t* who = members.data() + i * cells.words;
        std::copy_n(cells.members + head * cells.words, cells.words, who);
        for (int64_t at = 1; at < size; ++at) {
            const int64_t cell = operands[at];
            uint64_t both = 0;
            for (int64_t word = 0; word < cells.words; ++word) {
                const uint64_t theirs = cells.members[cell * cells.words + word];
                both |= who[word] & theirs;
                who[word] |= theirs;
            }
            if (cells.datum[cell] != total.datum) fault = std::min(fault, {at, Wrong::mixture, i});
            if (!cells.members) fault = std::min(fault, {at, Wrong::reduction, i});
            if (both && twice_is_wrong) fault = std::min(fault, {at, Wrong::twice, i});
            total.in_order = total.in_order && cells.in_order[cell] && total.last + 1 == cells.first[cell];
            total.last = std::max(total.last, cells.last[cell]);
            total.count += cells.count[cell];
            total.expression = combined(total.expression, cells.expression[cell]);
            total.bits = combined(total.bits, cells.bits[cell]);
        }
        if (size > 1) total.bits = rounded(total.bits);
        values[i] = total;
    }
    const auto [operand, what, number] = fault;
    if (what != Wrong::nothing) return {what, number, operand};
    for (int64_t i = 0; write && i < folds.size; ++i) {
        const int64_t cell = folds.target[i];
        cells.datum[cell] = values[i].datum;
        cells.first[cell] = values[i].first;
        cells.last[cell] = values[i].last;
        cells.count[cell] = values[i].count;
        cells.in_order[cell] = values[i].in_order;
        cells.expression[cell] = values[i].expression;
        cells.bits[cell] = values[i].bits;
        std::copy_n(members.data() + i * cells.words, cells.words, cells.members + cell * cells.words);
    }
    return {};
}

}  // namespace allfold::proof
