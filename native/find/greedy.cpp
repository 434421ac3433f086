#include "find/greedy.hpp"

#include <algorithm>
#include <bit>

namespace allfold::find {

namespace {

// A hash of a number: the finalizer of SplitMix64.
uint64_t scramble(uint64_t x) {
    x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

class Spreading {
  public:
    Spreading(const Neighbours& neighbours, const std::vector<int32_t>& holder, uint64_t seed, const Stop& stop)
        : neighbours_(neighbours), stop_(stop), seed_(scramble(seed)), words_((holder.size() + 63) / 64),
          has_(neighbours.ranks * words_), holders_(holder.size(), 1),
          missing_(neighbours.ranks, static_cast<int64_t>(holder.size())), incoming_(neighbours.ranks),
          own_(neighbours.source.size()), left_(neighbours.capacity) {
        std::vector<int32_t> users(neighbours.capacity.size());
        for (int32_t link : neighbours.links) ++users[link];
        for (size_t pair = 0; pair < own_.size(); ++pair) {
            incoming_[neighbours.destination[pair]].push_back(static_cast<int32_t>(pair));
            own_[pair] = std::all_of(begin(pair), end(pair), [&](int32_t link) { return users[link] == 1; });
        }
        for (size_t chunk = 0; chunk < holder.size(); ++chunk) receive(holder[chunk], static_cast<int32_t>(chunk));
        for (int32_t rank = 0; rank < static_cast<int32_t>(neighbours.ranks); ++rank) order_.push_back(rank);
    }

    int64_t missing() const {
        int64_t all = 0;
        for (int64_t one : missing_) all += one;
        return all;
    }

    // One round. True if anything moved.
    bool round(Rounds& rounds) {
        ++round_;
        std::copy(neighbours_.capacity.begin(), neighbours_.capacity.end(), left_.begin());
        // Ranks that miss most choose first: where links are shared, the others get what is left.
        for (int32_t rank : order_) key_.push_back(scramble(seed_ ^ round_ << 32 ^ static_cast<uint64_t>(rank)));
        std::sort(order_.begin(), order_.end(), [&](int32_t one, int32_t other) {
            return missing_[one] != missing_[other] ? missing_[one] > missing_[other] : key_[one] < key_[other];
        });
        key_.clear();
        size_t first = rounds.chunk.size();
        for (int32_t rank : order_)
            if (missing_[rank]) {
                if (stop_()) throw Stopped{};
                choose(rank, rounds);
            }
        for (size_t move = first; move < rounds.chunk.size(); ++move) {
            receive(rounds.destination[move], rounds.chunk[move]);
            ++holders_[rounds.chunk[move]];
        }
        rounds.starts.push_back(static_cast<int64_t>(rounds.chunk.size()));
        return rounds.chunk.size() > first;
    }

  private:
    const int32_t* begin(size_t pair) const { return neighbours_.links.data() + neighbours_.offsets[pair]; }
    const int32_t* end(size_t pair) const { return neighbours_.links.data() + neighbours_.offsets[pair + 1]; }

    bool holds(int32_t rank, int32_t chunk) const { return has_[rank * words_ + chunk / 64] >> (chunk % 64) & 1; }

    void receive(int32_t rank, int32_t chunk) {
        has_[rank * words_ + chunk / 64] |= uint64_t{1} << (chunk % 64);
        --missing_[rank];
    }

    int32_t room(int32_t pair) const {
        int32_t least = INT32_MAX;
        for (const int32_t* link = begin(pair); link != end(pair); ++link) least = std::min(least, left_[*link]);
        return least;
    }

    void use(int32_t pair, int32_t chunks) {
        for (const int32_t* link = begin(pair); link != end(pair); ++link) left_[*link] -= chunks;
    }

    // The chunks that a rank takes in this round, and the ranks it takes them from: the rarest first. Over pairs that
    // share no link, a chunk is taken from another rank where that makes room for one more (augmenting paths), so that
    // as many chunks as possible arrive.
    void choose(int32_t rank, Rounds& rounds) {
        open_.clear();
        for (int32_t pair : incoming_[rank])
            if (room(pair) > 0) open_.push_back(pair);
        if (open_.empty()) return;
        candidates_.clear();
        uint64_t salt = seed_ ^ scramble(round_ << 32 ^ static_cast<uint64_t>(rank));
        for (size_t word = 0; word < words_; ++word) {
            uint64_t there = 0;
            for (int32_t pair : open_) there |= has_[neighbours_.source[pair] * words_ + word];
            for (there &= ~has_[rank * words_ + word]; there; there &= there - 1) {
                auto chunk = static_cast<int32_t>(word * 64 + std::countr_zero(there));
                uint64_t random = scramble(salt ^ static_cast<uint64_t>(chunk)) >> 40;
                candidates_.emplace_back(static_cast<uint64_t>(holders_[chunk]) << 24 | random, chunk);
            }
        }
        taken_.clear();
        size_t sorted = 0;
        for (size_t next = 0; next < candidates_.size() && !open_.empty(); ++next) {
            if (next == sorted) {  // only as many as needed are sorted
                sorted = std::min(candidates_.size(), std::max<size_t>(32, 4 * sorted));
                std::partial_sort(candidates_.begin() + next, candidates_.begin() + sorted, candidates_.end());
            }
            visited_.clear();
            if (place(candidates_[next].second))
                std::erase_if(open_, [&](int32_t pair) { return room(pair) <= 0 && !own_[pair]; });
            if (std::none_of(open_.begin(), open_.end(), [&](int32_t pair) { return room(pair) > 0; })) break;
        }
        for (auto [chunk, pair] : taken_) {
            rounds.chunk.push_back(chunk);
            rounds.source.push_back(neighbours_.source[pair]);
            rounds.destination.push_back(rank);
        }
    }

    // Find a rank to take the chunk from.
    bool place(int32_t chunk) {
        int32_t best = -1;
        for (int32_t pair : open_)
            if (holds(neighbours_.source[pair], chunk) && room(pair) > 0 && (best < 0 || room(pair) > room(best)))
                best = pair;
        if (best >= 0) {
            use(best, 1);
            taken_.emplace_back(chunk, best);
            return true;
        }
        for (int32_t pair : open_) {
            bool tried = std::find(visited_.begin(), visited_.end(), pair) != visited_.end();
            if (tried || !own_[pair] || !holds(neighbours_.source[pair], chunk)) continue;
            visited_.push_back(pair);
            for (size_t i = 0; i < taken_.size(); ++i) {
                if (taken_[i].second != pair) continue;
                int32_t other = taken_[i].first;
                if (!place(other)) continue;  // if another rank provides it, this is now its second entry
                taken_[i] = {chunk, pair};
                return true;
            }
        }
        return false;
    }

    const Neighbours& neighbours_;
    const Stop& stop_;
    uint64_t seed_, round_ = 0;
    size_t words_;
    std::vector<uint64_t> has_;  // a bit per rank and chunk
    std::vector<int32_t> holders_;
    std::vector<int64_t> missing_;
    std::vector<std::vector<int32_t>> incoming_;
    std::vector<char> own_;  // by pair: no other pair uses its links
    std::vector<int32_t> left_;
    std::vector<int32_t> order_;
    std::vector<uint64_t> key_;
    std::vector<int32_t> open_, visited_;
    std::vector<std::pair<uint64_t, int32_t>> candidates_;
    std::vector<std::pair<int32_t, int32_t>> taken_;  // chunk and pair
};

}  // namespace

Rounds spread(const Neighbours& neighbours, const std::vector<int32_t>& holder, uint64_t seed, const Stop& stop) {
    Rounds rounds;
    Spreading spreading(neighbours, holder, seed, stop);
    while (spreading.missing())
        if (!spreading.round(rounds)) return {};
    return rounds;
}

}  // namespace allfold::find
