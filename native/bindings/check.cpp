// The board of `allfold run --check`, and digests, for Python.
#include "check/board.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"

namespace allfold {

namespace nb = nanobind;

namespace {

Clock::duration check_seconds(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)));
}

nb::bytes check_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }
std::string_view check_view(const nb::bytes& text) { return {text.c_str(), text.size()}; }

const char* check_outcome(check::Outcome outcome) {
    const char* names[] = {"agreed", "differs", "failed", "waiting"};
    return names[static_cast<size_t>(outcome)];
}

check::Outcome check_meet(check::Group& group, double seconds) {
    WithoutGil without;
    return group.meet(check_seconds(seconds));
}

}  // namespace

void bind_check(nb::module_& module) {
    using check::Board;
    using check::Group;
    nb::class_<Board>(module, "CheckBoard")
        .def(nb::init<int, uint32_t, uint32_t>())
        .def("fail", [](Board& self, nb::bytes words) { return self.fail(check_view(words)); })
        .def("failure",
             [](const Board& self) -> std::optional<nb::bytes> {
                 auto words = self.failure();
                 return words ? std::optional(check_bytes(*words)) : std::nullopt;
             })
        .def("end", [](Board& self, nb::bytes words) { self.stand(check::Standing::ended, check_view(words)); })
        .def("standing",
             [](const Board& self, uint32_t rank) {
                 const char* names[] = {"absent", "here", "ended"};
                 return names[static_cast<size_t>(self.standing(rank)) % 3];
             })
        .def("last_words", [](const Board& self, uint32_t rank) { return check_bytes(self.last_words(rank)); })
        .def("process", &Board::process)
        .def("fate", &Board::fate)
        .def("ask", &Board::ask)
        .def("is_asked", &Board::is_asked)
        .def("answer", [](Board& self, nb::bytes words) { self.answer(check_view(words)); })
        .def("answer_of", [](const Board& self, uint32_t rank) { return check_bytes(self.answer_of(rank)); })
        .def("wake", &Board::wake)
        .def("watch",
             [](Board& self, double seconds) {
                 WithoutGil without;
                 self.watch(check_seconds(seconds));
             })
        .def("waits",
             [](const Board& self) {
                 nb::list found;
                 for (const Board::Wait& wait : self.waits())
                     found.append(nb::make_tuple(wait.rank, wait.since, wait.group, wait.call));
                 return found;
             })
        .def("begin_wait", &Board::begin_wait)
        .def("end_wait", &Board::end_wait)
        .def("groups", &Board::groups)
        .def(
            "group",
            [](Board& self, uint64_t id, nb::bytes name, const std::vector<uint32_t>& ranks,
               uint32_t own) -> std::unique_ptr<Group> {
                auto* head = self.group(id, check_view(name), ranks);
                return head ? std::make_unique<Group>(self, head, own) : nullptr;
            },
            nb::keep_alive<0, 1>())
        .def(
            "look",
            [](Board& self, uint64_t id) -> std::unique_ptr<Group> {
                auto* head = self.find_group(id);
                return head ? std::make_unique<Group>(self, head, std::nullopt) : nullptr;
            },
            nb::keep_alive<0, 1>());
    nb::class_<Group>(module, "CheckGroup")
        .def("enter", [](Group& self, uint64_t hash,
                         nb::bytes text) { return check_outcome(self.enter(hash, check_view(text))); })
        .def("meet", [](Group& self, double seconds) { return check_outcome(check_meet(self, seconds)); })
        .def("has_agreed", &Group::has_agreed)
        .def("id", &Group::id)
        .def("name", [](const Group& self) { return check_bytes(self.name()); })
        .def("ranks", &Group::ranks)
        .def("last", &Group::last)
        .def("calls", [](const Group& self, uint32_t member) {
            nb::list found;
            for (const Group::Call& call : self.calls(member))
                found.append(nb::make_tuple(call.number, call.hash, call.since, check_bytes(call.text)));
            return found;
        });
    module.def("check_board_bytes", &Board::bytes);
    module.def("digest", [](uint64_t address, uint64_t bytes, uint64_t seed) {
        if (bytes < 1 << 16) return check::digest(reinterpret_cast<const void*>(address), bytes, seed);
        WithoutGil without;
        return check::digest(reinterpret_cast<const void*>(address), bytes, seed);
    });
}

}  // namespace allfold
