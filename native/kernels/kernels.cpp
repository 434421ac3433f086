// Chooses, once, which of the compiled sets of kernels this processor runs.
#include "kernels/kernels.hpp"

#include <initializer_list>

#if defined(__aarch64__)
#include <sys/auxv.h>
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

bool available(Isa isa) {
    if (isa == Isa::baseline) return true;
#ifdef __x86_64__
    __builtin_cpu_init();  // this may run before the constructors that would otherwise have done it
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (isa == Isa::avx2) return avx2;
    return isa == Isa::avx512 && avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
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
