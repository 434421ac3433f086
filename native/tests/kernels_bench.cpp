// How fast the kernels are, compared with memcpy and with loops written by hand: gigabytes (read and written) per
// second in the L1 and L2 caches and in memory, and nanoseconds per call for a few elements. Argument: the instruction
// set (default: the best). In brackets: the kernel's speed divided by that of the loop by hand.
#include "kernels/kernels.hpp"

#include "halves_by_hand.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

using namespace allfold;
using by_hand::Half;

namespace {

constexpr size_t most_sources = 16, most_destinations = 4;

double best_seconds(size_t calls, const std::function<void()>& call) {
    double best = 1e30;
    for (int round = 0; round < 7; ++round) {
        const auto start = std::chrono::steady_clock::now();
        for (size_t i = 0; i < calls; ++i) call();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        best = std::min(best, taken.count() / static_cast<double>(calls));
    }
    return best;
}

struct Arrays {
    explicit Arrays(size_t bytes) : bytes(bytes) {
        // Arrays that all begin at the same offset in a page would compete for the same cache lines.
        const size_t stride = bytes + 4096 + 17 * 64;
        memory.reset(static_cast<char*>(
            std::aligned_alloc(4096, ((most_sources + most_destinations) * stride + 4095) / 4096 * 4096)));
        std::memset(memory.get(), 0, (most_sources + most_destinations) * stride);
        for (size_t i = 0; i < most_sources; ++i) sources[i] = memory.get() + i * stride;
        for (size_t i = 0; i < most_destinations; ++i) destinations[i] = memory.get() + (most_sources + i) * stride;
    }
    struct Free {
        void operator()(char* pointer) const { std::free(pointer); }
    };
    size_t bytes;
    std::unique_ptr<char, Free> memory;
    const void* sources[most_sources];
    void* destinations[most_destinations];
};

// Loops as one would write them for one type and a known number of arrays, with the vectors of the machine that this
// file is compiled for (-march=native shows the best it has). Unrolled four times.
using Loop = void (*)(const void* const* sources, void* const* destinations, size_t bytes);

#if defined(__AVX512F__)
constexpr size_t vector_bytes = 64;
#elif defined(__AVX2__)
constexpr size_t vector_bytes = 32;
#else
constexpr size_t vector_bytes = 16;
#endif

template <class Lane>
struct VectorOf {
    typedef Lane type __attribute__((vector_size(vector_bytes), aligned(1), may_alias));
};

template <class Lane, size_t sources, size_t destinations, bool greatest>
void plainly(const void* const* from, void* const* to, size_t bytes) {
    using Vector = typename VectorOf<Lane>::type;
    const char* source[sources];
    char* destination[destinations];
    for (size_t s = 0; s < sources; ++s) source[s] = static_cast<const char*>(from[s]);
    for (size_t d = 0; d < destinations; ++d) destination[d] = static_cast<char*>(to[d]);
    constexpr size_t unrolled = 4;
    for (size_t offset = 0; offset < bytes; offset += unrolled * vector_bytes)
#pragma GCC unroll 4
        for (size_t part = 0; part < unrolled; ++part) {
            const size_t at = offset + part * vector_bytes;
            Vector value = *reinterpret_cast<const Vector*>(source[0] + at);
#pragma GCC unroll 4
            for (size_t s = 1; s < sources; ++s) {
                const Vector other = *reinterpret_cast<const Vector*>(source[s] + at);
                if constexpr (greatest)
                    value = value > other ? value : other;
                else
                    value = value + other;
            }
#pragma GCC unroll 4
            for (size_t d = 0; d < destinations; ++d) *reinterpret_cast<Vector*>(destination[d] + at) = value;
        }
}

struct Case {
    const char* name;
    Op op;
    DType dtype;
    size_t sources;
    size_t destinations = 1;
    uint32_t divisor = 1;
    Loop loop = nullptr;  // the same by hand
};

}  // namespace

