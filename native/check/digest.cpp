#include <cstring>

#include "check/board.hpp"

namespace allfold::check {

namespace {

constexpr uint64_t digest_keys[4] = {0xA0761D6478BD642Full, 0xE7037ED1A0B428DBull, 0x8EBC6AF09C88C6E3ull,
                                     0x589965CC75374CC3ull};

// None of the keys: a lane that has seen no bytes still has its key, and a product with zero would forget the rest.
constexpr uint64_t digest_ends[2] = {0x2D358DCCAA6C78A5ull, 0x8BB84B93962EACC9ull};

inline uint64_t digest_product(uint64_t left, uint64_t right) {
    const auto product = static_cast<unsigned __int128>(left) * right;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t digest_word(const char* at) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    return word;
}

}  // namespace

uint64_t digest(const void* bytes, size_t count, uint64_t seed) {
    const char* at = static_cast<const char*>(bytes);
    // Another key than that of the lane's words: with the same one, the first two words could change places.
    uint64_t lanes[4];
    for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = seed ^ digest_keys[(lane + 1) % 4];
    size_t left = count;
    // Four chains, because a product takes as long as four of them can be begun.
    for (; left >= 64; left -= 64, at += 64)
        for (size_t lane = 0; lane < 4; ++lane)
            lanes[lane] = digest_product(digest_word(at + 16 * lane) ^ digest_keys[lane],
                                         digest_word(at + 16 * lane + 8) ^ lanes[lane]);
    char rest[64] = {};
    if (left) std::memcpy(rest, at, left);
    for (size_t lane = 0; lane * 16 < left; ++lane)
        lanes[lane] = digest_product(digest_word(rest + 16 * lane) ^ digest_keys[lane],
                                     digest_word(rest + 16 * lane + 8) ^ lanes[lane]);
    uint64_t all = static_cast<uint64_t>(count) ^ seed;
    for (uint64_t lane : lanes) all = digest_product(all ^ digest_ends[0], lane ^ digest_ends[1]);
    return all;
}

}  // namespace allfold::check
