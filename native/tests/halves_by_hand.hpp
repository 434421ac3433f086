// Folds of 16-bit floats as one would write them by hand, for one type, one operation and a known number of arrays,
// with the instructions of the machine that this file is compiled for: NEON, AVX2 with F16C, or AVX-512. What the
// kernels are compared with (kernels_bench.cpp). Sums are taken in float32 and rounded once, to nearest, ties to even;
// NaN is left out of account.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX2__) && defined(__F16C__)
// GCC 12's own header triggers this warning (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace by_hand {

enum class Half { bfloat16, float16 };

#if defined(__aarch64__)
constexpr size_t halves_at_once = 8;

#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
// float16 as it is: the greatest of any number, or the sum of two, which is rounded once either way.
template <bool greatest>
inline uint16x8_t native(uint16x8_t one, uint16x8_t other) {
    const float16x8_t a = vreinterpretq_f16_u16(one), b = vreinterpretq_f16_u16(other);
    return vreinterpretq_u16_f16(greatest ? vmaxq_f16(a, b) : vaddq_f16(a, b));
}
#endif

struct Wide {
    float32x4_t first, second;
};

template <Half half>
inline Wide widen(const uint16_t* from) {
    const uint16x8_t halves = vld1q_u16(from);
    if constexpr (half == Half::float16) {
        const float16x8_t numbers = vreinterpretq_f16_u16(halves);
        return {vcvt_f32_f16(vget_low_f16(numbers)), vcvt_high_f32_f16(numbers)};
    } else {  // even and odd places: a shift and a mask cost less than two lengthening shifts
        const uint32x4_t words = vreinterpretq_u32_u16(halves);
        return {vreinterpretq_f32_u32(vshlq_n_u32(words, 16)),
                vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000)))};
    }
}

inline Wide plus(Wide a, Wide b) { return {vaddq_f32(a.first, b.first), vaddq_f32(a.second, b.second)}; }
inline Wide greater(Wide a, Wide b) { return {vmaxq_f32(a.first, b.first), vmaxq_f32(a.second, b.second)}; }

template <Half half, bool rounds>
inline void narrow(uint16_t* to, Wide value) {
    if constexpr (half == Half::float16) {
        vst1q_u16(to, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(value.first), value.second)));
    } else {
        const uint16x8_t even = vreinterpretq_u16_f32(value.first), odd = vreinterpretq_u16_f32(value.second);
        const uint16x8_t kept = vtrn2q_u16(even, odd);
        if constexpr (rounds) {  // up if more than half a place is lost, or half of one and what is kept is odd
            const uint16x8_t lost = vorrq_u16(vtrn1q_u16(even, odd), vandq_u16(kept, vdupq_n_u16(1)));
            vst1q_u16(to, vsubq_u16(kept, vcgtq_u16(lost, vdupq_n_u16(0x8000))));
        } else {
            vst1q_u16(to, kept);
        }
    }
}
#elif defined(__AVX512F__) && defined(__AVX512BW__)
constexpr size_t halves_at_once = 16;
using Wide = __m512;

template <Half half>
inline Wide widen(const uint16_t* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    if constexpr (half == Half::float16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline Wide plus(Wide a, Wide b) { return _mm512_add_ps(a, b); }
inline Wide greater(Wide a, Wide b) { return _mm512_max_ps(a, b); }

template <Half half, bool rounds>
inline void narrow(uint16_t* to, Wide value) {
    __m256i halves;
    if constexpr (half == Half::float16) {
        halves = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    } else {
        __m512i bits = _mm512_castps_si512(value);
        if constexpr (rounds) {
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
            bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        }
        halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}
#elif defined(__AVX2__) && defined(__F16C__)
constexpr size_t halves_at_once = 8;
using Wide = __m256;

template <Half half>
inline Wide widen(const uint16_t* from) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    if constexpr (half == Half::float16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

inline Wide plus(Wide a, Wide b) { return _mm256_add_ps(a, b); }
inline Wide greater(Wide a, Wide b) { return _mm256_max_ps(a, b); }

template <Half half, bool rounds>
inline void narrow(uint16_t* to, Wide value) {
    __m128i halves;
    if constexpr (half == Half::float16) {
        halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    } else {
        __m256i bits = _mm256_castps_si256(value);
        if constexpr (rounds) {
            const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
            bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        }
        bits = _mm256_srli_epi32(bits, 16);
        halves = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}
#else
#define ALLFOLD_NO_HALVES_BY_HAND
#endif

#if defined(ALLFOLD_NO_HALVES_BY_HAND)
template <Half half, size_t sources, bool greatest>
constexpr void (*fold)(const void* const*, void* const*, size_t) = nullptr;
#else
template <Half half, size_t sources, bool greatest>
void fold(const void* const* from, void* const* to, size_t bytes) {
    const uint16_t* source[sources];
    for (size_t s = 0; s < sources; ++s) source[s] = static_cast<const uint16_t*>(from[s]);
    auto* destination = static_cast<uint16_t*>(to[0]);
    constexpr size_t unrolled = 4;
    for (size_t offset = 0; offset < bytes / 2; offset += unrolled * halves_at_once)
#pragma GCC unroll 4
        for (size_t part = 0; part < unrolled; ++part) {
            const size_t at = offset + part * halves_at_once;
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
            if constexpr (half == Half::float16 && (sources == 2 || greatest)) {
                uint16x8_t value = vld1q_u16(source[0] + at);
#pragma GCC unroll 4
                for (size_t s = 1; s < sources; ++s) value = native<greatest>(value, vld1q_u16(source[s] + at));
                vst1q_u16(destination + at, value);
                continue;
            }
#endif
            Wide value = widen<half>(source[0] + at);
#pragma GCC unroll 4
            for (size_t s = 1; s < sources; ++s) {
                const Wide other = widen<half>(source[s] + at);
                value = greatest ? greater(value, other) : plus(value, other);
            }
            narrow<half, !greatest>(destination + at, value);
        }
}
#endif

}  // namespace by_hand
