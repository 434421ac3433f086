// The programs of calls, by algorithm and size. Python compiles them when they are first needed.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "collectives/communicator.hpp"

namespace allfold {

namespace nb = nanobind;

struct Plan {  // the programs of one algorithm, by memory mode; compiled when first needed
    int collective;
    std::string algorithm;
    int root;
    uint32_t manner;  // how ordinary arrays are moved: a number for the compiler in Python
    std::shared_ptr<Program> programs[3];

    const Program* program(Memory memory) const { return programs[static_cast<size_t>(memory)].get(); }
};

// The plans of one communicator, which outlives them. Used with the GIL held.
class Plans {
  public:
    using Choices = std::vector<std::tuple<uint64_t, std::string, bool>>;
    using Ways = std::vector<std::tuple<uint64_t, bool, uint32_t>>;

    Plans(const Communicator& communicator, nb::object compile)
        : communicator_(communicator), compile_(std::move(compile)) {}

    // Both lists by the bytes of the whole buffer, the smallest first: the algorithms of calls that name none, and the
    // ways of calls that do. They are cut where either changes, so that a call looks for its size once.
    void choose(int collective, const Choices& choices, const Ways& ways);

    // Forgets the programs of an algorithm. Calls that were made keep theirs.
    void forget(int collective, const std::string& algorithm);
    // All programs of all communicators have become stale: names may now mean other algorithms.
    static void forget_all() { ++generation; }
    // A number that changes whenever that happens.
    static uint64_t names() { return generation; }

    // Gives a call, whose size is known, its programs. They live as long as the plan that is returned. `algorithm` is
    // null where the engine chooses.
    std::shared_ptr<Plan> set_programs(Call& call, const std::string* algorithm);

  private:
    struct Way {  // how ordinary arrays of up to `limit` bytes are moved
        uint64_t limit;
        bool fetches;  // out of their processes, where the system permits it
        uint32_t manner;
    };
    struct Choice {  // up to way.limit bytes, the engine chooses this algorithm by default
        Way way;
        std::string algorithm;
        bool shared;                               // access arrays directly if they are in shared memory
        std::vector<std::shared_ptr<Plan>> plans;  // by root, once it was used
    };

    std::shared_ptr<Plan> find(int collective, const std::string& algorithm, int root, uint32_t manner);
    const Program* compiled(Plan& plan, Memory memory);

    static inline uint64_t generation = 0;
    uint64_t known_generation_ = generation;
    const Communicator& communicator_;
    nb::object compile_;
    std::unordered_map<std::string, std::shared_ptr<Plan>> plans_;
    std::vector<Choice> choices_[most_collectives];
    std::vector<Way> ways_[most_collectives];
};

}  // namespace allfold
