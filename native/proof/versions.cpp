#include "proof/versions.hpp"

namespace allfold::proof {

Versions versions(const AllFolds& folds, const int32_t* datum, const int32_t* count, int64_t initial, int64_t cells) {
    const int64_t total = initial + folds.steps[folds.count];
    Versions made{std::vector<int64_t>(folds.reads), std::vector<int64_t>(total, -1), std::vector<int64_t>(total),
                  std::vector<int64_t>(total), std::vector<int64_t>(cells, -1)};
    for (int64_t version = 0; version < initial; ++version) {
        made.datum[version] = datum[version];
        made.count[version] = count[version];
        made.current[folds.cell[version]] = version;
    }
    int64_t read = 0;
    for (int64_t step = 0; step < folds.count; ++step) {
        const int64_t begin = initial + folds.steps[step], end = initial + folds.steps[step + 1];
        for (int64_t version = begin; version < end; ++version) {  // all of them read what was there before
            const int64_t first = read;
            for (; read < first + folds.sizes[version]; ++read) {
                const int64_t operand = made.current[folds.operands[read]];
                if (operand < 0) {
                    made.whole = false;
                    return made;
                }
                made.operand[read] = operand;
                made.count[version] += made.count[operand];
            }
            made.datum[version] = made.datum[made.operand[first]];  // all operands are parts of the same one
            made.previous[version] = made.current[folds.cell[version]];
        }
        for (int64_t version = begin; version < end; ++version) made.current[folds.cell[version]] = version;
    }
    return made;
}

}  // namespace allfold::proof
