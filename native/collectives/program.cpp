#include "collectives/program.hpp"

#include <algorithm>

#include "collectives/communicator.hpp"
#include "shared/errors.hpp"
#include "shared/text.hpp"

namespace allfold {

namespace {

// Chunks a and b of `parts`: does a ever get more elements than b? That depends on what is left when a length is
// divided by the parts, so every remainder is tried. (Python's `longer_by`, in src/allfold/division.py.)
bool can_be_longer(uint64_t a, uint64_t b, uint64_t parts) {
    if (a == b) return false;
    for (uint64_t rest = 0; rest < parts; ++rest)
        if ((a + 1) * rest / parts - a * rest / parts > (b + 1) * rest / parts - b * rest / parts) return true;
    return false;
}

class Checker {
  public:
    explicit Checker(Program& program) : program_(program) {}

    void check() {
        Program& p = program_;
        need(p.ranks >= 1 && p.ranks <= most_ranks, joined({"a communicator has 1 to ", most_ranks, " ranks"}).c_str());
        need(p.rank < p.ranks && p.lengths.size() == p.ranks, "a rank that does not exist");
        need(p.memory <= Memory::shared, "an unknown kind of memory");
        need(p.chunks >= 1 && p.chunks <= most_chunks && p.slices >= 1 && p.chunks % p.slices == 0,
             "a wrong number of chunks");
        need(p.work_slots * size_t{64} <= window_bytes, "the schedule has too many chunks to run here");
        if (!p.segment_bytes) p.segment_bytes = segment_bytes(p.work_slots, p.one_area);
        need(p.segment_bytes <= window_bytes, "segments that are larger than a work area");
        p.instructions = p.lengths[p.rank];
        p.stride = *std::max_element(p.lengths.begin(), p.lengths.end());
        need(p.length_of.size() == p.instructions && p.complete.size() == p.instructions &&
                 p.announce.size() == p.instructions,
             "a list of another length than the program");
        need(p.inputs.size() == p.ranks && p.outputs.size() == p.ranks, "arrays of more or fewer ranks than there are");
        for (auto* extents : {&p.inputs, &p.outputs})
            for (const Extent& extent : *extents)
                need(extent.begin <= extent.end && extent.end <= p.chunks, "an array with impossible bounds");
        uint64_t data = uint64_t{p.chunks} * (p.exchanges ? p.ranks : 1);
        for (uint32_t datum : p.length_of) need(datum < data, "the length of a chunk that does not exist");
        if (p.exchanges) p.datum_of = p.length_of;
        for (uint32_t& chunk : p.length_of) chunk %= p.chunks;
        p.most_sources = slots(p.sources, p.reads_peers, false);
        p.most_destinations = slots(p.destinations, p.writes_peers, true);
        p.writes_own_output =
            std::any_of(p.destinations.items.begin(), p.destinations.items.end(),
                        [&](const Slot& slot) { return slot.rank == p.rank && slot.space == Space::output; });
        waits(p.waits);
        waits(p.reuse);
        for (const Wait& wait : p.leave) wait_for(wait);
        if (p.silent) silent();
    }

  private:
    static constexpr uint32_t most_chunks = uint32_t{1} << 30;

    void need(bool condition, const char* what) const {
        if (!condition)
            throw EngineError(Fault::usage, joined({"the program ", program_.name, " cannot be run: ", what}));
    }

    template <typename Item>
    void rows(const Rows<Item>& rows) const {
        need(rows.starts.size() == size_t{program_.instructions} + 1 && rows.starts.front() == 0 &&
                 rows.starts.back() == rows.items.size() && std::is_sorted(rows.starts.begin(), rows.starts.end()),
             "lists that do not fit the instructions");
    }

