// The fold kernels, written once. Each <isa>.cpp defines ALLFOLD_ISA, includes this file, and is compiled with the
// flags of its instruction set and with -ffp-contract=off (a fused multiply-add would change the bits).
//
// A kernel is a format (how the bytes of a type become vectors to calculate with, and back) and an operation on such
// vectors. The loop takes a block of bytes through all sources while its accumulators stay in registers, then writes it
// to all destinations; whatever is shorter than a block goes through the same code in pieces of half the size, a
// quarter, … down to one element. Operations that are seldom used share more code: see `care`.
//
// Nothing here may be shared between the instruction sets, or the linker would keep one copy and run, for example,
// AVX-512 code on a processor without it. So everything is in unnamed namespaces, and no library function is called
// that is a template or inline.
#pragma once

#include "kernels/formats.hpp"

namespace allfold::ALLFOLD_ISA {

void copy(const void* source, void* const* destinations, size_t destination_count, size_t bytes, bool from_memory);

namespace {

// ---- operations ----

struct Sum {
    template <class V>
    static ALLFOLD_INLINE V combine(V a, V b) {
        return a + b;
    }
};

// Also the floating-point sum: it is the average with a divisor of 1.
struct Average : Sum {};

struct Product {
    template <class V>
    static ALLFOLD_INLINE V combine(V a, V b) {
        return a * b;
    }
};

struct And {
    template <class V>
    static ALLFOLD_INLINE V combine(V a, V b) {
        return a & b;
    }
};

struct Or {
    template <class V>
    static ALLFOLD_INLINE V combine(V a, V b) {
        return a | b;
    }
};

struct Xor {
    template <class V>
    static ALLFOLD_INLINE V combine(V a, V b) {
        return a ^ b;
    }
};

#if defined(__aarch64__)
// These instructions do exactly what the definition says.
ALLFOLD_INLINE Vector<float, 16> floating_minimum(Vector<float, 16> a, Vector<float, 16> b) { return vminq_f32(a, b); }
ALLFOLD_INLINE Vector<double, 16> floating_minimum(Vector<double, 16> a, Vector<double, 16> b) {
    return vminq_f64(a, b);
}
ALLFOLD_INLINE Vector<float, 16> floating_maximum(Vector<float, 16> a, Vector<float, 16> b) { return vmaxq_f32(a, b); }
ALLFOLD_INLINE Vector<double, 16> floating_maximum(Vector<double, 16> a, Vector<double, 16> b) {
    return vmaxq_f64(a, b);
}
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
ALLFOLD_INLINE float16x8_t floating_minimum(float16x8_t a, float16x8_t b) { return vminq_f16(a, b); }
ALLFOLD_INLINE float16x8_t floating_maximum(float16x8_t a, float16x8_t b) { return vmaxq_f16(a, b); }
#endif
#else
// With two zeros or a NaN the two ways to compare pick different operands, and the union of their bits is what is
// wanted: the negative zero, or a NaN (all exponent bits and some other).
template <class V>
ALLFOLD_INLINE V floating_minimum(V a, V b) {
    const V forward = a < b ? a : b;
    const V backward = b < a ? b : a;
    return as<V>(as<Raw<sizeof(V)>>(forward) | as<Raw<sizeof(V)>>(backward));
}

// No minus sign here: the compiler would simplify comparisons of negated numbers, and not use the instruction for them.
template <class V>
ALLFOLD_INLINE V negative(V value) {
    using Bits = Unsigned<sizeof(LaneOf<V>)>;
    return as<V>(as<Vector<Bits, sizeof(V)>>(value) ^ Bits{1} << (8 * sizeof(Bits) - 1));
}

template <class V>
ALLFOLD_INLINE V floating_maximum(V a, V b) {
    return negative(floating_minimum(negative(a), negative(b)));
}
#endif

template <class V>
constexpr bool is_floating = std::is_floating_point_v<LaneOf<V>>;
#if defined(__aarch64__)
template <>
constexpr bool is_floating<float16x8_t> = true;
#endif

struct Minimum {
    template <class V>
    static ALLFOLD_INLINE V combine(V a, V b) {
        if constexpr (is_floating<V>)
            return floating_minimum(a, b);
        else
            return a < b ? a : b;
    }
};

struct Maximum {
    template <class V>
    static ALLFOLD_INLINE V combine(V a, V b) {
        if constexpr (is_floating<V>)
            return floating_maximum(a, b);
        else
            return a > b ? a : b;
    }
};

// Real and imaginary parts alternate in the lanes.
struct ComplexProduct {
    template <class V>
    static ALLFOLD_INLINE V combine(V a, V b) {
        return combine(a, b, std::make_index_sequence<sizeof(V) / sizeof(LaneOf<V>)>());
    }
    template <class V, size_t... lane>
    static ALLFOLD_INLINE V combine(V a, V b, std::index_sequence<lane...>) {
        const V real = __builtin_shufflevector(b, b, (lane & ~size_t{1})...);
        const V imaginary = __builtin_shufflevector(b, b, (lane | 1)...);
        const V exchanged = __builtin_shufflevector(a, a, (lane ^ 1)...);
        const V sign = {(lane & 1 ? LaneOf<V>{1} : LaneOf<V>{-1})...};
        return a * real + exchanged * imaginary * sign;
    }
};

template <class Operation, class V>
ALLFOLD_INLINE V combine(V a, V b) {
    return Operation::combine(a, b);
}
template <class Operation, size_t width>
ALLFOLD_INLINE Pair<width> combine(Pair<width> a, Pair<width> b) {
    return {Operation::combine(a.first, b.first), Operation::combine(a.second, b.second)};
}

template <class V>
ALLFOLD_INLINE V divide(V value, uint32_t divisor) {
    const auto by = static_cast<LaneOf<V>>(divisor);
    // The reciprocal of a power of two is exact, so the product has the bits of the quotient and costs less.
    return (divisor & (divisor - 1)) == 0 ? value * (1 / by) : value / by;
}
template <size_t width>
ALLFOLD_INLINE Pair<width> divide(Pair<width> value, uint32_t divisor) {
    return {divide(value.first, divisor), divide(value.second, divisor)};
}

// Whether an operation only chooses among its operands.
template <class Operation>
constexpr bool chooses = std::is_same_v<Operation, Minimum> || std::is_same_v<Operation, Maximum>;

template <class Format, class Operation, class V>
ALLFOLD_INLINE auto narrow(V value) {
    if constexpr (chooses<Operation> && requires { Format::narrow_exactly(value); })
        return Format::narrow_exactly(value);
    else
        return Format::narrow(value);
}

// ---- the loop ----

// How much code an operation on a type gets. If all of them had everything, compiling the kernels would take most of
// the time of an installation.
enum class Care {
    pairs,  // two arrays at a time: see fold_pairs
    loop,   // one loop for any number of sources and destinations
    some,   // and one each for two and four sources to one destination
    much    // and for the other usual numbers
};
template <class Format, class Operation>
constexpr Care care() {
    using Lane = typename Format::Lane;
    constexpr bool is_half = std::is_same_v<Lane, uint16_t> && !std::is_same_v<Format, Plain<Lane>>;
#if defined(__x86_64__) && !defined(__AVX2__)
    constexpr Care most = Care::loop;  // hardly a processor in use has no AVX2
#else
    constexpr Care most = Care::much;
#endif
    Care wanted = Care::pairs;
    if (std::is_base_of_v<Sum, Operation> && (is_half || sizeof(Lane) >= 4))
        wanted = Care::much;
    else if (chooses<Operation> && (is_half || std::is_floating_point_v<Lane>))
        wanted = Care::some;
    else if (is_half)
        wanted = Care::loop;  // the product must not be rounded between two sources
    else if (std::is_same_v<Format, Plain<uint8_t>> && std::is_same_v<Operation, Or>)
        wanted = Care::some;  // copies too
    return wanted < most ? wanted : most;
}

struct Call {
    const char* const* sources;
    size_t source_count;
    char* const* destinations;
    size_t destination_count;
    size_t bytes;
    uint32_t divisor;
    const char* from_memory;  // the source that lies beyond the caches, or null
};

// The hardware prefetcher detects sequential reads, but stops at the end of every page and starts again in the next
// one. So a source in memory is prefetched a page ahead, into the L2 cache, which can have more misses in flight than
// L1. A copy from memory reads four streams side by side, which is faster still. A fold has many sources already, and
// four streams of each would be too many for the prefetcher to track.
constexpr size_t page = 4096, rows_in_memory = 4;
constexpr int second_level = 2;  // as __builtin_prefetch counts

// How many vectors of results are held at once if there are more than two sources. With more, GCC loads so far ahead
// that it has to put vectors on the stack.
constexpr size_t most_held = 8;

// Before a loop whose length is known: only when it is unrolled does the compiler keep an array of vectors in
// registers. (A lambda for the body of such a loop, in each of hundreds of kernels, made compiling them take four times
// as long.)
#if defined(__clang__)
#define ALLFOLD_UNROLL _Pragma("unroll")
#else
#define ALLFOLD_UNROLL _Pragma("GCC unroll 16")
#endif

// Keeps a pointer in a register. Otherwise GCC adds the offset of a block in every access, which keeps it from using
// the instructions that load and store two vectors at once.
template <class Pointer>
ALLFOLD_INLINE Pointer in_register(Pointer pointer) {
    asm("" : "+r"(pointer));
    return pointer;
}

// `bytes` of memory as vectors to calculate with.
template <class Format, size_t bytes>
struct Block {
    static constexpr size_t width = bytes < smallest_vector ? smallest_vector
                                    : bytes < Format::width ? bytes
                                                            : Format::width;
    static constexpr size_t step = bytes < width ? bytes : width;
    static constexpr size_t registers = bytes / step;
    using Value = decltype(Format::widen(Raw<width>{}));
    Value value[registers];

