#include "shared/arena.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/bindings.hpp"
#include "shared/attachment.hpp"

namespace allfold {

namespace nb = nanobind;

namespace {

using Place = std::tuple<std::shared_ptr<Arena>, size_t>;  // the place of a post

// Bytes in shared memory, as an array that frees them when neither it nor any view of it is in use.
nb::object empty(std::shared_ptr<Arena> arena, size_t bytes) {
    struct Loan {
        std::shared_ptr<Arena> arena;
        size_t offset;
        ~Loan() { arena->release(offset); }
    };
    auto* loan = new Loan{arena, arena->allocate(bytes)};
    arena->lend_to_children(loan->offset);
    nb::capsule owner(loan, [](void* pointer) noexcept { delete static_cast<Loan*>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(arena->at(loan->offset), {bytes}, owner));
}

// Bytes that were allocated in an arena, by this process or the one that owns it, as an array that keeps it mapped.
nb::object view_of(std::shared_ptr<Arena> arena, size_t offset, size_t bytes) {
    if (offset > arena->size() || bytes > arena->size() - offset)
        throw nb::value_error("these bytes are not in the arena");
    auto* held = new std::shared_ptr<Arena>(arena);
    nb::capsule owner(held, [](void* pointer) noexcept { delete static_cast<std::shared_ptr<Arena>*>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(arena->at(offset), {bytes}, owner));
}

}  // namespace

void bind_arena(nb::module_& module) {
    nb::class_<Arena>(module, "Arena")
        .def(nb::init<size_t>())
        .def(nb::init<int, size_t>())
        .def("allocate", &Arena::allocate)
        .def("release", &Arena::release)
        .def("view", &view_of)
        .def_prop_ro("descriptor", &Arena::descriptor)
        .def_prop_ro("size", &Arena::size)
        .def_prop_ro("in_use", &Arena::in_use);
    nb::class_<Attachment>(module, "Attachment")
        .def("__init__", [](Attachment* self, uint32_t rank, const std::vector<Place>& places) {
            std::vector<Attachment::Member> members;
            for (auto& [arena, post] : places) members.push_back({arena, post});
            if (rank >= members.size()) throw nb::index_error("the group has fewer ranks than that");
            new (self) Attachment(rank, std::move(members));
        });
    // True if no rank of a group uses the memory that the owner of `arena` has lent to it any longer. `arenas`: those
    // of its ranks.
    module.def("is_unused", [](const Arena& arena, size_t post, const std::vector<std::shared_ptr<Arena>>& arenas) {
        arena.need_here("is_unused");
        const Post& own = Attachment::post_of(arena, post);
        auto is_used = [&](bool by_owner) {
            for (uint32_t rank = 0; rank < arenas.size(); ++rank)
                if ((arenas[rank].get() == &arena) == by_owner && !Attachment::has_ended(own, rank, *arenas[rank]))
                    return true;
            return false;
        };
        // The owner first: while it still has the group, the system need not be asked about the others.
        return !is_used(true) && !is_used(false);
    });
    module.def("empty", &empty);
}

}  // namespace allfold