    uint32_t slots(const Rows<Slot>& list, std::vector<uint8_t>& of_peers, bool written) const {
        const Program& p = program_;
        const uint32_t part = p.chunks / p.slices;
        rows(list);
        of_peers.assign(p.instructions, 0);
        size_t most = 0;
        for (uint32_t i = 0; i < p.instructions; ++i) {
            need(list.count(i) > 0, "an instruction without source or destination");
            most = std::max(most, list.count(i));
            for (const Slot* slot = list.begin(i); slot != list.end(i); ++slot) {
                need(slot->rank < p.ranks, "a slot of a rank that does not exist");
                if (slot->space == Space::work) {
                    need(slot->index < p.work_slots, "a work slot that does not exist");
                    continue;
                }
                const Extent& extent = p.extent(*slot);
                need(slot->index >= extent.begin && slot->index < extent.end, "a chunk that the array does not have");
                bool reached = p.memory == Memory::shared || (p.memory == Memory::readable && !written);
                need(slot->rank == p.rank || reached, "an array that peers cannot reach");
                of_peers[i] |= slot->rank != p.rank;
                need(!can_be_longer(p.length_of[i] % part, slot->index % part, part),
                     "a chunk that can be longer than its place");
                program_.keeps_places &= is_its_own_place(i, *slot);
            }
        }
        return static_cast<uint32_t>(most);
    }

    // True if a slot of an array is the place of the piece of data that the instruction handles.
    bool is_its_own_place(uint32_t i, const Slot& slot) const {
        const Program& p = program_;
        if (!p.exchanges) return slot.index == p.length_of[i];
        const uint32_t part = p.chunks / p.slices;
        uint32_t owner = slot.space == Space::input ? slot.rank : slot.index / part;
        uint32_t chunk = slot.space == Space::input ? slot.index : slot.rank * part + slot.index % part;
        return p.datum_of[i] == uint64_t{owner} * p.chunks + chunk;
    }

    void waits(const Rows<Wait>& list) const {
        rows(list);
        for (const Wait& wait : list.items) wait_for(wait);
    }

    void wait_for(const Wait& wait) const {
        need(wait.rank < program_.ranks && wait.rank != program_.rank, "a wait for a rank that is no peer");
        need(wait.count >= 1 && wait.count <= program_.lengths[wait.rank],
             "a wait for an instruction that does not exist");
    }

    // A rank that does not publish its end must have published something in the call, and must have seen all ranks in
    // it: before the first instruction if arrays are accessed directly, otherwise in its waits.
    void silent() const {
        const Program& p = program_;
        uint32_t spoken =
            p.instructions - (p.instructions && p.leave.empty() ? 1 : 0);  // the last is published with the end
        need(std::find(p.announce.begin(), p.announce.begin() + spoken, 1) != p.announce.begin() + spoken,
             "it publishes nothing in the whole call");
        if (p.memory != Memory::private_) return;
        std::vector<uint8_t> heard(p.ranks);
        heard[p.rank] = 1;
        for (const Wait& wait : p.waits.items) heard[wait.rank] = 1;
        for (const Wait& wait : p.leave) heard[wait.rank] = 1;
        need(std::find(heard.begin(), heard.end(), 0) == heard.end(),
             "it does not publish its end, and has not seen all ranks");
    }

    Program& program_;
};

}  // namespace

void check_program(Program& program) { Checker(program).check(); }

Parts::Parts(const std::vector<uint64_t>& counts, uint32_t digest, const Program& program)
    : digest(digest), row_(program.exchanges ? size_t{program.chunks} + 1 : 0) {
    const uint32_t part = program.chunks / program.slices, rows = program.exchanges ? program.ranks : 1;
    for (Space space : {Space::input, Space::output}) {
        std::vector<uint64_t>& firsts = firsts_[space == Space::input ? 0 : 1];
        firsts.reserve(rows * (size_t{program.chunks} + 1));
        for (uint32_t rank = 0; rank < rows; ++rank) {
            uint64_t begin = 0;
            for (uint32_t slice = 0; slice < program.slices; ++slice) {
                // Rank i sends row i, and gets column i.
                size_t at = space == Space::input ? size_t{rank} * program.slices + slice
                                                  : size_t{slice} * program.slices + rank;
                uint64_t count = counts[program.exchanges ? at : slice];
                for (uint32_t chunk = 0; chunk < part; ++chunk) firsts.push_back(begin + count * chunk / part);
                begin += count;
                longest = std::max(longest, (count + part - 1) / part);
            }
            firsts.push_back(begin);
        }
    }
}

}  // namespace allfold
