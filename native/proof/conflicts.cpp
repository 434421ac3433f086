#include "proof/conflicts.hpp"

#include <algorithm>
#include <bit>

#include "proof/in_order.hpp"

namespace allfold::proof {

namespace {

// An access is sorted as one number: its place, its time, whether it writes, and, below what is compared, its row.
struct Layout {
    int row, time, place;  // bits
    int bits() const { return place + time + 1 + row; }
};

int width(const int64_t* values, int64_t count) {
    uint64_t any = 0;
    for (int64_t i = 0; i < count; ++i) any |= static_cast<uint64_t>(values[i]);
    return static_cast<int>(std::bit_width(any));
}

template <typename Item>
std::vector<Item> sorted(const AccessList& accesses, const int64_t* when, const Layout& layout) {
    std::vector<Item> items(accesses.size);
    for (int64_t i = 0; i < accesses.size; ++i) {
        const Item time =
            static_cast<Item>(accesses.place[i]) << layout.time | static_cast<Item>(when[accesses.row[i]]);
        items[i] = (time << 1 | Item{accesses.writes[i]}) << layout.row | static_cast<Item>(accesses.row[i]);
    }
    sort_by_bits(items, layout.row, layout.bits());
    return items;
}

template <typename Item>
Conflicts found(const AccessList& accesses, const int64_t* when, const std::vector<int32_t>& rank,
                const Layout& layout) {
    const std::vector<Item> items = sorted<Item>(accesses, when, layout);
    const Item mask = (Item{1} << layout.row) - 1;
    auto row = [&](Item item) { return static_cast<int64_t>(item & mask); };
    auto writes = [&](Item item) { return (item >> layout.row & 1) != 0; };
    auto same_place = [&](Item one, Item other) { return (one ^ other) >> (layout.row + 1 + layout.time) == 0; };
    Conflicts pairs;
    auto add = [&](Item earlier, Item later) {
        if (rank[row(earlier)] == rank[row(later)]) return;
        pairs.earlier.push_back(row(earlier));
        pairs.later.push_back(row(later));
    };
    int64_t write = -1;  // the last one
    for (int64_t i = 0; i < accesses.size; ++i) {
        if (write >= 0 && same_place(items[write], items[i])) add(items[write], items[i]);
        if (writes(items[i])) write = i;
    }
    int64_t read = 0;  // the first one since the last write
    for (int64_t i = 0; i < accesses.size; ++i) {
        if (!writes(items[i])) continue;
        for (; read < i; ++read)
            if (same_place(items[read], items[i])) add(items[read], items[i]);
        read = i + 1;
    }
    return pairs;
}

}  // namespace

Conflicts conflicts(const AccessList& accesses, const int64_t* when, const int64_t* starts, int64_t ranks) {
    const int64_t rows = starts[ranks];
    std::vector<int32_t> rank(rows);
    for (int64_t r = 0; r < ranks; ++r) std::fill(rank.begin() + starts[r], rank.begin() + starts[r + 1], r);
    const Layout layout{static_cast<int>(std::bit_width(static_cast<uint64_t>(rows))), width(when, rows),
                        width(accesses.place, accesses.size)};
    return layout.bits() <= 64 ? found<uint64_t>(accesses, when, rank, layout)
                               : found<Wide>(accesses, when, rank, layout);
}

}  // namespace allfold::proof
