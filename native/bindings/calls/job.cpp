#include "bindings/calls/job.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "bindings/gil.hpp"
#include "shared/errors.hpp"
#include "shared/text.hpp"

namespace allfold {

using Counts = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The numbers are in a Python dictionary: the fastest lookup for a Python string. Most programs use one operation again
// and again, and the same string for it, whose number is remembered.
nb::object Job::number_of(nb::handle op) {
    static nb::dict* numbers = [] {
        auto* made = new nb::dict();
        for (size_t i = 0; i < op_count; ++i) (*made)[name_of(static_cast<Op>(i))] = static_cast<int>(i);
        return made;
    }();
    static PyObject *last = nullptr, *number = nullptr;
    if (op.ptr() == last) return nb::borrow(number);
    PyObject* found = PyDict_GetItem(numbers->ptr(), op.ptr());
    if (found && PyUnicode_CheckExact(op.ptr())) {  // an object of another type may change
        Py_INCREF(op.ptr());
        Py_XDECREF(last);
        last = op.ptr();
        number = found;
    }
    return nb::borrow(found);
}

void Job::take(nb::handle in, nb::handle out, nb::handle dtype, bool vouched) {
    std::optional<DType> as;
    if (!dtype.is_none()) as = dtype_named(dtype);
    if (!in.is_none()) input.emplace(in, false, as, vouched);
    if (!out.is_none()) output.emplace(out, true, as, vouched);
}

void Job::set(const Caller& caller, int collective, nb::handle op, int root, nb::handle lengths) {
    bool differ = input && output && input->dtype != output->dtype;
    if (!differ && input && output && overlap(*input, *output)) {
        PyErr_SetString(PyExc_BufferError, "the input and the output overlap");
        throw nb::python_error();
    }
    is_taken = true;
    if (differ)
        throw nb::type_error(
            joined({"the input is ", name_of(input->dtype), ", the output ", name_of(output->dtype)}).c_str());
    call.collective = static_cast<Collective>(collective);
    call.root = root;
    call.input = input ? input->data : nullptr;
    call.output = output ? output->data : nullptr;
    call.dtype = output ? output->dtype : input ? input->dtype : DType::uint8;
    if (lengths.is_none()) {
        call.elements = whole(caller.size);
    } else {
        auto [given, digest] = nb::cast<std::pair<Counts, uint32_t>>(lengths);
        counts.assign(given.data(), given.data() + given.shape(0));
        counts_digest = digest;
        call.elements = uneven(caller);
        // An array without elements counts as none: no peer accesses it, so it need not be where peers can reach it.
        if (input && input->elements == 0) call.input = nullptr;
        if (output && output->elements == 0) call.output = nullptr;
    }
    set_op(caller.communicator, op);
}

void Job::set_parts() {
    if (counts.empty()) return;
    const Program& program = *call.private_program;
    for (const Program* one : {call.private_program, call.readable_program, call.shared_program})
        if (one && !one->keeps_places)
            throw EngineError(Fault::usage,
                              joined({facts_of(call.collective).name, ": ", program.name,
                                      " cannot run with counts: it stores slices in the places of other slices"}));
    parts.emplace(counts, counts_digest, program);
    call.parts = &*parts;
}

// The elements of the whole buffer, from the lengths of the slices; of an all_to_all, those of a rank on average. The
// arrays must be as long as the slices in them.
uint64_t Job::uneven(const Caller& caller) const {
    const CollectiveFacts& facts = facts_of(call.collective);
    const size_t size = caller.size, rank = caller.rank;
    if (counts.size() != (facts.exchanges ? size * size : size)) throw nb::value_error("a wrong number of counts");
    uint64_t total = 0, sent = 0, received = 0;
    for (uint64_t count : counts) total += count;
    for (size_t i = 0; facts.exchanges && i < size; ++i) {
        sent += counts[rank * size + i];
        received += counts[i * size + rank];
    }
    auto need = [&](const char* what, const std::optional<Array>& array, bool sliced, bool by_root,
                    uint64_t exchanged) {
        if (!array && !by_root)
            throw nb::type_error("expected an array that speaks the buffer protocol or DLPack, got None");
        uint64_t wanted = facts.exchanges ? exchanged : sliced ? counts[rank] : total;
        if (array && array->elements != wanted)
            throw nb::value_error(joined({"by the counts, the ", what, " of rank ", rank, " must hold ", wanted,
                                          " elements, got ", array->elements})
                                      .c_str());
    };
    need("input", input, facts.brings_slice, facts.root_brings, sent);
    need("output", output, facts.gets_slice, facts.root_gets, received);
    return facts.exchanges ? (total + size - 1) / size : total;
}

// The elements of the whole buffer: the longer of the two arrays, checked against the shorter one.
uint64_t Job::whole(uint64_t size) const {
    uint64_t in = input ? input->elements : 0, out = output ? output->elements : 0;
    auto need = [&](bool good, const char* what) {
        if (!good) throw nb::value_error(joined({what, ", got ", in, " and ", out}).c_str());
    };
    const CollectiveFacts& facts = facts_of(call.collective);
    bool needs_input = !facts.in_place && !facts.root_brings;
    bool needs_output = facts.carries_data && (facts.in_place || !facts.root_gets);
    if ((needs_input && !input) || (needs_output && !output))
        throw nb::type_error("expected an array that speaks the buffer protocol or DLPack, got None");
    if (facts.brings_slice) {
        need(!output || out == in * size, "the output must hold one input of every rank");
        return in * size;
    }
    if (facts.gets_slice) {
        need(!input || in == out * size, "the input must hold one output for every rank");
        return out * size;
    }
    if (facts.exchanges)
        need(in == out && in % size == 0, "input and output must be equally long, a multiple of the ranks");
    return out;
}

void Job::set_op(Communicator& communicator, nb::handle op) {
    call.op = 0;
    const CollectiveFacts& facts = facts_of(call.collective);
    if (facts.takes_op == op.is_none())
        throw nb::type_error(facts.takes_op ? "expected an operation, got None" : "it takes no operation");
    if (op.is_none()) return;
    if (PyLong_Check(op.ptr())) {
        const long given = PyLong_AsLong(op.ptr());
        if (given < 0 || given >= static_cast<long>(op_count)) throw nb::value_error("an operation has no such number");
        const auto number = static_cast<uint8_t>(given);
        call.op = number;
        if (number == static_cast<uint8_t>(Op::average) && !facts.combines_all)
            throw nb::type_error(nb::cast<std::string>(nb::module_::import_("allfold.ops").attr("NO_AVERAGE")).c_str());
        call.fold = find_fold(static_cast<Op>(number), call.dtype);
        if (!call.fold) {
            const char* name = name_of(static_cast<Op>(number));
            nb::object why = nb::module_::import_("allfold.ops").attr("WHY_NOT")[name];
            throw nb::type_error(
                joined({name, " is not defined for ", name_of(call.dtype), ": ", nb::cast<const char*>(why)}).c_str());
        }
        return;
    }
    call.op = custom_op;
    auto [given, name, digest] = nb::cast<std::tuple<nb::object, std::string, uint64_t>>(op);
    function = given;
    op_name = name;
    call.op_name = op_name.c_str();
    call.op_digest = digest;
    call.custom_fold = [native = &communicator, function = function.ptr(), dtype = call.dtype](
                           const void* const* sources, size_t count, void* const* destinations, size_t copies,
                           size_t elements) {
        WithGil with;
        // Copies, because the operation may keep its arguments, and this memory is soon overwritten or freed. In
        // pieces that stay in the cache.
        size_t most = std::max<size_t>((size_t{1} << 18) / size_of(dtype), 1);
        for (size_t done = 0; done < elements; done += most) {
            size_t start = done * size_of(dtype), bytes = std::min(most, elements - done) * size_of(dtype);
            nb::list list;
            for (size_t i = 0; i < count; ++i)
                list.append(nb::bytes(static_cast<const char*>(sources[i]) + start, bytes));
            nb::object result = call_python(function, list, name_of(dtype));
            native->check_here("an operation");         // it may have forked, and this process may be the child
            native->check_not_aborted("an operation");  // then its arrays belong to the caller again
            Array array(result, false, dtype);
            if (array.elements * size_of(dtype) != bytes)
                throw nb::value_error("an operation returned an array of another length than its arguments");
            for (size_t i = 0; i < copies; ++i)
                std::memcpy(static_cast<char*>(destinations[i]) + start, array.data, bytes);
        }
    };
}

}  // namespace allfold
