#include "collectives/signature.hpp"

#include <cinttypes>
#include <cstdio>
#include <map>

#include "peers/blame.hpp"
#include "shared/text.hpp"

namespace allfold {

namespace {

// The arguments of a call in words: float64[3] sum root 0 by ring.
std::string arguments_of(const Signature& signature) {
    auto collective = static_cast<Collective>(signature.collective);
    std::string text;
    auto add = [&](const std::string& word) { text += (text.empty() ? "" : " ") + word; };
    if (facts_of(collective).carries_data)
        add(joined({name_of(static_cast<DType>(signature.dtype)), "[", signature.elements, "]"}));
    if (facts_of(collective).takes_op)
        add(signature.op == custom_op ? "custom operation " + name_in(signature.op_name)
                                      : std::string(name_of(static_cast<Op>(signature.op))));
    if (facts_of(collective).rooted) add(joined({"root ", signature.root}));
    if (signature.counts) add("in uneven parts");
    if (signature.algorithm[0]) add("by " + name_in(signature.algorithm));
    return text;
}

}  // namespace

std::string in_words(const Signature& signature) {
    return joined({collectives[signature.collective].name, "(", arguments_of(signature), ")"});
}

std::string difference(const std::vector<std::optional<Signature>>& calls) {
    // Digests distinguish two schedules with the same name, and also two operations, and lengths with the same sum.
    bool same_collective = true, same_schedules = true, same_operations = true, same_counts = true;
    const Signature* first = nullptr;
    std::map<std::string, const Signature*> described;
    for (const auto& call : calls) {
        if (!call) continue;
        if (!first) first = &*call;
        same_collective &= call->collective == first->collective;
        const Signature& alike = *described.emplace(in_words(*call), &*call).first->second;
        same_schedules &= alike.schedule == call->schedule;
        same_operations &= alike.custom == call->custom;
        same_counts &= alike.counts == call->counts;
    }
    if (!first) return "mismatched calls";
    // A barrier has no arguments but an algorithm.
    bool named = same_collective && facts_of(static_cast<Collective>(first->collective)).carries_data;
    std::vector<uint32_t> absent;
    std::vector<std::pair<std::string, std::vector<uint32_t>>> groups;
    for (uint32_t rank = 0; rank < calls.size(); ++rank) {
        if (!calls[rank]) {
            absent.push_back(rank);
            continue;
        }
        const Signature& call = *calls[rank];
        std::string what = named ? arguments_of(call) : in_words(call);
        auto add_digest = [&](const char* of, uint64_t digest) {
            char text[40];
            std::snprintf(text, sizeof text, " (%s %08" PRIx64 ")", of, digest & 0xffffffff);
            what += text;
        };
        if (!same_operations) add_digest("operation", call.custom);
        if (!same_counts) add_digest("counts", call.counts);
        if (!same_schedules) add_digest("schedule", call.schedule);
        auto known = std::find_if(groups.begin(), groups.end(), [&](auto& group) { return group.first == what; });
        if (known == groups.end())
            groups.push_back({what, {rank}});
        else
            known->second.push_back(rank);
    }
    std::string text = named ? collectives[first->collective].name + ": " : "mismatched calls: ";
    const char* verb = named ? " called it with " : " called ";
    for (const auto& [what, ranks] : groups) {
        text += joined({list_of(ranks), verb, what, ", "});
        if (named) verb = " with ";
    }
    if (groups.size() < 2) text += "but an earlier call differed, ";
    text += absent.empty() ? "" : list_of(absent) + " did not arrive, ";
    return text.substr(0, text.size() - 2);
}

}  // namespace allfold
