#include "proof/step.hpp"

#include <algorithm>
#include <utility>

#include "proof/in_order.hpp"

namespace allfold::proof {

namespace {

// `source[i]` is reduced into `target[i]` by `move[i]`.
struct Reductions {
    std::vector<int64_t> source, target, move;

    void add(int64_t from, int64_t into, int64_t by) {
        source.push_back(from);
        target.push_back(into);
        move.push_back(by);
    }
};

// Ends a fold of the operands since the last one.
void end_fold(StepFolds& folds, int64_t target, int64_t move) {
    folds.target.push_back(target);
    folds.starts.push_back(static_cast<int64_t>(folds.operands.size()));
    folds.move.push_back(move);
}

void fold_reductions(StepFolds& folds, const Holding& holding, Reductions reductions) {
    std::vector<int64_t> own = reductions.target;
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    for (int64_t cell : own) {
        if (holding.datum[cell] < 0) {
            folds.wrong = Senseless::reduces_into_nothing;
            folds.at = cell;
            return;
        }
        reductions.add(cell, cell, -1);
    }
    const size_t size = reductions.source.size();
    std::vector<int64_t> key(size);
    for (size_t i = 0; i < size; ++i)
        key[i] = reductions.target[i] * holding.ranks + holding.first[reductions.source[i]];
    const std::vector<int64_t> ordered = order(key.data(), static_cast<int64_t>(size));
    for (size_t at = 0; at < size;) {
        const int64_t target = reductions.target[ordered[at]];
        int64_t move = -1;
        for (; at < size && reductions.target[ordered[at]] == target; ++at) {
            folds.operands.push_back(reductions.source[ordered[at]]);
            move = std::max(move, reductions.move[ordered[at]]);
        }
        end_fold(folds, target, move);
    }
}

}  // namespace

StepFolds folds_of(const Moves& moves, const Holding& holding, int64_t number) {
    const int64_t copied = number, reduced = number + 1;
    StepFolds folds;
    folds.target.reserve(moves.size);
    folds.starts.reserve(moves.size + 1);
    folds.operands.reserve(2 * moves.size);
    folds.move.reserve(moves.size);
    folds.starts.push_back(0);
    Reductions reductions;
    bool two_writes = false;
    for (int64_t i = 0; i < moves.size; ++i) {
        const int64_t source = moves.source[i] * holding.width + moves.chunk[i];
        const int64_t target = moves.destination[i] * holding.width + moves.into[i];
        const int32_t datum = holding.datum[source];
        if (datum < 0) return {.wrong = Senseless::takes_nothing, .at = i};
        const bool reduces = moves.reduces[i] != 0;
        const int64_t before = std::exchange(holding.written[target], reduces ? reduced : copied);
        two_writes |= before == copied || (before == reduced && !reduces);
        if (reduces) {
            reductions.add(source, target, i);
        } else {
            folds.operands.push_back(source);
            end_fold(folds, target, i);
            folds.elsewhere |= moves.into[i] < holding.chunks && (datum - moves.into[i]) % holding.part != 0;
        }
    }
    if (two_writes) return {.wrong = Senseless::two_writes};
    if (!reductions.source.empty()) fold_reductions(folds, holding, std::move(reductions));
    return folds;
}

}  // namespace allfold::proof
