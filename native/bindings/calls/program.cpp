#include "bindings/calls/program.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>

namespace allfold {

namespace {

using Ints = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A Python number that must fit into 32 bits.
uint32_t narrow(int64_t value) {
    if (value < 0 || value > UINT32_MAX) throw nb::value_error("a program has a number that is out of range");
    return static_cast<uint32_t>(value);
}

template <typename Item, typename Make>
Rows<Item> rows(const Ints& starts, const Ints& rank, const Ints& value, Make make) {
    if (rank.shape(0) != value.shape(0)) throw nb::value_error("a program has lists of different lengths");
    Rows<Item> result;
    for (size_t i = 0; i < starts.shape(0); ++i) result.starts.push_back(narrow(starts(i)));
    for (size_t i = 0; i < rank.shape(0); ++i) result.items.push_back(make(rank(i), value(i)));
    return result;
}

std::vector<Extent> extents(const Ints& origin, const Ints& end) {
    if (origin.shape(0) != end.shape(0)) throw nb::value_error("a program has lists of different lengths");
    std::vector<Extent> result;
    for (size_t i = 0; i < origin.shape(0); ++i) result.push_back({narrow(origin(i)), narrow(end(i))});
    return result;
}

}  // namespace

std::shared_ptr<Program> make_program(nb::dict facts) {
    auto program = std::make_shared<Program>();
    auto ints = [&](const char* name) { return nb::cast<Ints>(facts[name]); };
    auto number = [&](const char* name) { return nb::cast<uint32_t>(facts[name]); };
    uint32_t width = std::max<uint32_t>(number("width"), 1);
    auto wait = [](int64_t rank, int64_t count) { return Wait{narrow(rank), narrow(count)}; };
    auto slot = [width](int64_t rank, int64_t value) {
        auto space = static_cast<uint32_t>(std::clamp<int64_t>(value / width, 0, 2));
        return Slot{narrow(rank), static_cast<Space>(space), narrow(value - int64_t{space} * width)};
    };
    program->name = nb::cast<std::string>(facts["name"]);
    program->schedule = nb::cast<uint64_t>(facts["schedule"]);
    program->rank = number("rank");
    program->ranks = number("ranks");
    program->chunks = number("chunks");
    program->slices = number("slices");
    program->exchanges = nb::cast<bool>(facts["exchanges"]);
    program->work_slots = number("work_slots");
    program->memory = static_cast<Memory>(std::min<uint32_t>(number("memory"), 255));
    program->one_area = nb::cast<bool>(facts["one_area"]);
    program->segment_bytes = number("segment_bytes");
    program->copies_in_rows = nb::cast<bool>(facts["copies_in_rows"]);
    program->silent = nb::cast<bool>(facts["silent"]);
    program->sources = rows<Slot>(ints("source_starts"), ints("source_rank"), ints("source_slot"), slot);
    program->destinations =
        rows<Slot>(ints("destination_starts"), ints("destination_rank"), ints("destination_slot"), slot);
    program->waits = rows<Wait>(ints("wait_starts"), ints("wait_rank"), ints("wait_count"), wait);
    program->reuse = rows<Wait>(ints("reuse_starts"), ints("reuse_rank"), ints("reuse_count"), wait);
    Ints leave_rank = ints("leave_rank"), leave_count = ints("leave_count");
    if (leave_rank.shape(0) != leave_count.shape(0)) throw nb::value_error("a program has lists of different lengths");
    for (size_t i = 0; i < leave_rank.shape(0); ++i) program->leave.push_back(wait(leave_rank(i), leave_count(i)));
    auto list = [&](const char* name, auto& target) {
        Ints values = ints(name);
        for (size_t i = 0; i < values.shape(0); ++i)
            target.push_back(static_cast<std::decay_t<decltype(target[0])>>(narrow(values(i))));
    };
    list("lengths", program->lengths);
    list("length_of", program->length_of);
    list("complete", program->complete);
    list("announce", program->announce);
    program->inputs = extents(ints("input_origin"), ints("input_end"));
    program->outputs = extents(ints("output_origin"), ints("output_end"));
    check_program(*program);
    return program;
}

}  // namespace allfold
