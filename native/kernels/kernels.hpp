// Elementwise folds of several arrays into several arrays, at memory speed.
//
// The bits of a result depend only on the sources and their order: not on the instruction set, the alignment, or the
// position of an element in an array. This is what lets ranks and machines agree. A NaN is the exception: it is certain
// that a result is NaN, but of two NaNs the compiler may return either, and not the same one everywhere. The
// definitions, where there is a choice:
//   - Integers wrap around. Truth values are one byte, any nonzero byte is true, results are 0 or 1. For them sum, max
//     and bor are "or"; product, min and band are "and".
//   - min and max give NaN if any operand is NaN, and order -0.0 below 0.0 (IEEE 754-2019 minimum and maximum), so the
//     order of the operands never matters.
//   - float16 and bfloat16 are widened to float32, folded there, and rounded once, to nearest, ties to even.
//   - A complex product is (ac - bd) + (ad + bc)i, each operation rounded, without the special treatment of infinities
//     in C's Annex G.
#pragma once

#include "kernels/dtypes.hpp"

namespace allfold {

// For every element: ((s0 op s1) op s2) …, strictly in this order, divided by `divisor` where that is above 1 (only sum
// and average of floating and complex types look at it), rounded, written to every destination. A single undivided
// source is copied, byte for byte.
//
// At least one source and one destination; no alignment is assumed. A destination may be exactly one of the sources;
// any other overlap is an error of the caller. `from_memory` is a source that is in memory rather than in a cache, or
// null; for a copy it says whether its only source is.
using Fold = void (*)(const void* const* sources, size_t source_count, void* const* destinations,
                      size_t destination_count, size_t elements, uint32_t divisor, const void* from_memory);
using Copy = void (*)(const void* source, void* const* destinations, size_t destination_count, size_t bytes,
                      bool from_memory);

// The instruction sets the kernels are compiled for; baseline is what every processor of the architecture has
// (SSE2 on x86-64, NEON on aarch64); fp16 is NEON with arithmetic on float16.
enum class Isa : uint8_t { baseline, avx2, avx512, fp16 };
inline constexpr Isa all_isas[] = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::fp16};

const char* name_of(Isa isa);
bool available(Isa isa);  // compiled in, and this processor has it
Isa best_isa();

// The kernel of an operation on a type, to be looked up once and called often; null if supports() is false.
Fold find_fold(Op op, DType dtype);
Fold find_fold(Op op, DType dtype, Isa isa);  // only for an available instruction set
Copy find_copy(Isa isa);

void copy(const void* source, void* const* destinations, size_t destination_count, size_t bytes, bool from_memory);

}  // namespace allfold
