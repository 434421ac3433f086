#include "proof/happens_before.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "proof/in_order.hpp"
#include "shared/errors.hpp"

namespace allfold::proof {

namespace {

// Merges what another clock knows into this one.
template <typename Count>
void hear(Count* __restrict clock, const Count* __restrict heard, int64_t size) {
    for (int64_t i = 0; i < size; ++i) clock[i] = std::max(clock[i], heard[i]);
}

// One instruction.
struct Step {
    int32_t rank;
    int32_t done;  // how many instructions its rank has done after it
    int32_t round;
    int32_t waits;  // where its waits begin
    int32_t slot;   // where its clock is kept for the instructions that wait for it; -1 if there are none
};

// All instructions, round by round. The rows of one round are far apart in memory and are read several times, so their
// facts are copied here once, next to each other.
struct Plan {
    // A clock is kept until the last wait for it, of those that come at most `horizon` rounds later.
    Plan(const Programs& programs, const int64_t* when, int64_t horizon)
        : position(programs.rows()), steps(programs.rows() + 1), number(programs.waits()), awaited(programs.waits()),
          horizon(horizon) {
        const Order order = in_order(when, programs.rows());
        rounds = order.starts;
        for (int64_t at = 0; at < programs.rows(); ++at) position[order.items[at]] = static_cast<int32_t>(at);
        for (int64_t rank = 0; rank < programs.ranks; ++rank)
            for (int64_t row = programs.starts[rank]; row < programs.starts[rank + 1]; ++row) {
                Step& step = steps[position[row]];
                step.rank = static_cast<int32_t>(rank);
                step.done = static_cast<int32_t>(row - programs.starts[rank] + 1);
                step.round = static_cast<int32_t>(when[row]);
                step.waits = static_cast<int32_t>(programs.wait_starts[row + 1] - programs.wait_starts[row]);
            }
        int32_t waits = 0;
        for (Step& step : steps) waits += std::exchange(step.waits, waits);
        for (int64_t row = 0; row < programs.rows(); ++row) {
            int32_t to = steps[position[row]].waits;
            for (int64_t wait = programs.wait_starts[row]; wait < programs.wait_starts[row + 1]; ++wait, ++to) {
                number[to] = static_cast<int32_t>(wait);
                awaited[to] = position[programs.awaited(wait)];
                if (awaited[to] >= position[row])
                    throw EngineError(Fault::usage, "rounds in which an instruction runs before what it waits for");
            }
        }
        find_slots();
    }

    bool remembers(const Step& waiting, const Step& past) const { return waiting.round - past.round <= horizon; }

    std::vector<int32_t> position;         // by row: its step
    std::vector<Step> steps;               // and one more, where the waits end
    std::vector<int64_t> rounds;           // where each begins among the steps
    std::vector<int32_t> number, awaited;  // of every wait: its number, and the step that it is for
    int64_t slots = 0;
    int64_t horizon;

