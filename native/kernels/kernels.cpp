// Chooses, once, which of the compiled sets of kernels this processor runs.
#include "kernels/kernels.hpp"

#include <initializer_list>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

namespace allfold {

// Each is defined by <name>.cpp.
namespace baseline {
Fold find_fold(Op op, DType dtype);
void copy(const void* source, void* const* destinations, size_t destination_count, size_t bytes, bool from_memory);
}  // namespace baseline
#ifdef __x86_64__
namespace avx2 {
Fold find_fold(Op op, DType dtype);
void copy(const void* source, void* const* destinations, size_t destination_count, size_t bytes, bool from_memory);
}  // namespace avx2
namespace avx512 {
Fold find_fold(Op op, DType dtype);
void copy(const void* source, void* const* destinations, size_t destination_count, size_t bytes, bool from_memory);
}  // namespace avx512
#elif defined(__aarch64__)
namespace fp16 {
Fold find_float16(Op op);
}  // namespace fp16
#endif

const char* name_of(Isa isa) {
    constexpr const char* names[] = {"baseline", "avx2", "avx512", "fp16"};
    return names[static_cast<size_t>(isa)];
}

#ifdef __x86_64__
// Asked of the processor here: __builtin_cpu_supports needs a part of the compiler's library that zig's does not have.
// The system must save the registers as well, or a switch to another process would lose what is in them.
static bool has_vectors(Isa isa) {
    constexpr unsigned osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;                        // leaf 1, ecx
    constexpr unsigned avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;  // leaf 7, ebx
    constexpr unsigned saves_ymm = 0x06, saves_zmm = 0xe6;                                         // xcr0
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
    if (constexpr unsigned all = osxsave | avx | f16c; (ecx & all) != all) return false;
    unsigned saved = 0, high = 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    const unsigned instructions = isa == Isa::avx512 ? avx2 | f | dq | bw | vl : avx2;
    const unsigned registers = isa == Isa::avx512 ? saves_zmm : saves_ymm;
    return (ebx & instructions) == instructions && (saved & registers) == registers;
}
#endif

bool available(Isa isa) {
    if (isa == Isa::baseline) return true;
#ifdef __x86_64__
    return (isa == Isa::avx2 || isa == Isa::avx512) && has_vectors(isa);
#elif defined(__aarch64__)
    return isa == Isa::fp16 && (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0;
#else
    return false;
#endif
}

Isa best_isa() {
    static const Isa best = [] {
        for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::fp16})
            if (available(isa)) return isa;
        return Isa::baseline;
    }();
    return best;
}

Fold find_fold(Op op, DType dtype, [[maybe_unused]] Isa isa) {
    if (!supports(op, dtype)) return nullptr;
#ifdef __x86_64__
    if (isa == Isa::avx512) return avx512::find_fold(op, dtype);
    if (isa == Isa::avx2) return avx2::find_fold(op, dtype);
#elif defined(__aarch64__)
    if (isa == Isa::fp16 && dtype == DType::float16) return fp16::find_float16(op);
#endif
    return baseline::find_fold(op, dtype);
}

Copy find_copy([[maybe_unused]] Isa isa) {
#ifdef __x86_64__
    if (isa == Isa::avx512) return avx512::copy;
    if (isa == Isa::avx2) return avx2::copy;
#endif
    return baseline::copy;
}

Fold find_fold(Op op, DType dtype) { return find_fold(op, dtype, best_isa()); }

void copy(const void* source, void* const* destinations, size_t destination_count, size_t bytes, bool from_memory) {
    static const Copy best = find_copy(best_isa());
    best(source, destinations, destination_count, bytes, from_memory);
}

}  // namespace allfold
