// How the bytes of each type become vectors to calculate with, and back; for the instruction set ALLFOLD_ISA, with
// vectors of GCC's own, which it turns into the instructions of each processor. Part of impl.hpp.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/kernels.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ALLFOLD_INLINED __attribute__((always_inline))
#define ALLFOLD_INLINE ALLFOLD_INLINED inline

namespace allfold::ALLFOLD_ISA {
namespace {

// The widest vector, and how much of every source is processed at once: as many vectors as fit the registers.
#if defined(__AVX512F__)
constexpr size_t vector_bytes = 64, block_bytes = 256;
#elif defined(__AVX2__)
constexpr size_t vector_bytes = 32, block_bytes = 128;
#elif defined(__aarch64__)
constexpr size_t vector_bytes = 16, block_bytes = 128;
#else
constexpr size_t vector_bytes = 16, block_bytes = 64;
#endif
constexpr size_t smallest_vector = 16;

template <class Lane, size_t bytes>
struct VectorOf {
    typedef Lane type __attribute__((vector_size(bytes)));
};
template <class Lane, size_t bytes>
using Vector = typename VectorOf<Lane, bytes>::type;
template <size_t bytes>
using Raw = Vector<uint8_t, bytes>;
template <class Vector>
using LaneOf = std::remove_cvref_t<decltype(std::declval<Vector&>()[0])>;

template <class To, class From>
ALLFOLD_INLINE To as(From from) {
    return __builtin_bit_cast(To, from);
}

// ---- memory: a piece shorter than the smallest vector lies in its low end, with zeros above ----

// A vector anywhere in memory, of whatever the memory holds. GCC moves a vector that is stored by memcpy to integer
// registers first on aarch64, which takes three times as long.
template <size_t bytes>
struct AnywhereOf {
    typedef uint8_t type __attribute__((vector_size(bytes), aligned(1), may_alias));
};
template <size_t bytes>
using Anywhere = typename AnywhereOf<bytes>::type;

template <size_t bytes>
using Unsigned =
    std::conditional_t<bytes == 8, uint64_t,
                       std::conditional_t<bytes == 4, uint32_t, std::conditional_t<bytes == 2, uint16_t, uint8_t>>>;

template <size_t bytes>
ALLFOLD_INLINE auto load(const char* from) {
    if constexpr (bytes >= smallest_vector) {
        return static_cast<Raw<bytes>>(*reinterpret_cast<const Anywhere<bytes>*>(from));
    } else {
        Unsigned<bytes> low;
        std::memcpy(&low, from, bytes);
        return as<Raw<smallest_vector>>(Vector<Unsigned<bytes>, smallest_vector>{low});
    }
}

template <size_t bytes, class V>
ALLFOLD_INLINE void store(char* to, V vector) {
    if constexpr (bytes >= smallest_vector) {
        *reinterpret_cast<Anywhere<bytes>*>(to) = vector;
    } else {
        const Unsigned<bytes> low = as<Vector<Unsigned<bytes>, smallest_vector>>(vector)[0];
        std::memcpy(to, &low, bytes);
    }
}

// ---- formats: Lane, the smallest thing in memory; width, the vector read at once; read_ahead, how many bytes before
// their use the sources are fetched into the cache (0: the processor does that better by itself) ----

template <class L>
struct Plain {
    using Lane = L;
    static constexpr size_t width = vector_bytes;
    static constexpr size_t read_ahead = 0;
    template <class Raw>
    static ALLFOLD_INLINE auto widen(Raw raw) {
        return as<Vector<Lane, sizeof(Raw)>>(raw);
    }
    template <class V>
    static ALLFOLD_INLINE auto narrow(V value) {
        return as<Raw<sizeof(V)>>(value);
    }
};

struct Truth : Plain<uint8_t> {
    template <class Raw>
    static ALLFOLD_INLINE auto widen(Raw raw) {
        return as<Raw>(raw != 0) & 1;
    }
};

// The conversion takes so many instructions that the processor's look-ahead, limited in instructions, covers too few
// bytes.
constexpr size_t half_read_ahead = 512;

// A vector of 16-bit numbers becomes two of float32.
template <size_t width>
struct Pair {
    Vector<float, width> first, second;
};

// The numbers at even places go to one vector and those at odd places to the other: that takes a shift and a mask.
// Keeping them in order would take shuffles, of which processors execute fewer at a time.
struct BFloat16 {
    using Lane = uint16_t;
    static constexpr size_t width = vector_bytes;
    static constexpr size_t read_ahead = half_read_ahead;
    template <class Raw>
    static ALLFOLD_INLINE auto widen(Raw raw) {
        using Single = Vector<float, sizeof(Raw)>;
        const auto words = as<Vector<uint32_t, sizeof(Raw)>>(raw);
        return Pair<sizeof(Raw)>{as<Single>(words << 16), as<Single>(words & 0xffff0000u)};
    }
    // Rounded at even and odd places at once, in 16-bit lanes: `kept` are the upper halves, `lost` the lower. More than
    // half a place lost rounds up, and so does exactly half if `kept` is odd, which is made to look like a little more.
    // NaN needs no special case: a NaN that came from a bfloat16, or that the processor made, has a zero lower half.
    template <size_t width>
    static ALLFOLD_INLINE Raw<width> narrow(Pair<width> pair) {
        using Halves = Vector<uint16_t, width>;
        const Halves kept = upper_halves(pair);
        const Halves lost = lower_halves(pair) | (kept & 1);
#if defined(__AVX512F__)
        return as<Raw<width>>(lost > 0x8000 ? kept + 1 : kept);  // one addition under a mask
#elif defined(__aarch64__)
        return as<Raw<width>>(kept - as<Halves>(lost > 0x8000));  // true is -1 in a lane
#else
        // There is no comparison of unsigned numbers.
        return as<Raw<width>>(kept - as<Halves>(as<Vector<int16_t, width>>(lost ^ 0x8000) > 0));
#endif
    }
    // For the result of an operation that only chooses among its operands: nothing is lost.
    template <size_t width>
    static ALLFOLD_INLINE Raw<width> narrow_exactly(Pair<width> pair) {
        return as<Raw<width>>(upper_halves(pair));
    }
#if defined(__aarch64__) || (defined(__AVX2__) && !defined(__AVX512F__))
    template <size_t width>
    static ALLFOLD_INLINE auto upper_halves(Pair<width> pair) {
        return interleave<1>(pair, std::make_index_sequence<width / 2>());
    }
    template <size_t width>
    static ALLFOLD_INLINE auto lower_halves(Pair<width> pair) {
        return interleave<0>(pair, std::make_index_sequence<width / 2>());
    }
    template <size_t upper, size_t width, size_t... place>
    static ALLFOLD_INLINE auto interleave(Pair<width> pair, std::index_sequence<place...>) {
        using Halves = Vector<uint16_t, width>;
        return __builtin_shufflevector(as<Halves>(pair.first), as<Halves>(pair.second),
                                       (place % 2 ? width / 2 + place - 1 + upper : place + upper)...);
    }
#else
    // The compiler does not find a good shuffle for the code above.
    template <size_t width>
    static ALLFOLD_INLINE auto upper_halves(Pair<width> pair) {
        using Words = Vector<uint32_t, width>;
        return as<Vector<uint16_t, width>>(as<Words>(pair.first) >> 16 | (as<Words>(pair.second) & 0xffff0000u));
    }
    template <size_t width>
    static ALLFOLD_INLINE auto lower_halves(Pair<width> pair) {
        using Words = Vector<uint32_t, width>;
        return as<Vector<uint16_t, width>>((as<Words>(pair.first) & 0xffffu) | as<Words>(pair.second) << 16);
    }
#endif
};

struct Float16 {
    using Lane = uint16_t;
    static constexpr size_t width = 16;
    static constexpr size_t read_ahead = half_read_ahead;
#if defined(__F16C__)
    // Eight at a time even where vectors are wider: the wider conversion needs an extra shuffle and gains nothing.
    // Built into GCC and Clang under these names; the header that gives them others takes as long as all of this file.
    static ALLFOLD_INLINE Vector<float, 32> widen(Raw<16> raw) {
        return __builtin_ia32_vcvtph2ps256(as<Vector<short, 16>>(raw));
    }
    static ALLFOLD_INLINE Raw<16> narrow(Vector<float, 32> value) {
        constexpr int to_nearest_even = 0;
        return as<Raw<16>>(__builtin_ia32_vcvtps2ph256(value, to_nearest_even));
    }
#elif defined(__aarch64__)
    static ALLFOLD_INLINE Pair<16> widen(Raw<16> raw) {
        const auto halves = as<float16x8_t>(raw);
        return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
    }
    static ALLFOLD_INLINE Raw<16> narrow(Pair<16> pair) {
        return as<Raw<16>>(vcvt_high_f16_f32(vcvt_f16_f32(pair.first), pair.second));
    }
#else
    // Without conversion instructions: even and odd places as above, with explicit bit operations.
    using Single = Vector<float, 16>;
    using Bits = Vector<int32_t, 16>;
    static ALLFOLD_INLINE Pair<16> widen(Raw<16> raw) {
        const auto words = as<Vector<uint32_t, 16>>(raw);
        return {single(as<Bits>(words & 0xffffu)), single(as<Bits>(words >> 16))};
    }
    static ALLFOLD_INLINE Raw<16> narrow(Pair<16> pair) {
        const auto first = as<Vector<uint32_t, 16>>(half(pair.first)),
                   second = as<Vector<uint32_t, 16>>(half(pair.second));
        return as<Raw<16>>(first | second << 16);
    }
    static ALLFOLD_INLINE Single single(Bits half) {
        const Bits sign = as<Bits>(as<Vector<uint32_t, 16>>(half & 0x8000) << 16);
        const Bits magnitude = (half & 0x7fff) << 13;
        const Bits rebias = Bits{} + (112 << 23);
        // A subnormal has no leading one: give it one, and subtract that as a number.
        const Single one = as<Single>(Bits{} + (113 << 23));
        const Bits subnormal = as<Bits>(as<Single>(magnitude + (113 << 23)) - one);
        const Bits normal = magnitude + rebias + (magnitude >= (31 << 23) ? rebias : Bits{});
        return as<Single>(sign | (magnitude < (1 << 23) ? subnormal : normal));
    }
    static ALLFOLD_INLINE Bits half(Single value) {
        const Bits bits = as<Bits>(value);
        const Bits magnitude = bits & 0x7fffffff;
        const Bits sign = as<Bits>(as<Vector<uint32_t, 16>>(bits ^ magnitude) >> 16);
        // One place of a sum with 0.5 is worth the smallest float16, so the addition itself rounds to a subnormal.
        const Bits subnormal = as<Bits>(as<Single>(magnitude) + 0.5f) - 0x3f000000;
        const Bits normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
        const Bits special = magnitude > 0x7f800000 ? Bits{} + 0x7e00 : Bits{} + 0x7c00;
        return sign | (magnitude < 0x38800000 ? subnormal : magnitude >= 0x47800000 ? special : normal);
    }
#endif
};

#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
// Calculated with as it is, where that gives the same bits as float32 would: see fold_two in impl.hpp.
struct NativeFloat16 {
    using Lane = uint16_t;
    static constexpr size_t width = 16;
    static constexpr size_t read_ahead = 0;
    static ALLFOLD_INLINE float16x8_t widen(Raw<16> raw) { return as<float16x8_t>(raw); }
    static ALLFOLD_INLINE Raw<16> narrow(float16x8_t value) { return as<Raw<16>>(value); }
};
#endif

}  // namespace
}  // namespace allfold::ALLFOLD_ISA
