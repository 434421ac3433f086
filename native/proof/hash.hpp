// The hashes of expressions, as in src/allfold/symbolic.py: the proof compares the hashes that both compute.
#pragma once

#include <cstdint>

namespace allfold::proof {

// The hash of a pair; it differs for (a, b) and (b, a), and for ((a, b), c) and (a, (b, c)).
inline uint64_t combined(uint64_t left, uint64_t right) {
    const uint64_t value = (left ^ left >> 29) * 0x9E3779B97F4A7C15u + (right ^ right >> 32) * 0xC2B2AE3D27D4EB4Fu + 1;
    return value ^ value >> 31;
}

// After the end of a fold of several operands: types that are computed in a wider type round there.
inline uint64_t rounded(uint64_t bits) { return combined(bits, 0xD6E8FEB86659FD93u); }

}  // namespace allfold::proof
