#include "proof/in_order.hpp"

#include <bit>

namespace allfold::proof {

namespace {

template <typename Item>
std::vector<int64_t> order_as(const int64_t* key, int64_t count, int below, int bits) {
    std::vector<Item> items(count);
    for (int64_t i = 0; i < count; ++i) items[i] = static_cast<Item>(key[i]) << below | static_cast<Item>(i);
    sort_by_bits(items, below, bits);
    std::vector<int64_t> positions(count);
    for (int64_t i = 0; i < count; ++i) positions[i] = static_cast<int64_t>(items[i] & ((Item{1} << below) - 1));
    return positions;
}

}  // namespace

std::vector<int64_t> order(const int64_t* key, int64_t count) {
    uint64_t highest = 0;
    for (int64_t i = 0; i < count; ++i) highest |= static_cast<uint64_t>(key[i]);
    const auto below = static_cast<int>(std::bit_width(static_cast<uint64_t>(count)));
    const int bits = below + static_cast<int>(std::bit_width(highest));
    return bits <= 64 ? order_as<uint64_t>(key, count, below, bits) : order_as<Wide>(key, count, below, bits);
}

}  // namespace allfold::proof
