// Many calls of a GPU's driver at once, without Python in between: what one collective puts into a stream.
//
// The extension is not linked with the driver: Python has loaded it, and gives the addresses of its functions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <cstdint>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"

namespace allfold {

namespace nb = nanobind;

namespace {

using Status = int;
using Stream = void*;
using Value = Status (*)(Stream, uint64_t, uint32_t, unsigned);
using Copy = Status (*)(uint64_t, uint64_t, size_t, Stream);
using Launch = Status (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**,
                          void**);

enum Kind : int64_t { wait_for_value, write_value, copy, launch };  // as in src/allfold/cuda/batch.py

using Rows = nb::ndarray<const int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Functions = nb::ndarray<const uint64_t, nb::shape<4>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Returns how many were done, and the driver's error for the next one. `base` is added to all values.
std::pair<size_t, Status> submit(const Functions& functions, uint64_t stream_number, const Rows& rows,
                                 const Bytes& arguments, uint32_t threads, uint32_t base) {
    WithoutGil without;  // the driver may block while its queue is full
    const uint64_t* function = functions.data();
    auto* stream = reinterpret_cast<Stream>(stream_number);
    for (size_t i = 0; i < rows.shape(0); ++i) {
        const int64_t* row = rows.data() + 4 * i;
        const uint64_t address = function[row[0]];
        Status status = 0;
        switch (row[0]) {
            case wait_for_value:
            case write_value:
                status = reinterpret_cast<Value>(address)(stream, static_cast<uint64_t>(row[1]),
                                                          static_cast<uint32_t>(row[2]) + base, 0);
                break;
            case copy:
                status = reinterpret_cast<Copy>(address)(static_cast<uint64_t>(row[1]), static_cast<uint64_t>(row[2]),
                                                         static_cast<size_t>(row[3]), stream);
                break;
            default: {
                void* given[] = {const_cast<uint8_t*>(arguments.data() + row[3])};
                status =
                    reinterpret_cast<Launch>(address)(reinterpret_cast<void*>(row[1]), static_cast<unsigned>(row[2]), 1,
                                                      1, threads, 1, 1, 0, stream, given, nullptr);
            }
        }
        if (status) return {i, status};
    }
    return {rows.shape(0), 0};
}

}  // namespace

void bind_submit(nb::module_& module) { module.def("submit", &submit); }

}  // namespace allfold
