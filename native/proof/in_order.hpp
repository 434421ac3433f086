// Sorting by non-negative whole numbers, without comparisons.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace allfold::proof {

// The items with key k are items[starts[k]] to items[starts[k + 1]], in their own order.
struct Order {
    std::vector<int64_t> starts;
    std::vector<int32_t> items;
};

inline Order in_order(const int64_t* key, int64_t count, int64_t keys) {
    Order order{std::vector<int64_t>(keys + 1), std::vector<int32_t>(count)};
    for (int64_t i = 0; i < count; ++i) ++order.starts[key[i] + 1];
    std::partial_sum(order.starts.begin(), order.starts.end(), order.starts.begin());
    std::vector<int64_t> at(order.starts.begin(), order.starts.end() - 1);
    for (int64_t i = 0; i < count; ++i) order.items[at[key[i]]++] = static_cast<int32_t>(i);
    return order;
}

inline Order in_order(const int64_t* key, int64_t count) {
    return in_order(key, count, count ? *std::max_element(key, key + count) + 1 : 0);
}

__extension__ typedef unsigned __int128 Wide;  // for keys that need more than 64 bits

// Puts items in the order of their bits from `low` to `high`, digit after digit, the lowest first. Where these bits are
// equal, items keep their order.
template <typename Item>
void sort_by_bits(std::vector<Item>& items, int low, int high) {
    const int digit = items.size() < 4096 ? 8 : 11;  // few items: counting the digits must not take longer than moving
    const Item mask = (Item{1} << digit) - 1;
    std::vector<Item> sorted(items.size());
    std::vector<int64_t> at;
    for (int shift = low; shift < high; shift += digit) {
        at.assign(static_cast<size_t>(mask) + 2, 0);
        for (Item item : items) ++at[static_cast<size_t>(item >> shift & mask) + 1];
        std::partial_sum(at.begin(), at.end(), at.begin());
        for (Item item : items) sorted[at[static_cast<size_t>(item >> shift & mask)]++] = item;
        items.swap(sorted);
    }
}

// The positions of the keys in sorted order; equal keys keep their order. Each key has its position in its low bits.
std::vector<int64_t> order(const int64_t* key, int64_t count);

}  // namespace allfold::proof
