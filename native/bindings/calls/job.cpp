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

namespace allfold {

using Counts = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void Job::set(Communicator& communicator, int collective, nb::handle in, nb::handle out, nb::handle op, int root,
              nb::handle dtype, bool vouched, nb::handle lengths) {
    std::optional<DType> as;
    if (!dtype.is_none()) as = dtype_named(dtype);
    bool has_input = !in.is_none(), has_output = !out.is_none();
    if (has_input) input = vouched ? Array::vouched(in, false, as) : Array(in, false, as);
    if (has_output) output = vouched ? Array::vouched(out, true, as) : Array(out, true, as);
    bool differ = has_input && has_output && input.dtype != output.dtype;
    if (!differ && has_input && has_output && overlap(input, output)) {
        PyErr_SetString(PyExc_BufferError, "the input and the output overlap");
        throw nb::python_error();
    }
    is_taken = true;
    if (differ)
        throw nb::type_error(
            (std::string("the input is ") + name_of(input.dtype) + ", the output " + name_of(output.dtype)).c_str());
    call.collective = static_cast<Collective>(collective);
    call.root = root;
    call.input = has_input ? input.data : nullptr;
    call.output = has_output ? output.data : nullptr;
    call.dtype = has_output ? output.dtype : has_input ? input.dtype : DType::uint8;
    if (lengths.is_none()) {
        call.elements = whole(call.collective, communicator.size(), has_input, has_output);
    } else {
        auto [given, digest] = nb::cast<std::pair<Counts, uint32_t>>(lengths);
        counts.assign(given.data(), given.data() + given.shape(0));
        counts_digest = digest;
        call.elements = uneven(communicator, has_input, has_output);
        // An array without elements is none: no peer accesses it, so it need not be where peers reach it.
        if (has_input && input.elements == 0) call.input = nullptr;
        if (has_output && output.elements == 0) call.output = nullptr;
    }
    set_op(communicator, op);
}

void Job::set_parts() {
    if (counts.empty()) return;
    const Program& program = *call.private_program;
    for (const Program* one : {call.private_program, call.readable_program, call.shared_program})
        if (one && !one->keeps_places)
            throw EngineError(Fault::usage, facts_of(call.collective).name + ": " + program.name +
                                                " cannot run with counts: it puts slices into places of other ones");
    parts.emplace(counts, counts_digest, program);
    call.parts = &*parts;
}

// The elements of the whole buffer, from the lengths of the slices; of an all_to_all, those of a rank on average. The
// arrays must be as long as the slices in them.
uint64_t Job::uneven(const Communicator& communicator, bool has_input, bool has_output) const {
    const CollectiveFacts& facts = facts_of(call.collective);
    const size_t size = communicator.size(), rank = communicator.rank();
    if (counts.size() != (facts.exchanges ? size * size : size)) throw nb::value_error("a wrong number of counts");
    uint64_t total = 0, sent = 0, received = 0;
    for (uint64_t count : counts) total += count;
    for (size_t i = 0; facts.exchanges && i < size; ++i) {
        sent += counts[rank * size + i];
        received += counts[i * size + rank];
    }
    auto need = [&](const char* what, bool has, bool sliced, bool by_root, uint64_t exchanged, uint64_t elements) {
        if (!has && !by_root)
            throw nb::type_error("expected an array that speaks the buffer protocol or DLPack, got None");
        uint64_t wanted = facts.exchanges ? exchanged : sliced ? counts[rank] : total;
        if (has && elements != wanted)
            throw nb::value_error((std::string("by the counts, the ") + what + " of rank " + std::to_string(rank) +
                                   " must hold " + std::to_string(wanted) + " elements, got " +
                                   std::to_string(elements))
                                      .c_str());
    };
    need("input", has_input, facts.brings_slice, facts.root_brings, sent, has_input ? input.elements : 0);
    need("output", has_output, facts.gets_slice, facts.root_gets, received, has_output ? output.elements : 0);
    return facts.exchanges ? (total + size - 1) / size : total;
}

// The elements of the whole buffer: the longer of the two arrays, checked against the shorter one.
uint64_t Job::whole(Collective collective, uint64_t size, bool has_input, bool has_output) const {
    uint64_t in = has_input ? input.elements : 0, out = has_output ? output.elements : 0;
    auto need = [&](bool good, const std::string& what) {
        if (!good)
            throw nb::value_error((what + ", got " + std::to_string(in) + " and " + std::to_string(out)).c_str());
    };
    const CollectiveFacts& facts = facts_of(collective);
    bool needs_input = !facts.in_place && !facts.root_brings;
    bool needs_output = facts.carries_data && (facts.in_place || !facts.root_gets);
    if ((needs_input && !has_input) || (needs_output && !has_output))
        throw nb::type_error("expected an array that speaks the buffer protocol or DLPack, got None");
    if (facts.brings_slice) {
        need(!has_output || out == in * size, "the output must hold one input of every rank");
        return in * size;
    }
    if (facts.gets_slice) {
        need(!has_input || in == out * size, "the input must hold one output for every rank");
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
        throw nb::type_error(facts.takes_op ? "an operation is needed, not None" : "it takes no operation");
    if (op.is_none()) return;
    if (nb::isinstance<nb::int_>(op)) {
        auto number = nb::cast<uint8_t>(op);
        call.op = number;
        if (number == static_cast<uint8_t>(Op::average) && !facts.combines_all)
            throw nb::type_error(nb::cast<std::string>(nb::module_::import_("allfold.ops").attr("NO_AVERAGE")).c_str());
        call.fold = find_fold(static_cast<Op>(number), call.dtype);
        if (!call.fold) {
            const char* name = name_of(static_cast<Op>(number));
            nb::object why = nb::module_::import_("allfold.ops").attr("WHY_NOT")[name];
            throw nb::type_error(
                (std::string(name) + " is not defined for " + name_of(call.dtype) + ": " + nb::cast<std::string>(why))
                    .c_str());
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
            native->check_here("an operation");         // it may have forked, and this may be the child
            native->check_not_aborted("an operation");  // then its arrays belong to the caller again
            Array array(result, false, dtype);
            if (array.elements * size_of(dtype) != bytes)
                throw nb::value_error("an operation gave another length than it got");
            for (size_t i = 0; i < copies; ++i)
                std::memcpy(static_cast<char*>(destinations[i]) + start, array.data, bytes);
        }
    };
}

}  // namespace allfold
