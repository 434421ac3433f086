// What can be reduced, and how: the element types, the operations, and which operation is defined for which type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace allfold {

enum class DType : uint8_t {
    boolean,
    int8,
    uint8,
    int16,
    uint16,
    int32,
    uint32,
    int64,
    uint64,
    float16,
    bfloat16,
    float32,
    float64,
    complex64,
    complex128,
};
inline constexpr size_t dtype_count = 15;

enum class Op : uint8_t { sum, average, product, min, max, band, bor, bxor };
inline constexpr size_t op_count = 8;

constexpr size_t size_of(DType dtype) {
    constexpr uint8_t sizes[dtype_count] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
    return sizes[static_cast<size_t>(dtype)];
}

constexpr const char* name_of(DType dtype) {
    constexpr const char* names[dtype_count] = {
        "bool",   "int8",    "uint8",    "int16",   "uint16",  "int32",     "uint32",     "int64",
        "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    };
    return names[static_cast<size_t>(dtype)];
}

constexpr const char* name_of(Op op) {
    constexpr const char* names[op_count] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
    return names[static_cast<size_t>(op)];
}

constexpr bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }
constexpr bool is_floating(DType dtype) { return dtype >= DType::float16 && !is_complex(dtype); }

// Sum and product exist everywhere; the mean of integers is not an integer, complex numbers have no order, and bitwise
// operations are for integers and truth values only.
constexpr bool supports(Op op, DType dtype) {
    switch (op) {
        case Op::sum:
        case Op::product: return true;
        case Op::average: return is_floating(dtype) || is_complex(dtype);
        case Op::min:
        case Op::max: return !is_complex(dtype);
        case Op::band:
        case Op::bor:
        case Op::bxor: return !is_floating(dtype) && !is_complex(dtype);
    }
    return false;
}

}  // namespace allfold
