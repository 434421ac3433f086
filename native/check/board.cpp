#include "check/board.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "peers/peers.hpp"
#include "shared/arena.hpp"
#include "shared/errors.hpp"
#include "shared/text.hpp"

namespace allfold::check {

namespace {

constexpr uint32_t ring_calls = 128;  // of every rank in every group
constexpr uint32_t most_groups = 4096;
constexpr size_t text_bytes = size_t{1} << 18;  // per rank
constexpr size_t longest_text = 4000, longest_words = 8000, longest_answer = 1000, longest_name = 240;
constexpr size_t group_bytes = size_t{1} << 26;
constexpr size_t group_bytes_per_rank = size_t{1} << 22;
constexpr size_t board_line = 64;
constexpr std::chrono::seconds board_longest_write{1};

uint64_t board_nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

size_t board_aligned(size_t bytes) { return (bytes + board_line - 1) / board_line * board_line; }

// Texts that another process reads while this one may write them: bytes are copied one by one, relaxed. Whoever reads
// checks a hash, or a flag that was published after the text.
void copy_in(std::atomic<char>* to, std::string_view from) {
    for (size_t place = 0; place < from.size(); ++place) to[place].store(from[place], std::memory_order_relaxed);
}

std::string copy_out(const std::atomic<char>* from, size_t count) {
    std::string text(count, ' ');
    for (size_t place = 0; place < count; ++place) text[place] = from[place].load(std::memory_order_relaxed);
    return text;
}

}  // namespace

template <size_t most>
struct Text {
    std::atomic<uint32_t> length;
    std::atomic<char> letters[most];

    void write(std::string_view words) {
        words = words.substr(0, most);
        copy_in(letters, words);
        length.store(static_cast<uint32_t>(words.size()), std::memory_order_release);
    }
    std::string read() const {
        return copy_out(letters, std::min<size_t>(most, length.load(std::memory_order_acquire)));
    }
};

struct Head {
    std::atomic<uint64_t> groups_used;  // bytes
    std::atomic<uint32_t> failing;      // the first who fails wins
    std::atomic<uint32_t> failed;       // its words are there
    Text<longest_words> failure;
    struct Place {
        std::atomic<uint64_t> id;
        std::atomic<uint64_t> offset;
    };
    Place groups[most_groups];
};

struct alignas(board_line) Seat {
    std::atomic<int32_t> process;
    std::atomic<Standing> standing;
    std::atomic<uint64_t> bell;
    std::atomic<uint64_t> asked, answered;
    alignas(board_line) std::atomic<uint64_t> since;  // 0: it does not wait
    std::atomic<uint64_t> group, call;
    Text<longest_answer> answer;
    Text<longest_answer> words;
};

struct alignas(board_line) Entry {
    std::atomic<uint64_t> number;
    std::atomic<uint64_t> hash;
    std::atomic<uint64_t> text_hash;
    std::atomic<uint64_t> since;
    std::atomic<uint32_t> text;
};

struct alignas(board_line) Lane {
    std::atomic<uint64_t> last;
    std::atomic<uint32_t> sleepers;
    std::atomic<int32_t> core;
    alignas(board_line) Entry entries[ring_calls];
};

struct alignas(board_line) GroupHead {
    uint64_t id;
    uint32_t size;
    Text<longest_name> name;

    uint32_t* ranks() { return reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(this) + sizeof(GroupHead)); }
    Lane& lane(uint32_t member) {
        auto* lanes = reinterpret_cast<char*>(this) + sizeof(GroupHead) + board_aligned(size * sizeof(uint32_t));
        return reinterpret_cast<Lane*>(lanes)[member];
    }
    static size_t bytes(size_t size) {
        return sizeof(GroupHead) + board_aligned(size * sizeof(uint32_t)) + size * sizeof(Lane);
    }
};

static size_t seats_at() { return board_aligned(sizeof(Head)); }
static size_t texts_at(uint32_t ranks) { return seats_at() + ranks * sizeof(Seat); }
static size_t groups_at(uint32_t ranks) { return whole_pages(texts_at(ranks) + ranks * text_bytes); }

size_t Board::bytes(uint32_t ranks) { return groups_at(ranks) + group_bytes + ranks * group_bytes_per_rank; }