    ALLFOLD_INLINE void read(const char* from) {
        const char* source = in_register(from);
        ALLFOLD_UNROLL for (size_t i = 0; i < registers; ++i) value[i] = Format::widen(load<step>(source + i * step));
    }
    template <class Operation>
    ALLFOLD_INLINE void add(const char* from) {
        const char* source = in_register(from);
        ALLFOLD_UNROLL for (size_t i = 0; i < registers; ++i) {
            value[i] = combine<Operation>(value[i], Format::widen(load<step>(source + i * step)));
        }
    }
};

template <size_t step, size_t registers, class V>
ALLFOLD_INLINE void write(const V (&result)[registers], char* to) {
    char* destination = in_register(to);
    ALLFOLD_UNROLL for (size_t i = 0; i < registers; ++i) store<step>(destination + i * step, result[i]);
}

template <size_t bytes>
ALLFOLD_INLINE void prefetch(const char* from) {
    ALLFOLD_UNROLL for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(from + line);
}

// One block of every source to every destination, `at` bytes behind their pointers in `from` and `to`, which is
// `offset` bytes behind the beginning. `known_sources` and `known_destinations` are the numbers that the code is
// specialised for, or 0 for any number.
template <class Format, class Operation, size_t bytes, size_t known_sources, size_t known_destinations>
ALLFOLD_INLINE void fold_block(const Call& call, const char* const* from, char* const* to, size_t at, size_t offset) {
    if constexpr (bytes == block_bytes && Format::read_ahead > 0) {
        if constexpr (known_sources > 0) {
            ALLFOLD_UNROLL for (size_t s = 0; s < known_sources; ++s)
                prefetch<bytes>(from[s] + at + Format::read_ahead);
        } else {
            for (size_t s = 0; s < call.source_count; ++s) prefetch<bytes>(from[s] + at + Format::read_ahead);
        }
    }
    if constexpr (bytes == block_bytes && known_sources != 1) {
        if (call.from_memory) {
            asm volatile("");  // GCC would prefetch from nowhere if there is no such source, which costs a page walk
            ALLFOLD_UNROLL for (size_t line = 0; line < bytes; line += 64)
                __builtin_prefetch(call.from_memory + offset + line + page, 0, second_level);
        }
    }

    using Held = Block<Format, bytes>;
    if constexpr (known_sources > 2 && Held::registers * sizeof(typename Held::Value) > most_held * Held::width) {
        constexpr size_t half = bytes / 2;
        fold_block<Format, Operation, half, known_sources, known_destinations>(call, from, to, at, offset);
        fold_block<Format, Operation, half, known_sources, known_destinations>(call, from, to, at + half,
                                                                               offset + half);
        return;
    }
    Held held;
    held.read(from[0] + at);
    if constexpr (known_sources > 0) {
        ALLFOLD_UNROLL for (size_t s = 1; s < known_sources; ++s) held.template add<Operation>(from[s] + at);
    } else if (call.source_count > 1) {
        held.template add<Operation>(from[1] + at);  // outside the loop: most folds have two sources
        for (size_t s = 2; s < call.source_count; ++s) held.template add<Operation>(from[s] + at);
    }
    if constexpr (std::is_same_v<Operation, Average>) {
        if (call.divisor > 1) {
            ALLFOLD_UNROLL for (size_t i = 0; i < Held::registers; ++i) held.value[i] =
                divide(held.value[i], call.divisor);
        }
    }
    Raw<Held::width> result[Held::registers];
    ALLFOLD_UNROLL for (size_t i = 0; i < Held::registers; ++i) result[i] = narrow<Format, Operation>(held.value[i]);
    if constexpr (known_destinations > 0) {
        ALLFOLD_UNROLL for (size_t d = 0; d < known_destinations; ++d) write<Held::step>(result, to[d] + at);
    } else {
        write<Held::step>(result, to[0] + at);
        for (size_t d = 1; d < call.destination_count; ++d) write<Held::step>(result, to[d] + at);
    }
}

// `given` is passed by value: what is stored could otherwise change it, and it would be read again for every block.
template <class Format, class Operation, size_t known_sources>
size_t fold_blocks(const Call& given, size_t offset) {
    const Call call = given;
    for (; call.bytes - offset >= block_bytes; offset += block_bytes)
        fold_block<Format, Operation, block_bytes, known_sources, 0>(call, call.sources, call.destinations, offset,
                                                                     offset);
    return offset;
}

// The same for numbers of sources and destinations that are all known: all pointers stay in registers (GCC would
// calculate each of them from one offset, block by block).
template <class Format, class Operation, size_t known_sources, size_t known_destinations>
size_t fold_known(const Call& given) {
    const Call call = given;
    const char* from[known_sources];
    char* to[known_destinations];
    ALLFOLD_UNROLL for (size_t s = 0; s < known_sources; ++s) from[s] = call.sources[s];
    ALLFOLD_UNROLL for (size_t d = 0; d < known_destinations; ++d) to[d] = call.destinations[d];
    size_t offset = 0;
    for (; call.bytes - offset >= block_bytes; offset += block_bytes) {
        fold_block<Format, Operation, block_bytes, known_sources, known_destinations>(call, from, to, 0, offset);
        ALLFOLD_UNROLL for (size_t s = 0; s < known_sources; ++s) from[s] = in_register(from[s] + block_bytes);
        ALLFOLD_UNROLL for (size_t d = 0; d < known_destinations; ++d) to[d] = in_register(to[d] + block_bytes);
    }
    return offset;
}

// Less than a block, from `offset` on: in pieces of half a block, a quarter, … down to one element.
template <class Format, class Operation, size_t piece = block_bytes / 2>
ALLFOLD_INLINE void fold_pieces(const Call& call, size_t offset) {
    if (call.bytes - offset >= piece) {
        fold_block<Format, Operation, piece, 0, 0>(call, call.sources, call.destinations, offset, offset);
        offset += piece;
    }
    if constexpr (piece > sizeof(typename Format::Lane)) fold_pieces<Format, Operation, piece / 2>(call, offset);
}

template <class Format, class Operation>
[[gnu::noinline]] void fold_rest(const Call& call, size_t offset) {
    if constexpr (care<Format, Operation>() > Care::loop) return fold_pieces<Format, Operation>(call, offset);
    constexpr size_t element = sizeof(typename Format::Lane);
    for (; call.bytes - offset >= smallest_vector; offset += smallest_vector)
        fold_block<Format, Operation, smallest_vector, 0, 0>(call, call.sources, call.destinations, offset, offset);
    for (; offset < call.bytes; offset += element)
        fold_block<Format, Operation, element, 0, 0>(call, call.sources, call.destinations, offset, offset);
}

template <class Format, class Operation>
void fold_bytes(const Call& call) {
    constexpr Care cares = care<Format, Operation>();
    const size_t from = call.source_count, to = call.destination_count;
    size_t offset = 0;
    if (call.bytes >= block_bytes) {
        offset = [&] {
            if constexpr (cares >= Care::some) {
                if (from == 2 && to == 1) return fold_known<Format, Operation, 2, 1>(call);
                if (from == 4 && to == 1) return fold_known<Format, Operation, 4, 1>(call);
            }
            if constexpr (cares >= Care::much) {
                if (from == 2 && to == 2) return fold_known<Format, Operation, 2, 2>(call);
                if (from == 2) return fold_blocks<Format, Operation, 2>(call, 0);
                if (from == 4 && to == 4) return fold_known<Format, Operation, 4, 4>(call);
                if (from == 3) return fold_blocks<Format, Operation, 3>(call, 0);
                if (from == 4) return fold_blocks<Format, Operation, 4>(call, 0);
            }
            return fold_blocks<Format, Operation, 0>(call, 0);
        }();
    }
    if (offset < call.bytes) fold_rest<Format, Operation>(call, offset);
}

// ---- two arrays at a time ----

// `to` may be one of the sources.
using Combine = void (*)(char* to, const char* one, const char* other, size_t bytes);

template <class Format, class Operation, size_t piece>
ALLFOLD_INLINE size_t combine_pieces(char* to, const char* one, const char* other, size_t bytes, size_t at) {
    for (; bytes - at >= piece; at += piece) {
        const auto value =
            combine<Operation>(Format::widen(load<piece>(one + at)), Format::widen(load<piece>(other + at)));
        store<piece>(to + at, Format::narrow(value));
    }
    return at;
}

template <class Format, class Operation, size_t element>
void combine_arrays(char* to, const char* one, const char* other, size_t bytes) {
    size_t at = combine_pieces<Format, Operation, vector_bytes>(to, one, other, bytes, 0);
    if constexpr (vector_bytes > smallest_vector)
        at = combine_pieces<Format, Operation, smallest_vector>(to, one, other, bytes, at);
    if constexpr (element < smallest_vector) combine_pieces<Format, Operation, element>(to, one, other, bytes, at);
}

// What is folded so far stays in the first-level cache until the last source goes with it to the destinations.
void fold_pairs(Combine combine, const Call& call) {
    constexpr size_t most = 4096;
    alignas(vector_bytes) char held[most];
    for (size_t offset = 0; offset < call.bytes; offset += most) {
        const size_t bytes = call.bytes - offset < most ? call.bytes - offset : most;
        const char* folded = call.sources[0] + offset;
        for (size_t s = 1; s < call.source_count; ++s) {
            char* to = s + 1 < call.source_count ? held : call.destinations[0] + offset;
            combine(to, folded, call.sources[s] + offset, bytes);
            folded = to;
        }
        for (size_t d = 1; d < call.destination_count; ++d) std::memcpy(call.destinations[d] + offset, folded, bytes);
    }
}

void copy_rows(const Call& call) {
    using Bytes = Plain<uint8_t>;
    const size_t row = call.bytes / rows_in_memory / block_bytes * block_bytes;
    for (size_t offset = 0; offset < row; offset += block_bytes)
        for (size_t start = 0; start < rows_in_memory * row; start += row)
            fold_block<Bytes, Or, block_bytes, 1, 0>(call, call.sources, call.destinations, start + offset,
                                                     start + offset);
    const size_t offset = fold_blocks<Bytes, Or, 1>(call, rows_in_memory * row);
    if (offset < call.bytes) fold_rest<Bytes, Or>(call, offset);
}

template <class Format, class Operation, size_t element_size>
void fold(const void* const* sources, size_t source_count, void* const* destinations, size_t destination_count,
          size_t elements, uint32_t divisor, const void* from_memory) {
    if (source_count == 1 && divisor <= 1)
        return copy(sources[0], destinations, destination_count, elements * element_size, from_memory != nullptr);
    const Call call = {reinterpret_cast<const char* const*>(sources),
                       source_count,
                       reinterpret_cast<char* const*>(destinations),
                       destination_count,
                       elements * element_size,
                       divisor,
                       static_cast<const char*>(from_memory)};
    if constexpr (care<Format, Operation>() == Care::pairs)
        fold_pairs(combine_arrays<Format, Operation, element_size>, call);
    else
        fold_bytes<Format, Operation>(call);
}

#if defined(ALLFOLD_FLOAT16_ALONE)

// The sum or the product of two float16 that is rounded to float32 and then to float16 has the same bits as one that is
// rounded to float16 at once, because float32 has at least 2 · 11 + 2 bits. With more sources, sums must not be rounded
// in between.
template <class Operation, class Widened>
void fold_two(const void* const* sources, size_t source_count, void* const* destinations, size_t destination_count,
              size_t elements, uint32_t divisor, const void* from_memory) {
    const Fold kernel =
        source_count == 2 && divisor <= 1 ? fold<NativeFloat16, Operation, 2> : fold<Float16, Widened, 2>;
    kernel(sources, source_count, destinations, destination_count, elements, divisor, from_memory);
}

}  // namespace

Fold find_float16(Op op) {
    switch (op) {
        case Op::sum:
        case Op::average: return fold_two<Sum, Average>;
        case Op::product: return fold_two<Product, Product>;
        case Op::min: return fold<NativeFloat16, Minimum, 2>;
        case Op::max: return fold<NativeFloat16, Maximum, 2>;
        default: return nullptr;
    }
}

#else

// ---- which kernel an operation on a type is ----

// Signed and unsigned integers share all operations that wrap around; bitwise operations work with any grouping of the
// bits.
template <class Lane>
Fold find_integer(Op op) {
    using Wrapping = std::make_unsigned_t<Lane>;
    constexpr size_t size = sizeof(Lane);
    switch (op) {
        case Op::sum: return fold<Plain<Wrapping>, Sum, size>;
        case Op::product: return fold<Plain<Wrapping>, Product, size>;
        case Op::min: return fold<Plain<Lane>, Minimum, size>;
        case Op::max: return fold<Plain<Lane>, Maximum, size>;
        case Op::band: return fold<Plain<uint8_t>, And, size>;
        case Op::bor: return fold<Plain<uint8_t>, Or, size>;
        case Op::bxor: return fold<Plain<uint8_t>, Xor, size>;
        default: return nullptr;
    }
}

Fold find_boolean(Op op) {
    switch (op) {
        case Op::sum:
        case Op::max:
        case Op::bor: return fold<Truth, Or, 1>;
        case Op::product:
        case Op::min:
        case Op::band: return fold<Truth, And, 1>;
        case Op::bxor: return fold<Truth, Xor, 1>;
        default: return nullptr;
    }
}

template <class Format>
Fold find_floating(Op op) {
    constexpr size_t size = sizeof(typename Format::Lane);
    switch (op) {
        case Op::sum:
        case Op::average: return fold<Format, Average, size>;
        case Op::product: return fold<Format, Product, size>;
        case Op::min: return fold<Format, Minimum, size>;
        case Op::max: return fold<Format, Maximum, size>;
        default: return nullptr;
    }
}

template <class Lane>
Fold find_complex(Op op) {
    switch (op) {
        case Op::sum:
        case Op::average: return fold<Plain<Lane>, Average, 2 * sizeof(Lane)>;
        case Op::product: return fold<Plain<Lane>, ComplexProduct, 2 * sizeof(Lane)>;
        default: return nullptr;
    }
}

}  // namespace

