// Access to Python's arrays, by the buffer protocol (NumPy) or DLPack (torch and others), without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>

#include "kernels/dtypes.hpp"
#include "shared/errors.hpp"

namespace allfold {

namespace nb = nanobind;

// A contiguous array in memory, kept alive. Throws a Python TypeError, ValueError or BufferError that says what is
// wrong; see take_arguments.
class Array {
  public:
    Array() = default;
    // `vouched`: the caller keeps the object alive and knows that it is not a lazily conjugated or negated view of a
    // tensor, which DLPack's fast exchange does not show. Of a tensor, no capsule is then made.
    Array(nb::handle object, bool writable, std::optional<DType> as, bool vouched = false);
    Array(Array&& other) noexcept;
    Array& operator=(Array&& other) noexcept;
    Array(const Array&) = delete;
    ~Array();

    // The format of the buffer, in the characters of the struct module; null where the array has none.
    const char* format() const { return held_ ? view_.format : nullptr; }

    void* data = nullptr;
    size_t elements = 0;
    DType dtype = DType::float32;

  private:
    void take(const nb::dlpack::dltensor& tensor, std::optional<DType> as);
    void set_dtype(DType found, std::optional<DType> as);

    Py_buffer view_{};
    bool held_ = false;
    nb::ndarray<> tensor_;
};

DType dtype_named(nb::handle name);

// To be called in the handler of an error of an argument: throws the error that the caller of `name` gets, UsageError
// for a wrong argument, UnfitArray for an array that must be copied first.
[[noreturn]] void refuse_arguments(const char* name);

// Calls `take`, which takes the arguments of a call.
template <class Take>
void take_arguments(const char* name, Take&& take) {
    try {
        take();
    } catch (const EngineError&) {
        throw;
    } catch (const std::exception&) {
        refuse_arguments(name);
    }
}

// True if two arrays have a byte in common.
bool overlap(const Array& one, const Array& other);

}  // namespace allfold
