// Interrupting long computations, in the bindings of `allfold.find`.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "bindings/columns.hpp"
#include "find/flow.hpp"
#include "shared/errors.hpp"

namespace allfold {

template <typename T>
std::vector<T> copied(const Column<const T>& array) {
    return {array.data(), array.data() + array.shape(0)};
}

// Runs without the interpreter's lock, until it is done, the time is up (then Stopped is thrown inside, and caught
// here) or Ctrl-C is pressed (which is raised).
void run_interruptible(double seconds, const std::function<void(const find::Stop&)>& work);

// The result, or none if time ran out.
template <typename Work>
auto interruptible(double seconds, Work work) {
    std::optional<decltype(work(find::Stop{}))> result;
    run_interruptible(seconds, [&](const find::Stop& stop) { result = work(stop); });
    return result;
}

inline void check_indices(const std::vector<int32_t>& values, int64_t end, const char* what) {
    for (int32_t value : values)
        if (value < 0 || value >= end) throw EngineError(Fault::usage, what);
}

}  // namespace allfold
