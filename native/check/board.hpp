// The board of `allfold run --check`: memory that the ranks of a host share, on which each of them writes every
// collective call before it makes it. A rank compares its call with those of the others, and can wait until they have
// come.
//
// It knows nothing of a call but a hash, in which ranks must agree, and a text for people. Sentences are made in
// Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shared/wait.hpp"

namespace allfold::check {

enum class Standing : uint32_t { absent, here, ended };
enum class Outcome { agreed, differs, failed, waiting };

struct Head;
struct Seat;
struct GroupHead;
struct Lane;
struct Entry;

// The memory of one host. Its size is a limit, not a cost: pages exist only once they are touched.
class Board {
  public:
    static size_t bytes(uint32_t ranks);

    Board(int descriptor, uint32_t ranks, uint32_t rank);  // the descriptor stays the caller's
    ~Board();
    Board(const Board&) = delete;
    Board& operator=(const Board&) = delete;

    uint32_t ranks() const { return ranks_; }
    uint32_t rank() const { return rank_; }

    // The first failure of the run stays; false if there is one. It wakes every rank.
    bool fail(std::string_view words);
    std::optional<std::string> failure() const;
    bool has_failed() const;

    // A rank that has ended leaves its last words.
    void stand(Standing standing, std::string_view words);
    Standing standing(uint32_t rank) const;
    std::string last_words(uint32_t rank) const;
    int32_t process(uint32_t rank) const;
    // How the process of a rank has ended, in words; nothing while it is there.
    std::optional<std::string> fate(uint32_t rank) const;

    // Questions: where is your program? `watch` sleeps until somebody asks this rank, or the run has failed.
    void ask(uint32_t rank);
    bool is_asked() const;
    void answer(std::string_view words);
    std::string answer_of(uint32_t rank) const;  // "" until it has answered the last question
    void watch(Clock::duration at_most);
    void wake(uint32_t rank);

    struct Wait {
        uint32_t rank;
        uint64_t since;  // nanoseconds of the steady clock
        uint64_t group;
        uint64_t call;
    };
    std::vector<Wait> waits() const;
    void begin_wait(uint64_t group, uint64_t call);
    void end_wait();

    // Finds a group, or makes it; null if the board is full. All members give the same name and ranks.
    GroupHead* group(uint64_t id, std::string_view name, const std::vector<uint32_t>& ranks);
    GroupHead* find_group(uint64_t id) const;
    std::vector<uint64_t> groups() const;

    std::pair<uint32_t, uint64_t> write_text(std::string_view text);
    std::string text(uint32_t rank, uint32_t place, uint64_t hash) const;

  private:
    Seat& seat(uint32_t rank) const;
    char* texts(uint32_t rank) const;
    GroupHead* at(uint64_t offset) const { return reinterpret_cast<GroupHead*>(base_ + offset); }

    char* base_ = nullptr;
    size_t size_ = 0;
    uint32_t ranks_, rank_;
    uint32_t next_text_ = 0;
    std::unordered_map<uint64_t, uint32_t> known_texts_;
};

// One rank's view of a group. Without a place of its own in it, it can only read.
class Group {
  public:
    Group(Board& board, GroupHead* head, std::optional<uint32_t> own) : board_(board), head_(head), own_(own) {}

    // Writes the next call, and compares it with those of members that are there: `agreed` if all of them are,
    // `waiting` if some are still to come.
    Outcome enter(uint64_t hash, std::string_view text);
    // Waits until all members have made this call, or the time is up.
    Outcome meet(Clock::duration at_most);
    // True if all members have made this one of our calls, or a later one, and none of them another.
    bool has_agreed(uint64_t number) const;

    uint64_t id() const;
    std::string name() const;
    std::vector<uint32_t> ranks() const;
    uint64_t last(uint32_t member) const;
    struct Call {
        uint64_t number, hash, since;
        std::string text;
    };
    // The calls of a member that are still known, from the oldest to the last.
    std::vector<Call> calls(uint32_t member) const;

  private:
    Outcome compare(uint64_t number, uint64_t own) const;
    bool all_there(uint64_t number) const;

    Board& board_;
    GroupHead* head_;
    std::optional<uint32_t> own_;
    uint64_t hash_ = 0;
    Crowd crowd_;
};

// 64 bits of any bytes at the speed of memory. Each pair of words is multiplied with what came before it, so that equal
// changes in two places, and words that change places, do not cancel out.
uint64_t digest(const void* bytes, size_t count, uint64_t seed);

}  // namespace allfold::check
