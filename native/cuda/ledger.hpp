// What every rank has called on the GPU, for the others to compare: nothing in a stream can say that calls differ.
//
// Each rank writes into its own rows, in memory that all of them reach; row i has call i, i + kept, i + 2 kept, …
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace allfold {

class Ledger {
  public:
    static constexpr size_t kept = 1024;
    using Facts = std::array<int64_t, 6>;  // collective, elements, type, operation, root, where its arrays are

    struct Row {
        std::atomic<uint64_t> number;  // of the call, from 1; 0 while the row is written
        std::atomic<int64_t> facts[std::tuple_size_v<Facts>];
        uint64_t unused;
    };
    static_assert(sizeof(Row) == 64 && std::atomic<uint64_t>::is_always_lock_free);

    enum class State { agreed, waiting, differing };

    Ledger(uint32_t rank, std::vector<Row*> rows) : rank_(rank), rows_(std::move(rows)) {}

    uint64_t announce(const Facts& facts) {
        uint64_t number = made_.load(std::memory_order_relaxed) + 1;
        Row& row = rows_[rank_][(number - 1) % kept];
        row.number.store(0, std::memory_order_relaxed);
        // Whoever reads one of the new facts also sees that the row is being written (see `read`).
        std::atomic_thread_fence(std::memory_order_release);
        for (size_t i = 0; i < facts.size(); ++i) row.facts[i].store(facts[i], std::memory_order_relaxed);
        row.number.store(number, std::memory_order_release);  // the facts are there to be read
        made_.store(number, std::memory_order_relaxed);
        return number;
    }

    // Goes on where it stopped: until all calls made here are known to be the same on all ranks, or some rank has not
    // made the next one yet, or has made another one. One thread at a time.
    State compare() {
        for (uint64_t made = made_.load(std::memory_order_relaxed); agreed_ < made; ++agreed_) {
            Facts first{};
            bool is_first = true, differs = false;
            for (Row* rows : rows_) {
                Facts facts;
                Seen seen = read(rows, agreed_ + 1, facts);
                if (seen == Seen::nothing) return State::waiting;
                if (seen == Seen::later) continue;  // it is kept rows ahead, and has waited for all others since
                differs = differs || (!is_first && facts != first);
                if (is_first) first = facts;
                is_first = false;
            }
            if (differs) return State::differing;
        }
        return State::agreed;
    }

    uint64_t made() const { return made_.load(std::memory_order_relaxed); }
    uint64_t agreed() const { return agreed_; }

    // By rank: what it called as number `agreed() + 1`; nothing if that is not known (yet, or any more).
    std::vector<std::pair<bool, Facts>> next() const {
        std::vector<std::pair<bool, Facts>> found;
        for (Row* rows : rows_) {
            Facts facts{};
            Seen seen = read(rows, agreed_ + 1, facts);
            found.emplace_back(seen != Seen::nothing, facts);
        }
        return found;
    }

  private:
    enum class Seen { nothing, it, later };

    static Seen read(const Row* rows, uint64_t wanted, Facts& facts) {
        const Row& row = rows[(wanted - 1) % kept];
        uint64_t number = row.number.load(std::memory_order_acquire);
        if (number > wanted) return Seen::later;
        if (number < wanted) return Seen::nothing;
        for (size_t i = 0; i < facts.size(); ++i) facts[i] = row.facts[i].load(std::memory_order_relaxed);
        // If a fact was of a later call, the fence pairs with the one in `announce`, and the number has changed.
        std::atomic_thread_fence(std::memory_order_acquire);
        return row.number.load(std::memory_order_relaxed) == wanted ? Seen::it : Seen::later;
    }

    const uint32_t rank_;
    const std::vector<Row*> rows_;
    std::atomic<uint64_t> made_{0};
    uint64_t agreed_ = 0;
};

}  // namespace allfold