  private:
    void find_slots() {
        const size_t count = position.size();
        std::vector<int32_t> askers(count), free;
        for (size_t at = 0; at < count; ++at)
            for (int32_t wait = steps[at].waits; wait < steps[at + 1].waits; ++wait)
                askers[awaited[wait]] += remembers(steps[at], steps[awaited[wait]]);
        for (size_t at = 0; at < count; ++at) {
            for (int32_t wait = steps[at].waits; wait < steps[at + 1].waits; ++wait) {
                const Step& past = steps[awaited[wait]];
                if (remembers(steps[at], past) && --askers[awaited[wait]] == 0) free.push_back(past.slot);
            }
            steps[at].slot = -1;
            if (!askers[at]) continue;
            if (free.empty()) free.push_back(static_cast<int32_t>(slots++));
            steps[at].slot = free.back();
            free.pop_back();
        }
    }
};

template <typename Count>
std::vector<uint8_t> needed(const Programs& programs, const int64_t* when, int64_t horizon) {
    const int64_t ranks = programs.ranks;
    const Plan plan(programs, when, horizon);
    std::vector<uint8_t> result(programs.waits());
    std::vector<Count> known(ranks * ranks), kept(plan.slots * ranks);  // `known`: by rank, after its last step
    std::vector<int32_t> waits;
    for (size_t round = 0; round + 1 < plan.rounds.size(); ++round) {
        const int64_t begin = plan.rounds[round], end = plan.rounds[round + 1];
        const bool many = plan.steps[end].waits - plan.steps[begin].waits > end - begin;
        for (int64_t at = begin; at < end; ++at) {
            const Step& step = plan.steps[at];
            Count* clock = known.data() + step.rank * ranks;
            waits.resize(plan.steps[at + 1].waits - step.waits);
            std::iota(waits.begin(), waits.end(), step.waits);
            // In a round of many waits the latest come first: waits that they imply need not be looked at.
            if (many)
                std::stable_sort(waits.begin(), waits.end(), [&](int32_t one, int32_t other) {
                    return plan.steps[plan.awaited[one]].round > plan.steps[plan.awaited[other]].round;
                });
            for (int32_t wait : waits) {
                const Step& past = plan.steps[plan.awaited[wait]];
                if (clock[past.rank] >= past.done) continue;
                result[plan.number[wait]] = 1;
                clock[past.rank] = static_cast<Count>(past.done);
                if (plan.remembers(step, past)) hear(clock, kept.data() + past.slot * ranks, ranks);
            }
            clock[step.rank] = static_cast<Count>(step.done);
            if (step.slot >= 0) std::copy_n(clock, ranks, kept.data() + step.slot * ranks);
        }
    }
    return result;
}

// The pairs to check after each step, next to each other as well.
struct Pairs {
    struct Pair {
        int32_t rank, done;  // of the earlier instruction
        int32_t number;
    };

    Pairs(const Plan& plan, const int64_t* earlier, const int64_t* later, int64_t count)
        : starts(plan.steps.size()), pairs(count) {
        for (int64_t i = 0; i < count; ++i) ++starts[plan.position[later[i]] + 1];
        std::partial_sum(starts.begin(), starts.end(), starts.begin());
        std::vector<int64_t> to = starts;
        for (int64_t i = 0; i < count; ++i) {
            const Step& past = plan.steps[plan.position[earlier[i]]];
            pairs[to[plan.position[later[i]]]++] = {past.rank, past.done, static_cast<int32_t>(i)};
        }
    }

