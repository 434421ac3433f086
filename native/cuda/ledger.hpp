// The calls of every rank on the GPU, for the others to compare, and the last call for which the progress of a rank
// that gave up is valid. Nothing in a stream can report that calls differ, or that a rank's progress is no longer
// valid.
//
// Each rank writes its own sheet, in memory that all of them can reach; row i has call i, i + kept, i + 2 kept, …
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "shared/layout.hpp"

namespace allfold {

class Ledger {
  public:
    static constexpr size_t kept = 1024;
    // The signature of a call and the place of its arrays, as src/allfold/engines/signature.py packs them.
    using Packed = std::array<uint64_t, sizeof(Signature) / sizeof(uint64_t) + 1>;

    struct Row {
        std::atomic<uint64_t> number;  // of the call, from 1; 0 while the row is written
        std::atomic<uint64_t> words[std::tuple_size_v<Packed>];
        uint64_t unused[15 - std::tuple_size_v<Packed>];
    };
    struct Sheet {                      // begins as zeros
        std::atomic<uint64_t> gave_up;  // 0: it has not; otherwise 1 + the last call that has ended on all ranks
        std::atomic<uint64_t> blamed;   // the ranks that caused it: bit i is rank i
        uint64_t unused[14];
        Row rows[kept];
    };
    static_assert(sizeof(Row) == 128 && sizeof(Sheet) == 128 * (1 + kept));
    static_assert(std::atomic<uint64_t>::is_always_lock_free);

    enum class State { agreed, waiting, differing };
    enum class Seen { nothing, it, later };

    Ledger(uint32_t rank, std::vector<Sheet*> sheets) : rank_(rank), sheets_(std::move(sheets)) {}

    uint64_t announce(const Packed& call) {
        uint64_t number = made_.load(std::memory_order_relaxed) + 1;
        Row& row = sheets_[rank_]->rows[(number - 1) % kept];
        row.number.store(0, std::memory_order_relaxed);
        // A rank that reads one of the new words also sees that the row is being written (see `read`).
        std::atomic_thread_fence(std::memory_order_release);
        for (size_t i = 0; i < call.size(); ++i) row.words[i].store(call[i], std::memory_order_relaxed);
        row.number.store(number, std::memory_order_release);  // the words are there to be read
        made_.store(number, std::memory_order_relaxed);
        return number;
    }

    // Continues where it stopped, until all calls made here are known to be the same on all ranks, or some rank has not
    // made the next one yet, or two ranks have made different ones. One thread at a time.
    State compare() {
        for (uint64_t made = made_.load(std::memory_order_relaxed); agreed_ < made; ++agreed_) {
            Packed first{};
            bool is_first = true, differs = false, waits = false;
            for (const Sheet* sheet : sheets_) {
                Packed call;
                Seen seen = read(*sheet, agreed_ + 1, call);
                waits = waits || seen == Seen::nothing;
                if (seen != Seen::it)
                    continue;  // overwritten: it is `kept` calls ahead, and has waited for all others since
                differs = differs || (!is_first && call != first);
                if (is_first) first = call;
                is_first = false;
            }
            if (differs) return State::differing;
            if (waits) return State::waiting;
        }
        return State::agreed;
    }

    // This rank will give up because of these ranks.
    void blame(uint64_t ranks) {
        sheets_[rank_]->blamed.store(ranks, std::memory_order_relaxed);
        // Before every store that announces that it gave up (see `blamed`).
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }

    // The ranks that caused a rank to give up, which is known to have done so.
    uint64_t blamed(uint32_t rank) const {
        // The earlier read, that it gave up, stays before the read here: the fence pairs with that in `blame`.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        return sheets_[rank]->blamed.load(std::memory_order_relaxed);
    }

    // This rank will release its stream: the progress that it publishes from then on is valid only up to call
    // `covered`.
    void give_up(uint64_t covered) {
        sheets_[rank_]->gave_up.store(covered + 1, std::memory_order_release);  // why it gave up is there to be read
        // Before every store that releases the stream. A rank that finishes because of progress that the stream
        // publishes then, even through other streams, sees this afterwards (see `uncovered`).
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }

    // A rank that gave up and whose progress in a call is not valid. Asked when the call has ended here, or not begun:
    // a call is right only if its last access came before the answer "none".
    std::optional<uint32_t> uncovered(uint64_t number) const {
        // The earlier read, that the stream has reached the end of the call, stays before the read here.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
            uint64_t gave_up =
                sheets_[rank]->gave_up.load(std::memory_order_acquire);  // and why, which was written first
            if (rank != rank_ && gave_up && gave_up <= number) return rank;
        }
        return std::nullopt;
    }

    uint64_t made() const { return made_.load(std::memory_order_relaxed); }
    uint64_t agreed() const { return agreed_; }

    // By rank: its call number `agreed() + 1`, if it is there to be read (not yet made, or no longer kept).
    std::vector<std::pair<Seen, Packed>> next() const {
        std::vector<std::pair<Seen, Packed>> found;
        for (const Sheet* sheet : sheets_) {
            Packed call{};
            Seen seen = read(*sheet, agreed_ + 1, call);
            found.emplace_back(seen, call);
        }
        return found;
    }

  private:
    static Seen read(const Sheet& sheet, uint64_t wanted, Packed& call) {
        const Row& row = sheet.rows[(wanted - 1) % kept];
        uint64_t number = row.number.load(std::memory_order_acquire);
        if (number > wanted) return Seen::later;
        if (number < wanted) return Seen::nothing;
        for (size_t i = 0; i < call.size(); ++i) call[i] = row.words[i].load(std::memory_order_relaxed);
        // If a word was of a later call, the fence pairs with the one in `announce`, and the number has changed.
        std::atomic_thread_fence(std::memory_order_acquire);
        return row.number.load(std::memory_order_relaxed) == wanted ? Seen::it : Seen::later;
    }

    const uint32_t rank_;
    const std::vector<Sheet*> sheets_;
    std::atomic<uint64_t> made_{0};
    uint64_t agreed_ = 0;
};

}  // namespace allfold
