#include "bindings/calls/plans.hpp"

#include <algorithm>

#include "bindings/calls/program.hpp"
#include "bindings/gil.hpp"
#include "shared/text.hpp"

namespace allfold {

void Plans::choose(int collective, const Choices& choices, const Ways& ways) {
    if (choices.empty() || ways.empty() || std::get<0>(choices.back()) != std::get<0>(ways.back()))
        throw nb::value_error("choices and ways must end at the same size");
    ways_[collective].clear();
    for (auto& [limit, fetches, manner] : ways) ways_[collective].push_back({limit, fetches, manner});
    choices_[collective].clear();
    auto way = ways_[collective].begin();
    for (auto& [limit, name, shared] : choices)
        while (way != ways_[collective].end()) {
            Way here{std::min(limit, way->limit), way->fetches, way->manner};
            choices_[collective].push_back(
                {here, name, shared, std::vector<std::shared_ptr<Plan>>(communicator_.size())});
            if (way->limit <= limit) ++way;
            if (here.limit == limit) break;
        }
}

void Plans::forget(int collective, const std::string& algorithm) {
    std::erase_if(plans_, [&](const auto& known) {
        return known.second->collective == collective && known.second->algorithm == algorithm;
    });
}

std::shared_ptr<Plan> Plans::set_programs(Call& call, const std::string* algorithm) {
    auto collective = static_cast<int>(call.collective);
    size_t bytes = call.elements * size_of(call.dtype);
    bool reach = true, fetches = false;
    std::shared_ptr<Plan> plan;
    if (!algorithm) {
        for (Choice& choice : choices_[collective]) {
            if (bytes > choice.way.limit) continue;
            reach = choice.shared;
            fetches = choice.way.fetches;
            auto& known = choice.plans[call.root];
            if (!known) known = find(collective, choice.algorithm, call.root, choice.way.manner);
            plan = known;
            break;
        }
    } else {
        for (const Way& way : ways_[collective]) {
            if (bytes > way.limit) continue;
            fetches = way.fetches;
            plan = find(collective, *algorithm, call.root, way.manner);
            break;
        }
    }
    call.private_program = compiled(*plan, Memory::private_);
    call.shared_program = reach ? compiled(*plan, Memory::shared) : nullptr;
    call.readable_program = reach && fetches ? compiled(*plan, Memory::readable) : nullptr;
    return plan;
}

std::shared_ptr<Plan> Plans::find(int collective, const std::string& algorithm, int root, uint32_t manner) {
    if (known_generation_ != generation) {
        known_generation_ = generation;
        plans_.clear();
        for (auto& choices : choices_)
            for (Choice& choice : choices) choice.plans.assign(communicator_.size(), nullptr);
    }
    auto& known = plans_[joined({collective, "/", algorithm, "/", root, "/", manner})];
    if (!known) known = std::make_shared<Plan>(collective, algorithm, root, manner);
    return known;
}

const Program* Plans::compiled(Plan& plan, Memory memory) {
    if (auto* known = plan.program(memory)) return known;
    auto number = static_cast<size_t>(memory);
    // In a forked child, Python's own locks may be held by threads of its parent.
    communicator_.check_here("a collective");
    auto made = make_program(
        nb::cast<nb::dict>(call_python(compile_, plan.collective, plan.algorithm, plan.root, number, plan.manner)));
    if (made->rank != communicator_.rank() || made->ranks != communicator_.size() || made->memory != memory)
        throw nb::value_error("the program is another rank's");
    // Compiling runs Python, so another thread may meanwhile have compiled the same program and be running it.
    if (!plan.programs[number]) plan.programs[number] = made;
    return plan.program(memory);
}

}  // namespace allfold