Board::Board(int descriptor, uint32_t ranks, uint32_t rank) : size_(bytes(ranks)), ranks_(ranks), rank_(rank) {
    void* mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    if (mapped == MAP_FAILED)
        throw EngineError(Fault::memory,
                          joined({"check: cannot map ", size_, " bytes of shared memory: ", strerror(errno)}));
    base_ = static_cast<char*>(mapped);
    seat(rank_).process.store(getpid(), std::memory_order_relaxed);
    seat(rank_).standing.store(Standing::here, std::memory_order_release);
}

Board::~Board() { munmap(base_, size_); }

Seat& Board::seat(uint32_t rank) const { return reinterpret_cast<Seat*>(base_ + seats_at())[rank]; }
char* Board::texts(uint32_t rank) const { return base_ + texts_at(ranks_) + rank * text_bytes; }

static Head& head_of(char* base) { return *reinterpret_cast<Head*>(base); }

bool Board::fail(std::string_view words) {
    Head& head = head_of(base_);
    if (head.failing.exchange(1, std::memory_order_acq_rel) != 0) {
        // The words of the first one are there when this returns; unless it was stopped or killed while it wrote them.
        for (auto end = Clock::now() + board_longest_write; !has_failed() && Clock::now() < end;)
            std::this_thread::yield();
        if (has_failed()) return false;
    }
    head.failure.write(words);
    head.failed.store(1, std::memory_order_release);
    for (uint32_t rank = 0; rank < ranks_; ++rank) wake(rank);
    return true;
}

// Acquire: the words were written before.
bool Board::has_failed() const { return head_of(base_).failed.load(std::memory_order_acquire) != 0; }

std::optional<std::string> Board::failure() const {
    if (!has_failed()) return std::nullopt;
    return head_of(base_).failure.read();
}

void Board::stand(Standing standing, std::string_view words) {
    seat(rank_).words.write(words);
    seat(rank_).standing.store(standing, std::memory_order_release);
}

Standing Board::standing(uint32_t rank) const { return seat(rank).standing.load(std::memory_order_acquire); }
std::string Board::last_words(uint32_t rank) const { return seat(rank).words.read(); }
int32_t Board::process(uint32_t rank) const { return seat(rank).process.load(std::memory_order_relaxed); }

std::optional<std::string> Board::fate(uint32_t rank) const {
    std::string how;
    int32_t process = this->process(rank);
    if (process == 0 || life_of_process(process, &how) == Life::alive) return std::nullopt;
    return joined({"died (process ", process, how, ")"});
}

void Board::wake(uint32_t rank) {
    seat(rank).bell.fetch_add(1, std::memory_order_acq_rel);
    wake_all(seat(rank).bell);
}

void Board::ask(uint32_t rank) {
    seat(rank).asked.fetch_add(1, std::memory_order_acq_rel);
    wake(rank);
}

bool Board::is_asked() const {
    const Seat& own = seat(rank_);
    return own.asked.load(std::memory_order_acquire) != own.answered.load(std::memory_order_relaxed);
}

void Board::answer(std::string_view words) {
    Seat& own = seat(rank_);
    uint64_t question = own.asked.load(std::memory_order_acquire);
    own.answer.write(words);
    own.answered.store(question, std::memory_order_release);
}

std::string Board::answer_of(uint32_t rank) const {
    const Seat& other = seat(rank);
    if (other.answered.load(std::memory_order_acquire) != other.asked.load(std::memory_order_relaxed)) return "";
    return other.answer.read();
}

void Board::watch(Clock::duration at_most) {
    std::atomic<uint64_t>& bell = seat(rank_).bell;
    uint64_t seen = bell.load(std::memory_order_acquire);
    if (is_asked() || has_failed()) return;
    sleep_on(bell, seen, at_most);
}

std::vector<Board::Wait> Board::waits() const {
    std::vector<Wait> found;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
        const Seat& one = seat(rank);
        uint64_t since = one.since.load(std::memory_order_acquire);
        Wait wait{rank, since, one.group.load(std::memory_order_relaxed), one.call.load(std::memory_order_relaxed)};
        if (since != 0) found.push_back(wait);
    }
    return found;
}

void Board::begin_wait(uint64_t group, uint64_t call) {
    Seat& own = seat(rank_);
    if (own.since.load(std::memory_order_relaxed) != 0 && own.group.load(std::memory_order_relaxed) == group &&
        own.call.load(std::memory_order_relaxed) == call)
        return;  // it has waited for a while
    own.group.store(group, std::memory_order_relaxed);
    own.call.store(call, std::memory_order_relaxed);
    own.since.store(board_nanoseconds(), std::memory_order_release);
}

