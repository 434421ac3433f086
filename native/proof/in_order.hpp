// Sorting by whole numbers that are not negative, without comparing them.
#pragma once

#include <algorithm>
#include <array>
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

// The positions of the keys in their order; equal ones keep theirs. Each key takes its position along in its low bits,
// and digit after digit is brought into order, the lowest first.
inline std::vector<int64_t> order(const int64_t* key, int64_t count) {
    constexpr int digit = 11;
    constexpr uint64_t mask = (uint64_t{1} << digit) - 1;
    uint64_t highest = 0;
    for (int64_t i = 0; i < count; ++i) highest |= static_cast<uint64_t>(key[i]);
    const int below = std::bit_width(static_cast<uint64_t>(count)), bits = below + std::bit_width(highest);
    std::vector<int64_t> positions(count);
    if (bits > 64) {
        std::iota(positions.begin(), positions.end(), 0);
        std::stable_sort(positions.begin(), positions.end(), [=](int64_t a, int64_t b) { return key[a] < key[b]; });
        return positions;
    }
    std::vector<uint64_t> items(count), sorted(count);
    for (int64_t i = 0; i < count; ++i) items[i] = static_cast<uint64_t>(key[i]) << below | static_cast<uint64_t>(i);
    for (int shift = below; shift < bits; shift += digit) {
        std::array<int64_t, mask + 2> at{};
        for (uint64_t item : items) ++at[(item >> shift & mask) + 1];
        std::partial_sum(at.begin(), at.end(), at.begin());
        for (uint64_t item : items) sorted[at[item >> shift & mask]++] = item;
        items.swap(sorted);
    }
    for (int64_t i = 0; i < count; ++i) positions[i] = static_cast<int64_t>(items[i] & ((uint64_t{1} << below) - 1));
    return positions;
}

}  // namespace allfold::proof
