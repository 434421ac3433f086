#include "collectives/signature.hpp"

#include <cinttypes>
#include <cstdio>
#include <map>

#include "shared/blame.hpp"

namespace allfold {

namespace {

// As much of a name as fits, with a zero behind it, and no half of a character: texts of errors must be valid UTF-8.
template <size_t bytes>
void put_name(char (&field)[bytes], const char* name, size_t length) {
    if (length >= bytes)
        for (length = bytes - 1; length > 0 && (name[length] & 0xC0) == 0x80;) --length;
    std::memcpy(field, name, length);
}

// What a call is given: float64[3] sum root 0 by ring.
std::string arguments_of(const Signature& signature) {
    auto collective = static_cast<Collective>(signature.collective);
    std::string text;
    auto add = [&](const std::string& word) { text += (text.empty() ? "" : " ") + word; };
    if (facts_of(collective).carries_data)
        add(std::string(name_of(static_cast<DType>(signature.dtype))) + "[" + std::to_string(signature.elements) + "]");
    if (facts_of(collective).takes_op)
        add(signature.op == custom_op ? "custom operation " + name_in(signature.op_name)
                                      : std::string(name_of(static_cast<Op>(signature.op))));
    if (facts_of(collective).rooted) add("root " + std::to_string(signature.root));
    if (signature.counts) add("in uneven parts");
    if (signature.algorithm[0]) add("by " + name_in(signature.algorithm));
    return text;
}

}  // namespace

Signature signature_of(const Call& call) {
    Signature made;
    made.elements = call.elements;
    made.schedule = call.private_program->schedule;
    made.custom = call.op_digest;
    made.root = facts_of(call.collective).rooted ? call.root : 0;
    made.collective = static_cast<uint8_t>(call.collective);
    made.dtype = static_cast<uint8_t>(call.dtype);
    made.op = call.op;
    if (call.parts) made.counts = call.parts->digest;
    // Without the number that tells functions of the same name apart: ranks may count them differently.
    if (call.algorithm[0]) put_name(made.algorithm, call.algorithm, std::strcspn(call.algorithm, "#"));
    if (call.op_name[0]) put_name(made.op_name, call.op_name, std::strlen(call.op_name));
    return made;
}

std::string in_words(const Signature& signature) {
    return collectives[signature.collective].name + "(" + arguments_of(signature) + ")";
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
    // A barrier is given nothing, or an algorithm.
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
        text += list_of(ranks) + verb + what + ", ";
        if (named) verb = " with ";
    }
    if (groups.size() < 2) text += "but an earlier call differed, ";
    text += absent.empty() ? "" : list_of(absent) + " did not come, ";
    return text.substr(0, text.size() - 2);
}

}  // namespace allfold
