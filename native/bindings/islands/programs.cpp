// Message programs for Python: made once, and run on arrays without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/calls/communicator.hpp"
#include "bindings/columns.hpp"
#include "bindings/gil.hpp"
#include "bindings/islands/links.hpp"
#include "collectives/signature.hpp"

namespace allfold {

namespace {

using Bounds = Column<const uint64_t>;

uint32_t small_number(int64_t value) {
    need(value >= 0 && value <= UINT32_MAX, "a message program has a number that is out of range");
    return static_cast<uint32_t>(value);
}

// From the columns that `engines/islands/execution/native.py` makes of it.
std::shared_ptr<MessageProgram> make_message_program(nb::dict facts) {
    auto program = std::make_shared<MessageProgram>();
    auto ints = [&](const char* name) { return nb::cast<Ints>(facts[name]); };
    auto number = [&](const char* name) { return nb::cast<uint32_t>(facts[name]); };
    auto extent = [&](const char* name) {
        Ints both = ints(name);
        need(both.shape(0) == 2, "an extent has two ends");
        return Extent{small_number(both(0)), small_number(both(1))};
    };
    auto place = [](const Ints& column, size_t at) {
        need(column(at) >= 0 && column(at) <= 3, "a message program has a place that does not exist");
        return ChunkPlace{static_cast<MessageSpace>(column(at)), small_number(column(at + 1)),
                          small_number(column(at + 2))};
    };
    auto starts = [&](const char* name) {
        Ints column = ints(name);
        std::vector<uint32_t> result;
        for (size_t i = 0; i < column.shape(0); ++i) result.push_back(small_number(column(i)));
        return result;
    };
    auto places = [&](const char* begins, const char* name) {
        Ints column = ints(name);
        Rows<ChunkPlace> rows{starts(begins), {}};
        for (size_t i = 0; i + 2 < column.shape(0); i += 3) rows.items.push_back(place(column, i));
        return rows;
    };
    program->rank = number("rank");
    program->ranks = number("ranks");
    program->chunks = number("chunks");
    program->work_slots = number("work_slots");
    program->begins = number("begins");
    program->even = nb::cast<bool>(facts["even"]);
    program->carries_data = nb::cast<bool>(facts["carries_data"]);
    program->input = extent("input");
    program->output = extent("output");
    Ints rows = ints("instructions");  // kind, complete, number, length_of, chunks, and a place
    for (size_t i = 0; i + 7 < rows.shape(0); i += 8)
        program->instructions.push_back({static_cast<MessageProgram::Kind>(small_number(rows(i)) & 0xFF),
                                         rows(i + 1) != 0, small_number(rows(i + 2)), small_number(rows(i + 3)),
                                         small_number(rows(i + 4)), place(rows, i + 5)});
    program->sources = places("source_starts", "sources");
    program->into = places("into_starts", "into");
    Ints messages = ints("messages");  // sends, together, peer
    for (size_t i = 0; i + 2 < messages.shape(0); i += 3)
        program->messages.push_back({messages(i) != 0, messages(i + 1) != 0, small_number(messages(i + 2))});
    program->lengths = {starts("part_starts"), starts("parts")};
    program->places = places("place_starts", "places");
    Ints inside = ints("inside");  // collective, root
    for (size_t i = 0; i + 1 < inside.shape(0); i += 2) {
        need(inside(i) >= 0 && inside(i) < 255, "a message program has a collective that does not exist");
        program->inside.push_back({static_cast<uint8_t>(inside(i)), static_cast<int32_t>(small_number(inside(i + 1)))});
    }
    check_messages(*program);
    return program;
}

// From the rows of `NativeRuns.plan` in the same file: the program, the first element, the number of elements, that of
// a segment, `ahead` and `starts` of every stage.
std::shared_ptr<PyPlan> make_plan(nb::list stages, bool along, bool waits_for_leader, nb::list work, nb::list bounds) {
    auto made = std::make_shared<PyPlan>();
    made->plan.along = along;
    made->plan.waits_for_leader = waits_for_leader;
    for (nb::handle one : stages) {
        using Stage = std::tuple<std::shared_ptr<MessageProgram>, uint64_t, uint64_t, uint64_t, int32_t, bool>;
        auto [program, first, elements, segment, ahead, starts] = nb::cast<Stage>(one);
        need(program && segment > 0, "a plan has a stage without a program, or without segments");
        made->plan.stages.push_back({program, first, elements, segment, ahead, starts});
    }
    need(!along || made->plan.stages.size() == 1, "a call whose data are sent with the headers has one stage");
    for (nb::handle one : work) {
        Array& memory = made->work.emplace_back(one, true, DType::uint8);
        made->plan.work.emplace_back(static_cast<char*>(memory.data), memory.elements);
    }
    auto numbers = [&](size_t at) {
        auto column = nb::cast<Bounds>(bounds[at]);
        return std::vector(column.data(), column.data() + column.shape(0));
    };
    if (bounds.size() == 2) {
        made->plan.inputs = numbers(0);
        made->plan.outputs = numbers(1);
    }
    return made;
}

// What `difference_of` says, or None.
nb::object perform(nb::args given) {
    Arguments next(std::move(given), 8);
    nb::object links = next, plan = next, input = next, output = next, dtype = next;
    uint32_t op = next;
    nb::bytes said = next;
    double deadline = next;
    DType type = dtype_named(dtype);
    need(op < op_count, "no such operation");
    Array input_array, output_array;
    MessageArrays arrays;
    if (!input.is_none()) {
        input_array = Array(input, false, type);
        arrays.input = static_cast<const char*>(input_array.data);
        arrays.input_elements = input_array.elements;
    }
    if (!output.is_none()) {
        output_array = Array(output, true, type);
        arrays.output = static_cast<char*>(output_array.data);
        arrays.output_elements = output_array.elements;
    }
    auto& own = *nb::cast<PyLinks*>(links);
    need(said.size() >= said_bytes && (!own.links.fronts || said.size() == own.links.fronts->limits().said),
         "a header of the wrong length");
    try {
        own.perform(nb::cast<PyPlan*>(plan)->plan, arrays, type, static_cast<Op>(op), said.c_str(), moment(deadline));
    } catch (const CallsDiffer& differ) {
        return difference_of(differ);
    }
    return nb::none();
}

}  // namespace

void bind_islands(nb::module_& module) {
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const WireLost& error) {
            try {
                nb::object raised = disconnected(error);
                PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
            } catch (nb::python_error& trouble) {
                trouble.restore();
            }
        }
    });
    nb::class_<MessageProgram>(module, "MessageProgram").def_static("of", &make_message_program);
    nb::class_<PyLinks>(module, "PeerLinks")
        .def(nb::init<std::shared_ptr<Wire>, nb::object, nb::object, std::vector<int32_t>, uint32_t, uint32_t>())
        .def("lead", &PyLinks::lead)
        .def("send_fronts", &PyLinks::send_fronts)
        .def("receive_front", &PyLinks::receive_front)
        .def("refill", &PyLinks::refill)
        .def("settle", &PyLinks::settle)
        .def("trace", &PyLinks::trace)
        .def("moved", &PyLinks::moved);
    nb::class_<PyPlan>(module, "CallPlan").def_static("of", &make_plan);
    module.def("perform_between_islands", &perform);
}

}  // namespace allfold