void Board::end_wait() { seat(rank_).since.store(0, std::memory_order_release); }

GroupHead* Board::find_group(uint64_t id) const {
    Head& head = head_of(base_);
    for (uint32_t probe = 0; probe < most_groups; ++probe) {
        Head::Place& place = head.groups[(id + probe) % most_groups];
        uint64_t found = place.id.load(std::memory_order_acquire);
        if (found == 0) return nullptr;
        if (found != id) continue;
        uint64_t offset = place.offset.load(std::memory_order_acquire);
        return offset ? at(offset) : nullptr;
    }
    return nullptr;
}

GroupHead* Board::group(uint64_t id, std::string_view name, const std::vector<uint32_t>& ranks) {
    Head& head = head_of(base_);
    for (uint32_t probe = 0; probe < most_groups; ++probe) {
        Head::Place& place = head.groups[(id + probe) % most_groups];
        uint64_t found = 0;
        if (!place.id.compare_exchange_strong(found, id, std::memory_order_acq_rel) && found != id) continue;
        if (uint64_t offset = place.offset.load(std::memory_order_acquire)) return at(offset);
        // Members may get here at the same time. Each makes the group, and the first to publish it wins; what the
        // others have made is lost, and no rank has to wait for another that may be gone.
        size_t needed = GroupHead::bytes(ranks.size());
        uint64_t used = head.groups_used.fetch_add(needed, std::memory_order_relaxed);
        if (groups_at(ranks_) + used + needed > size_) return nullptr;
        uint64_t offset = groups_at(ranks_) + used;
        GroupHead* made = at(offset);
        made->id = id;
        made->size = static_cast<uint32_t>(ranks.size());
        made->name.write(name);
        std::copy(ranks.begin(), ranks.end(), made->ranks());
        uint64_t none = 0;
        // Release: what was written above is visible to those who find the offset.
        if (!place.offset.compare_exchange_strong(none, offset, std::memory_order_acq_rel)) offset = none;
        return at(offset);
    }
    return nullptr;
}

std::vector<uint64_t> Board::groups() const {
    std::vector<uint64_t> found;
    for (Head::Place& place : head_of(base_).groups)
        if (place.offset.load(std::memory_order_acquire) != 0)
            found.push_back(place.id.load(std::memory_order_relaxed));
    return found;
}

std::pair<uint32_t, uint64_t> Board::write_text(std::string_view text) {
    text = text.substr(0, longest_text);
    uint64_t hash = digest(text.data(), text.size(), 0);
    auto [known, is_new] = known_texts_.try_emplace(hash, next_text_);
    if (!is_new) return {known->second, hash};
    if (next_text_ + sizeof(uint32_t) + text.size() > text_bytes) {  // the oldest are overwritten
        known_texts_.clear();
        next_text_ = 0;
        known_texts_.emplace(hash, 0);
    }
    uint32_t place = next_text_;
    auto* area = reinterpret_cast<std::atomic<char>*>(texts(rank_) + place);
    uint32_t length = static_cast<uint32_t>(text.size());
    char bytes[sizeof length];
    std::memcpy(bytes, &length, sizeof length);
    copy_in(area, {bytes, sizeof length});
    copy_in(area + sizeof length, text);
    next_text_ += sizeof length + length;
    return {place, hash};
}

std::string Board::text(uint32_t rank, uint32_t place, uint64_t hash) const {
    if (place + sizeof(uint32_t) > text_bytes) return "";
    auto* area = reinterpret_cast<const std::atomic<char>*>(texts(rank) + place);
    uint32_t length;
    std::memcpy(&length, copy_out(area, sizeof length).data(), sizeof length);
    if (length > longest_text || place + sizeof length + length > text_bytes) return "";
    std::string text = copy_out(area + sizeof length, length);
    return digest(text.data(), text.size(), 0) == hash ? text : "";
}

uint64_t Group::id() const { return head_->id; }
std::string Group::name() const { return head_->name.read(); }
std::vector<uint32_t> Group::ranks() const { return {head_->ranks(), head_->ranks() + head_->size}; }
// Acquire: the entry of the call was written before.
uint64_t Group::last(uint32_t member) const { return head_->lane(member).last.load(std::memory_order_acquire); }

