// How arrays come from and go to Python, and how long work is interrupted, in the bindings of `allfold.find`.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <optional>
#include <vector>

#include "bindings/gil.hpp"
#include "find/flow.hpp"
#include "shared/errors.hpp"

namespace nb = nanobind;

namespace allfold {

template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::vector<T> copied(const Input<T>& array) {
    return {array.data(), array.data() + array.shape(0)};
}

template <typename T>
nb::object as_array(std::vector<T> values, size_t rows, size_t columns) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(kept->data(), {rows, columns}, owner));
}

// Runs without the interpreter's lock, until it is done, the time is over (then there is no result) or Ctrl-C is
// pressed (then that is raised).
template <typename Work>
auto interruptible(double seconds, Work work) -> std::optional<decltype(work(find::Stop{}))> {
    using Clock = std::chrono::steady_clock;
    auto start = Clock::now(), asked = start;
    bool interrupted = false;
    find::Stop stop = [&] {
        auto now = Clock::now();
        if (std::chrono::duration<double>(now - start).count() > seconds) return true;
        if (now - asked > std::chrono::milliseconds(50)) {
            asked = now;
            WithGil with;
            interrupted = in_python([] { return PyErr_CheckSignals(); }) != 0;
        }
        return interrupted;
    };
    std::optional<decltype(work(stop))> result;
    {
        WithoutGil without;
        try {
            result = work(stop);
        } catch (const find::Stopped&) {}
    }
    if (interrupted) throw nb::python_error();
    return result;
}

inline void check_indices(const std::vector<int32_t>& values, int64_t end, const char* what) {
    for (int32_t value : values)
        if (value < 0 || value >= end) throw EngineError(Fault::usage, what);
}

}  // namespace allfold