Fold find_fold(Op op, DType dtype) {
    switch (dtype) {
        case DType::boolean: return find_boolean(op);
        case DType::int8: return find_integer<int8_t>(op);
        case DType::uint8: return find_integer<uint8_t>(op);
        case DType::int16: return find_integer<int16_t>(op);
        case DType::uint16: return find_integer<uint16_t>(op);
        case DType::int32: return find_integer<int32_t>(op);
        case DType::uint32: return find_integer<uint32_t>(op);
        case DType::int64: return find_integer<int64_t>(op);
        case DType::uint64: return find_integer<uint64_t>(op);
        case DType::float16: return find_floating<Float16>(op);
        case DType::bfloat16: return find_floating<BFloat16>(op);
        case DType::float32: return find_floating<Plain<float>>(op);
        case DType::float64: return find_floating<Plain<double>>(op);
        case DType::complex64: return find_complex<float>(op);
        case DType::complex128: return find_complex<double>(op);
    }
    return nullptr;
}

#endif

// For one destination within the caches, memcpy is best. A copy to several destinations, or from memory, is the fold of
// a single source.
void copy(const void* source, void* const* destinations, size_t destination_count, size_t bytes, bool from_memory) {
    if (destination_count == 1 && destinations[0] == source) return;
    if (destination_count == 1 && !from_memory) {
        std::memcpy(destinations[0], source, bytes);
        return;
    }
    const auto* bytes_of_source = static_cast<const char*>(source);
    const Call call = {&bytes_of_source, 1, reinterpret_cast<char* const*>(destinations), destination_count, bytes, 1,
                       nullptr};
    if (from_memory)
        copy_rows(call);
    else
        fold_bytes<Plain<uint8_t>, Or>(call);
}

}  // namespace allfold::ALLFOLD_ISA
