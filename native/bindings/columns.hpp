// Conversion of arrays from and to Python, for the bindings of proofs and searches.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "shared/errors.hpp"
#include "shared/text.hpp"

namespace allfold {

namespace nb = nanobind;

template <typename Number>
using Column = nb::ndarray<Number, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = Column<const int64_t>;

// The arguments of a function, one after the other: each conversion to a type takes the next one. If nanobind
// converted them, each of these functions, with up to 13 arguments, would get code of its own: seconds of compiling.
class Arguments {
  public:
    Arguments(nb::args given, size_t wanted) : all_(std::move(given)) {
        if (all_.size() != wanted)
            throw nb::type_error(joined({"expected ", wanted, " arguments, got ", all_.size()}).c_str());
    }

    template <typename Wanted>
    operator Wanted() {
        Wanted value;
        if (at_ >= all_.size() || !nb::try_cast(all_[at_], value))
            throw nb::type_error(joined({"argument ", at_, " has the wrong type"}).c_str());
        ++at_;
        return value;
    }
    template <typename Wanted>
    Wanted or_none() {  // None stands for an empty one
        if (at_ >= all_.size() || !all_[at_].is_none()) return *this;
        ++at_;
        return Wanted();
    }

  private:
    nb::args all_;
    size_t at_ = 0;
};

inline nb::object array_at(void* data, nb::dlpack::dtype type, std::initializer_list<size_t> shape, nb::handle owner) {
    return nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.begin(), owner, nullptr, type));
}

// The numbers as an array of one dimension, or of that shape. Python sees them as `Seen`.
template <typename Made, typename Seen = Made>
nb::object array_of(std::vector<Made>&& made, std::initializer_list<size_t> shape = {}) {
    static_assert(sizeof(Made) == sizeof(Seen));
    auto* kept = new std::vector<Made>(std::move(made));
    nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<Made>*>(pointer); });
    if (shape.size()) return array_at(kept->data(), nb::dtype<Seen>(), shape, owner);
    return array_at(kept->data(), nb::dtype<Seen>(), {kept->size()}, owner);
}

inline void need(bool condition, const char* what) {
    if (!condition) throw EngineError(Fault::usage, what);
}

}  // namespace allfold
