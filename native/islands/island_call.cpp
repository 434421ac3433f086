#include "islands/island_call.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "collectives/signature.hpp"
#include "shared/errors.hpp"

namespace allfold {

namespace {

Call barrier_inside() {
    static const auto barrier =
        std::find_if(collectives.begin(), collectives.end(), [](const auto& one) { return one.name == "barrier"; });
    if (barrier == collectives.end()) throw EngineError(Fault::usage, "a collective of an island does not exist");
    Call call{};
    call.collective = static_cast<Collective>(barrier - collectives.begin());
    call.dtype = DType::uint8;
    call.algorithm = "";
    call.timeout = island_forever;
    return call;
}

uint64_t last_segment(const CallPlan::Stage& stage) {
    return stage.elements ? (stage.elements - 1) % stage.segment + 1 : 0;
}

}  // namespace

IslandCall::IslandCall(const CallPlan& plan, PeerLinks& links, const MessageArrays& arrays, DType dtype, Op op,
                       const char* said, Waiting waiting)
    : plan_(plan), links_(links), arrays_(arrays), dtype_(dtype), op_(op),
      divisor_(op == Op::average ? static_cast<uint32_t>(links.local.size()) : 1), said_(said),
      waiting_(std::move(waiting)) {
    // Where data are sent with the headers, a rank that needs nothing from another one goes on, and may hear of a
    // difference in a later call. Other calls begin when all ranks of the island have compared them.
    if (links.island->size() > 1 && !plan.along) barrier_ = barrier_inside();
    for (const CallPlan::Stage& stage : plan.stages) {
        auto add = [&](uint64_t elements) {
            auto calls = MessageRun::calls_inside(*stage.program, links, division(stage, elements), dtype, op);
            kinds_.push_back({elements, std::move(calls)});
        };
        add(plan.along ? elements_along() : last_segment(stage));
        if (!plan.along) add(std::min(stage.elements, stage.segment));
    }
}

std::vector<Call*> IslandCall::kinds() {
    std::vector<Call*> all;
    if (barrier_.algorithm) all.push_back(&barrier_);
    for (Kind& kind : kinds_)
        for (Call& call : kind.calls) all.push_back(&call);
    return all;
}

void IslandCall::perform() {
    // The island's collectives compare this call. After an error nobody uses the island again.
    links_.island->part_of(whole_call(said_));
    perform_parts();
    links_.island->part_of(std::nullopt);
}

void IslandCall::perform_parts() {
    if (plan_.along) {
        const CallPlan::Stage& stage = plan_.stages.front();
        if (!plan_.work.empty()) std::tie(arrays_.work, arrays_.work_bytes) = plan_.work.front();
        MessageRun run(*stage.program, links_, division(stage, elements_along()), arrays_, dtype_, op_, divisor_, tag(),
                       waiting_, std::move(kinds_.front().calls));
        run.along(said_);
    } else {
        if (barrier_.algorithm) links_.island->run(barrier_, nullptr, waiting_.interrupted);
        links_.send_fronts(said_, waiting_);
        const Kind* kinds = kinds_.data();
        for (const CallPlan::Stage& stage : plan_.stages) {
            perform(stage, kinds);
            kinds += 2;
        }
    }
    if (links_.fronts) links_.fronts->refill();
}

// Each segment is finished when `ahead` more have begun. This order was proved: see check_segments in
// programs/check_messages.py.
void IslandCall::perform(const CallPlan::Stage& stage, const Kind* kinds) {
    const uint64_t count = std::max<uint64_t>(1, (stage.elements + stage.segment - 1) / stage.segment);
    const uint64_t late = stage.ahead < 0 ? count : static_cast<uint64_t>(stage.ahead);
    const size_t element = size_of(dtype_);
    std::deque<MessageRun> runs;
    for (uint64_t number = 0; number < count; ++number) {
        const Kind& kind = kinds[number + 1 == count ? 0 : 1];
        MessageArrays part = arrays_;
        if (plan_.stages.size() > 1 || count > 1) {  // then there is one array, used in place
            part.output = arrays_.output ? arrays_.output + (stage.first + number * stage.segment) * element : nullptr;
            part.output_elements = kind.elements;
        }
        if (!plan_.work.empty()) std::tie(part.work, part.work_bytes) = plan_.work[number % plan_.work.size()];
        // A run is created when it begins and destroyed when it is finished, so that its messages reuse memory that is
        // still in the caches.
        MessageRun& run = runs.emplace_back(*stage.program, links_, division(stage, kind.elements), part, dtype_, op_,
                                            divisor_, tag(), waiting_, kind.calls);
        stage.starts ? run.start() : run.begin();
        if (stage.ahead >= 0) compare();
        if (number >= late) {
            runs.front().finish();
            runs.pop_front();
        }
    }
    compare();
    while (!runs.empty()) {
        runs.front().finish();
        runs.pop_front();
    }
}

uint64_t IslandCall::elements_along() const {
    const CallPlan::Stage& stage = plan_.stages.front();
    return stage.elements ? stage.elements : arrays_.output_elements;
}

ChunkDivision IslandCall::division(const CallPlan::Stage& stage, uint64_t elements) const {
    if (!plan_.inputs.empty())
        return ChunkDivision(plan_.inputs, plan_.outputs, stage.program->chunks, stage.program->rank);
    return ChunkDivision(elements, stage.program->chunks);
}

// The leaders compare their calls, once. In a call with a root, a rank may have nothing else to wait for; it too must
// find out if ranks make different calls.
void IslandCall::compare() {
    if (is_compared_) return;
    is_compared_ = true;
    if (links_.fronts)
        for (int peer : links_.fronts->peers()) {
            const char* came = links_.receive_front(peer, 0, waiting_);
            links_.fronts->check_same(came, said_, peer);
        }
    if (barrier_.algorithm && plan_.waits_for_leader) links_.island->run(barrier_, nullptr, waiting_.interrupted);
}

// See `of_call` in fabrics/tags.py.
uint32_t IslandCall::tag() {
    uint64_t digest, number;
    std::memcpy(&digest, said_, sizeof digest);
    std::memcpy(&number, said_ + sizeof digest, sizeof number);
    const uint64_t calls = links_.tags.calls, call = (digest % calls + number % calls) % calls;
    return static_cast<uint32_t>(call * links_.tags.indices + tags_++ % links_.tags.indices);
}

}  // namespace allfold
