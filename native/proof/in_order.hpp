// Sorting by whole numbers that are not negative, without comparing them.
#pragma once

#include <algorithm>
#include <bit>
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

template <typename Item>
std::vector<int64_t> order_as(const int64_t* key, int64_t count, int below, int bits) {
    std::vector<Item> items(count);
    for (int64_t i = 0; i < count; ++i) items[i] = static_cast<Item>(key[i]) << below | static_cast<Item>(i);
    sort_by_bits(items, below, bits);
    std::vector<int64_t> positions(count);
    for (int64_t i = 0; i < count; ++i) positions[i] = static_cast<int64_t>(items[i] & ((Item{1} << below) - 1));
    return positions;
}

// The positions of the keys in their order; equal ones keep theirs. Each key takes its position along in its low bits.
inline std::vector<int64_t> order(const int64_t* key, int64_t count) {
    uint64_t highest = 0;
    for (int64_t i = 0; i < count; ++i) highest |= static_cast<uint64_t>(key[i]);
    const auto below = static_cast<int>(std::bit_width(static_cast<uint64_t>(count)));
    const int bits = below + static_cast<int>(std::bit_width(highest));
    return bits <= 64 ? order_as<uint64_t>(key, count, below, bits) : order_as<Wide>(key, count, below, bits);
}

}  // namespace allfold::proof