    std::vector<int64_t> starts;
    std::vector<Pair> pairs;
};

// Clocks of many ranks do not fit into the cache, so they are followed some columns at a time: what is known of one
// rank depends on nothing that is known of others.
constexpr int64_t columns_at_once = 128;

using First = std::pair<int32_t, int32_t>;  // the round and the number of a pair
constexpr First none{std::numeric_limits<int32_t>::max(), -1};

// The first pair that nothing orders, of those whose earlier instruction is of the ranks from `left` on.
template <typename Count>
First unordered(const Programs& programs, const Plan& plan, const Pairs& pairs, int64_t left) {
    const int64_t size = std::min(columns_at_once, programs.ranks - left);
    std::vector<Count> known(programs.ranks * size), kept(plan.slots * size);
    First first = none;
    for (int64_t at = 0; at < programs.rows(); ++at) {
        const Step& step = plan.steps[at];
        if (step.round > first.first) break;
        Count* clock = known.data() + step.rank * size;
        for (int32_t wait = step.waits; wait < plan.steps[at + 1].waits; ++wait)
            hear(clock, kept.data() + plan.steps[plan.awaited[wait]].slot * size, size);
        if (step.rank >= left && step.rank < left + size) clock[step.rank - left] = static_cast<Count>(step.done);
        if (step.slot >= 0) std::copy_n(clock, size, kept.data() + step.slot * size);
        for (int64_t i = pairs.starts[at]; i < pairs.starts[at + 1]; ++i) {
            const Pairs::Pair& pair = pairs.pairs[i];
            if (pair.rank >= left && pair.rank < left + size && clock[pair.rank - left] < pair.done)
                first = std::min(first, {step.round, pair.number});
        }
    }
    return first;
}

// Clocks are as narrow as possible: for a thousand ranks, most of the time goes into moving them.
bool fit_into_16_bits(const Programs& programs) {
    int64_t longest = 0;
    for (int64_t r = 0; r < programs.ranks; ++r)
        longest = std::max(longest, programs.starts[r + 1] - programs.starts[r]);
    return longest <= std::numeric_limits<int16_t>::max();
}

}  // namespace

void check_ranges(const Programs& programs) {
    bool right = programs.ranks >= 0 && programs.starts[0] == 0 && programs.wait_starts[0] == 0 &&
                 std::max(programs.rows(), programs.waits()) < std::numeric_limits<int32_t>::max();
    for (int64_t r = 0; right && r < programs.ranks; ++r) right = programs.starts[r] <= programs.starts[r + 1];
    for (int64_t row = 0; right && row < programs.rows(); ++row)
        right = programs.wait_starts[row] <= programs.wait_starts[row + 1];
    for (int64_t wait = 0; right && wait < programs.waits(); ++wait) {
        const int64_t peer = programs.wait_rank[wait], count = programs.wait_count[wait];
        right = peer >= 0 && peer < programs.ranks && count >= 1 &&
                count <= programs.starts[peer + 1] - programs.starts[peer];
    }
    if (!right) throw EngineError(Fault::usage, "waits for instructions that do not exist");
}

std::vector<int64_t> rounds(const Programs& programs) {
    std::vector<int64_t> when(programs.rows(), -1);
    std::vector<int64_t> next(programs.starts, programs.starts + programs.ranks);
    std::vector<int64_t> unmet(programs.ranks);                 // by rank that waits: for which row
    std::vector<std::vector<int64_t>> waiting(programs.ranks);  // by rank that is waited for: who waits
    std::vector<int64_t> ready(programs.ranks);
    std::iota(ready.rbegin(), ready.rend(), 0);
    while (!ready.empty()) {
        const int64_t rank = ready.back();
        ready.pop_back();
        bool blocked = false;
        for (int64_t& row = next[rank]; row < programs.starts[rank + 1] && !blocked; row += !blocked) {
            int64_t latest = row > programs.starts[rank] ? when[row - 1] : -1;
            for (int64_t wait = programs.wait_starts[row]; wait < programs.wait_starts[row + 1] && !blocked; ++wait) {
                const int64_t awaited = programs.awaited(wait);
                latest = std::max(latest, when[awaited]);
                blocked = when[awaited] < 0;
                if (blocked) {
                    unmet[rank] = awaited;
                    waiting[programs.wait_rank[wait]].push_back(rank);
                }
            }
            if (!blocked) when[row] = latest + 1;
        }
        auto can_go_on = [&](int64_t peer) { return when[unmet[peer]] >= 0; };
        auto met = std::partition(waiting[rank].begin(), waiting[rank].end(), std::not_fn(can_go_on));
        ready.insert(ready.end(), met, waiting[rank].end());
        waiting[rank].erase(met, waiting[rank].end());
    }
    return when;
}

std::vector<uint8_t> needed_waits(const Programs& programs, const int64_t* when, int64_t horizon) {
    return fit_into_16_bits(programs) ? needed<int16_t>(programs, when, horizon)
                                      : needed<int32_t>(programs, when, horizon);
}

int64_t first_unordered(const Programs& programs, const int64_t* when, const int64_t* earlier, const int64_t* later,
                        int64_t count) {
    const Plan plan(programs, when, std::numeric_limits<int64_t>::max());
    const Pairs pairs(plan, earlier, later, count);
    const bool narrow = fit_into_16_bits(programs);
    std::vector<First> firsts((programs.ranks + columns_at_once - 1) / columns_at_once, none);
    std::atomic<size_t> next = 0;
    auto follow = [&] {
        for (size_t block; (block = next.fetch_add(1)) < firsts.size();) {
            const int64_t left = static_cast<int64_t>(block) * columns_at_once;
            firsts[block] = narrow ? unordered<int16_t>(programs, plan, pairs, left)
                                   : unordered<int32_t>(programs, plan, pairs, left);
        }
    };
    std::vector<std::future<void>> others;  // a few: they share a cache
    for (size_t i = 1; i < std::min<size_t>({firsts.size(), std::thread::hardware_concurrency(), 4}); ++i)
        others.push_back(std::async(std::launch::async, follow));
    follow();
    for (std::future<void>& other : others) other.get();
    return firsts.empty() ? none.second : std::min_element(firsts.begin(), firsts.end())->second;
}

}  // namespace allfold::proof
