// For engines written in Python: the kernels, and access to arrays of other libraries.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <optional>
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

// The type of an array, and its memory as bytes, for arrays that NumPy cannot read: DLPack's capsules, other libraries.
// `name`: the call whose argument it is.
nb::tuple view(const char* name, nb::handle object, bool writable, nb::handle dtype) {
    auto* array = new Array();
    nb::capsule owner(array, [](void* pointer) noexcept { delete static_cast<Array*>(pointer); });
    take_arguments(name, [&] {
        std::optional<DType> as;
        if (!dtype.is_none()) as = dtype_named(dtype);
        *array = Array(object, writable, as);
    });
    size_t bytes = array->elements * size_of(array->dtype);
    auto seen = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(array->data, {bytes}, owner);
    return nb::make_tuple(name_of(array->dtype), nb::cast(seen));
}

}  // namespace

void bind_fold(nb::module_& module) {
    nb::list kernels;
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::fp16, Isa::baseline})
        if (available(isa)) kernels.append(name_of(isa));
    module.attr("KERNELS") = nb::tuple(kernels);  // that this processor runs, those that are used first
#if defined(__clang__)
    module.attr("COMPILER") = "Clang " __clang_version__;
#else
    module.attr("COMPILER") = "GCC " __VERSION__;
#endif
    module.def("fold", &fold_arrays);
    module.def("view", &view, nb::arg("name"), nb::arg("array"), nb::arg("writable"), nb::arg("dtype").none());
}

}  // namespace allfold