Outcome Group::enter(uint64_t hash, std::string_view text) {
    auto [place, text_hash] = board_.write_text(text);
    Lane& own = head_->lane(*own_);
    uint64_t number = own.last.load(std::memory_order_relaxed) + 1;
    Entry& entry = own.entries[number % ring_calls];
    entry.number.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // nobody sees new contents under the old number
    entry.hash.store(hash, std::memory_order_relaxed);
    entry.text_hash.store(text_hash, std::memory_order_relaxed);
    entry.text.store(place, std::memory_order_relaxed);
    entry.since.store(board_nanoseconds(), std::memory_order_relaxed);
    entry.number.store(number, std::memory_order_release);
    own.core.store(current_core(), std::memory_order_relaxed);
    hash_ = hash;
    // Its fence orders our store before our look at the others: of two ranks that come at the same time, one sees the
    // other.
    publish(own.last, own.sleepers, number);
    if (board_.has_failed()) return Outcome::failed;
    const bool all = all_there(number);  // first: the calls of those who are there are compared below
    const Outcome outcome = compare(number, hash_);
    return outcome == Outcome::agreed && !all ? Outcome::waiting : outcome;
}

Outcome Group::compare(uint64_t number, uint64_t own) const {
    for (uint32_t member = 0; member < head_->size; ++member) {
        Entry& entry = head_->lane(member).entries[number % ring_calls];
        if (entry.number.load(std::memory_order_acquire) != number) continue;
        uint64_t hash = entry.hash.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);
        if (entry.number.load(std::memory_order_relaxed) == number && hash != own) return Outcome::differs;
    }
    return Outcome::agreed;
}

bool Group::all_there(uint64_t number) const {
    for (uint32_t member = 0; member < head_->size; ++member)
        if (last(member) < number) return false;
    return true;
}

bool Group::has_agreed(uint64_t number) const {
    if (!all_there(number)) return false;
    const Entry& own = head_->lane(*own_).entries[number % ring_calls];
    bool is_known = own.number.load(std::memory_order_relaxed) == number;
    return !is_known || compare(number, own.hash.load(std::memory_order_relaxed)) == Outcome::agreed;
}

Outcome Group::meet(Clock::duration at_most) {
    uint64_t number = last(*own_);
    auto end = Clock::now() + at_most;
    Patience patience = Patience::for_ranks(head_->size);
    bool waits = false;
    try {
        for (uint32_t member = 0; member < head_->size; ++member) {
            if (member == *own_) continue;
            Lane& lane = head_->lane(member);
            await(
                lane.last, lane.sleepers, lane.core, number, patience, crowd_,
                [&] {
                    waits = true;
                    board_.begin_wait(head_->id, number);
                },
                [&]() -> Clock::duration {
                    // A rank that is here already may have made another call: there is no need to wait for the rest.
                    if (board_.has_failed()) throw Outcome::failed;
                    if (compare(number, hash_) == Outcome::differs) throw Outcome::differs;
                    auto left = end - Clock::now();
                    if (left <= Clock::duration::zero()) throw Outcome::waiting;
                    return std::min<Clock::duration>(left, nap);
                });
        }
    } catch (Outcome outcome) {
        if (outcome != Outcome::waiting) board_.end_wait();
        return outcome;
    }
    if (waits) board_.end_wait();
    return compare(number, hash_);
}

std::vector<Group::Call> Group::calls(uint32_t member) const {
    std::vector<Call> found;
    Lane& lane = head_->lane(member);
    uint64_t last = this->last(member);
    for (uint64_t number = last < ring_calls ? 1 : last - ring_calls + 1; number <= last; ++number) {
        Entry& entry = lane.entries[number % ring_calls];
        if (entry.number.load(std::memory_order_acquire) != number) continue;
        Call call{number, entry.hash.load(std::memory_order_relaxed), entry.since.load(std::memory_order_relaxed), ""};
        uint32_t place = entry.text.load(std::memory_order_relaxed);
        uint64_t text_hash = entry.text_hash.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);
        if (entry.number.load(std::memory_order_relaxed) != number) continue;
        call.text = board_.text(head_->ranks()[member], place, text_hash);
        found.push_back(std::move(call));
    }
    return found;
}

}  // namespace allfold::check
