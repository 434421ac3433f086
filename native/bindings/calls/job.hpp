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

    // Sets everything in `call` but its timeout and its programs. `vouched`: see Array.
    void set(Communicator& communicator, int collective, nb::handle input, nb::handle output, nb::handle op, int root,
             nb::handle dtype, bool vouched, nb::handle lengths);
    // Once the call has its programs: where its chunks lie, if slices have lengths of their own.
    void set_parts();

    Call call{};
    Array input, output;
    std::string algorithm, op_name;
    std::shared_ptr<Plan> plan;
    // The lengths of the slices and their digest, if they have lengths of their own.
    std::vector<uint64_t> counts;
    uint32_t counts_digest = 0;
    std::optional<Parts> parts;
    nb::object function;    // a user-defined operation
    bool is_taken = false;  // the arrays can be used as they lie; whatever is wrong from then on is an error

  private:
    uint64_t uneven(const Communicator& communicator, bool has_input, bool has_output) const;
    uint64_t whole(Collective collective, uint64_t size, bool has_input, bool has_output) const;
    void set_op(Communicator& communicator, nb::handle op);
};

}  // namespace allfold
