// One call of a collective as Python makes it: its arguments, checked, and what must stay alive until it has ended.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/calls/plans.hpp"
#include "collectives/communicator.hpp"

namespace allfold {

struct Job {
    Job() = default;
    Job(const Job&) = delete;

    // The caller: this rank, of this many. User-defined operations check that `communicator` can still be used.
    struct Caller {
        Communicator& communicator;
        uint32_t rank, size;
    };

    // Takes the arrays of the call. `vouched`: see Array.
    void take(nb::handle input, nb::handle output, nb::handle dtype, bool vouched);
    // Sets everything in `call` but its timeout and its programs. `op`: its number, or a user-defined one.
    void set(const Caller& caller, int collective, nb::handle op, int root, nb::handle lengths);
    // The number of a built-in operation by its name; an invalid object if there is none.
    static nb::object number_of(nb::handle op);
    // Once the call has its programs: the places of its chunks, if slices differ in length.
    void set_parts();

    Call call{};
    std::optional<Array> input, output;
    std::optional<std::string> algorithm;  // none if the engine chooses it
    std::string op_name;
    std::shared_ptr<Plan> plan;
    // The lengths of the slices and their digest, if they differ in length.
    std::vector<uint64_t> counts;
    uint32_t counts_digest = 0;
    std::optional<Parts> parts;
    nb::object function;    // a user-defined operation
    bool is_taken = false;  // the arrays can be used directly; anything wrong from then on is an error

  private:
    uint64_t uneven(const Caller& caller) const;
    uint64_t whole(uint64_t size) const;
    void set_op(Communicator& communicator, nb::handle op);
};

}  // namespace allfold
