// The kernels on Python's arrays, for engines that are written in Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "kernels/kernels.hpp"
#include "shared/errors.hpp"

namespace allfold {

namespace {

// The fold of the sources, from the first to the last, into the destination, which may be one of them. Numbers of
// operations are those of OPS.
void fold_arrays(uint32_t op, nb::handle dtype, const std::vector<nb::object>& sources, nb::handle destination,
                 uint32_t divisor) {
    DType kind = dtype_named(dtype);
    if (op >= op_count || !supports(static_cast<Op>(op), kind) || sources.empty())
        throw EngineError(Fault::usage, "fold: no such operation on that type, or no source");
    std::vector<Array> arrays;
    arrays.reserve(sources.size());
    Array target(destination, true, kind);
    std::vector<const void*> from;
    for (const nb::object& source : sources) {
        arrays.emplace_back(source, false, kind);
        from.push_back(arrays.back().data);
        bool apart = arrays.back().data == target.data || !overlap(arrays.back(), target);
        if (arrays.back().elements != target.elements || !apart)
            throw EngineError(Fault::usage, "fold: arrays differ in length, or overlap");
    }
    WithoutGil without;
    find_fold(static_cast<Op>(op), kind)(from.data(), from.size(), &target.data, 1, target.elements, divisor, nullptr);
}

}  // namespace

void bind_fold(nb::module_& module) { module.def("fold", &fold_arrays); }

}  // namespace allfold