int main(int argument_count, char** arguments) {
    Isa isa = best_isa();
    for (const Isa candidate : all_isas)
        if (argument_count > 1 && std::strcmp(arguments[1], name_of(candidate)) == 0) isa = candidate;
    if (!available(isa)) {
        std::fprintf(stderr, "this processor has no %s\n", name_of(isa));
        return 2;
    }
    std::printf("kernels: %s; GB/s read and written; (copied as from beyond the caches)\n", name_of(isa));

    const Case cases[] = {
        {"float32 sum of 2", Op::sum, DType::float32, 2, 1, 1, plainly<float, 2, 1, false>},
        {"float64 sum of 2", Op::sum, DType::float64, 2, 1, 1, plainly<double, 2, 1, false>},
        {"int32 sum of 2", Op::sum, DType::int32, 2, 1, 1, plainly<uint32_t, 2, 1, false>},
        {"int64 sum of 2", Op::sum, DType::int64, 2, 1, 1, plainly<uint64_t, 2, 1, false>},
        {"int32 max of 2", Op::max, DType::int32, 2, 1, 1, plainly<int32_t, 2, 1, true>},
        {"bfloat16 sum of 2", Op::sum, DType::bfloat16, 2, 1, 1, by_hand::fold<Half::bfloat16, 2, false>},
        {"float16 sum of 2", Op::sum, DType::float16, 2, 1, 1, by_hand::fold<Half::float16, 2, false>},
        {"bfloat16 max of 2", Op::max, DType::bfloat16, 2, 1, 1, by_hand::fold<Half::bfloat16, 2, true>},
        {"float16 max of 2", Op::max, DType::float16, 2, 1, 1, by_hand::fold<Half::float16, 2, true>},
        {"float32 sum of 4", Op::sum, DType::float32, 4, 1, 1, plainly<float, 4, 1, false>},
        {"bfloat16 sum of 4", Op::sum, DType::bfloat16, 4, 1, 1, by_hand::fold<Half::bfloat16, 4, false>},
        {"float16 sum of 4", Op::sum, DType::float16, 4, 1, 1, by_hand::fold<Half::float16, 4, false>},
        {"bfloat16 max of 4", Op::max, DType::bfloat16, 4, 1, 1, by_hand::fold<Half::bfloat16, 4, true>},
        {"float16 max of 4", Op::max, DType::float16, 4, 1, 1, by_hand::fold<Half::float16, 4, true>},
        {"float32 sum of 8", Op::sum, DType::float32, 8},
        {"bfloat16 sum of 8", Op::sum, DType::bfloat16, 8},
        {"float16 sum of 8", Op::sum, DType::float16, 8},
        {"float32 sum of 16", Op::sum, DType::float32, 16},
        {"float32 sum of 2 to 2", Op::sum, DType::float32, 2, 2, 1, plainly<float, 2, 2, false>},
        {"float32 sum of 4 to 2", Op::sum, DType::float32, 4, 2},
        {"float32 sum of 4 to 4", Op::sum, DType::float32, 4, 4, 1, plainly<float, 4, 4, false>},
        {"float32 average of 4", Op::average, DType::float32, 4, 1, 4},
        {"float32 average of 3", Op::average, DType::float32, 3, 1, 3},
        {"bfloat16 average of 4", Op::average, DType::bfloat16, 4, 1, 4},
        {"float32 max of 4", Op::max, DType::float32, 4},
        {"int8 product of 4", Op::product, DType::int8, 4},
        {"int64 product of 4", Op::product, DType::int64, 4},
        {"complex64 product of 4", Op::product, DType::complex64, 4},
    };
    const struct {
        const char* name;
        size_t array_bytes;
    } places[] = {{"L1", 4 << 10}, {"L2", 96 << 10}, {"memory", 64 << 20}};

    std::printf("%-24s", "");
    for (const auto& place : places) std::printf("%20s", place.name);
    std::vector<Arrays> arrays;
    for (const auto& place : places) arrays.emplace_back(place.array_bytes);

    std::printf("\n%-24s", "memcpy");
    for (const Arrays& array : arrays) {
        const size_t calls = std::max<size_t>(1, (64 << 20) / array.bytes / 4);
        const double seconds = best_seconds(calls, [&] {
            std::memcpy(array.destinations[0], array.sources[0], array.bytes);
            asm volatile("" ::: "memory");
        });
        std::printf("%11.1f %8s", 2e-9 * static_cast<double>(array.bytes) / seconds, "");
    }
    std::printf("\n%-24s", "copy");
    for (const Arrays& array : arrays) {
        const size_t calls = std::max<size_t>(1, (64 << 20) / array.bytes / 4);
        for (const bool from_memory : {false, true}) {
            const double seconds = best_seconds(
                calls, [&] { find_copy(isa)(array.sources[0], array.destinations, 1, array.bytes, from_memory); });
            std::printf(from_memory ? " (%6.1f)" : "%11.1f", 2e-9 * static_cast<double>(array.bytes) / seconds);
        }
    }
    std::printf("\n");
    for (const Case& test : cases) {
        const Fold fold = find_fold(test.op, test.dtype, isa);
        std::printf("%-24s", test.name);
        for (const Arrays& array : arrays) {
            const size_t calls = std::max<size_t>(1, (64 << 20) / array.bytes / 4);
            const double seconds = best_seconds(calls, [&] {
                fold(array.sources, test.sources, array.destinations, test.destinations,
                     array.bytes / size_of(test.dtype), test.divisor, nullptr);
            });
            const double bytes = static_cast<double>((test.sources + test.destinations) * array.bytes);
            std::printf("%11.1f ", 1e-9 * bytes / seconds);
            if (!test.loop) {
                std::printf("%8s", "");
                continue;
            }
            const double in_hand =
                best_seconds(calls, [&] { test.loop(array.sources, array.destinations, array.bytes); });
            std::printf("[%6.2f]", in_hand / seconds);
        }
        std::printf("\n");
    }

    std::printf("\nnanoseconds a call%6s", "");
    const size_t counts[] = {1, 3, 8, 15, 16, 64, 256};
    for (const size_t elements : counts) std::printf("%6zu", elements);
    std::printf("  elements\n");
    for (const Case& test : cases) {
        const Fold fold = find_fold(test.op, test.dtype, isa);
        std::printf("%-24s", test.name);
        for (const size_t elements : counts) {
            const double seconds = best_seconds(100000, [&] {
                fold(arrays[0].sources, test.sources, arrays[0].destinations, test.destinations, elements, test.divisor,
                     nullptr);
            });
            std::printf("%6.1f", 1e9 * seconds);
        }
        std::printf("\n");
    }
}
