#include "islands/message_program.hpp"

#include <algorithm>

#include "shared/errors.hpp"

namespace allfold {

namespace {

void need_messages(bool good, const char* what) {
    if (!good) throw EngineError(Fault::usage, std::string("a message program is damaged: ") + what);
}

template <typename Item>
void check_rows(const Rows<Item>& rows, size_t count) {
    need_messages(rows.starts.size() == count + 1 && rows.starts.front() == 0 &&
                      rows.starts.back() == rows.items.size() && std::is_sorted(rows.starts.begin(), rows.starts.end()),
                  "a list");
}

}  // namespace

void check_messages(MessageProgram& program) {
    using Kind = MessageProgram::Kind;
    const size_t count = program.instructions.size(), messages = program.messages.size();
    need_messages(program.ranks > 0 && program.rank < program.ranks && program.chunks > 0, "its ranks or chunks");
    need_messages(program.begins <= count, "the end of its first part");
    check_rows(program.sources, count);
    check_rows(program.into, count);
    check_rows(program.lengths, messages);
    check_rows(program.places, messages);
    for (const Extent& extent : {program.input, program.output})
        need_messages(extent.begin <= extent.end && extent.end <= program.chunks, "the extent of an array");
    // `behind`: the number of chunks from this place on.
    auto check_place = [&](const ChunkPlace& place, uint32_t behind, bool written) {
        const Extent& extent = place.space == MessageSpace::input ? program.input : program.output;
        switch (place.space) {
            case MessageSpace::input: need_messages(!written, "it writes into the input"); [[fallthrough]];
            case MessageSpace::output:
                need_messages(place.at >= extent.begin && place.at < extent.end && behind <= extent.end - place.at,
                              "a chunk");
                return;
            case MessageSpace::work:
                need_messages(place.at < program.work_slots && behind <= program.work_slots - place.at, "a work slot");
                return;
            case MessageSpace::arrived:
                need_messages(!written && place.at < messages && !program.messages[place.at].sends &&
                                  program.places.count(place.at) == 0 && place.part < program.lengths.count(place.at) &&
                                  behind <= program.lengths.count(place.at) - place.part,
                              "a message");
                return;
        }
        need_messages(false, "a place");
    };
    auto check_together = [&](const ChunkPlace* begin, const ChunkPlace* end, bool written) {
        for (const ChunkPlace* place = begin; place != end; ++place) {
            check_place(*place, 1, written);
            need_messages(place->space != MessageSpace::arrived && place->space == begin->space &&
                              place->at == begin->at + static_cast<uint32_t>(place - begin),
                          "places that are not adjacent");
        }
    };
    const uint64_t data = uint64_t{program.chunks} * program.ranks;
    for (uint32_t number = 0; number < messages; ++number) {
        const auto& message = program.messages[number];
        need_messages(message.peer < program.ranks && message.peer != program.rank, "a peer");
        for (const uint32_t* datum = program.lengths.begin(number); datum != program.lengths.end(number); ++datum)
            need_messages(*datum < data, "a length");
        const size_t parts = program.places.count(number);
        need_messages(parts == program.lengths.count(number) || (!message.sends && parts == 0), "a message");
        if ((message.together && parts > 1) || !message.sends)
            check_together(program.places.begin(number), program.places.end(number), !message.sends);
        else
            for (const ChunkPlace* place = program.places.begin(number); place != program.places.end(number); ++place)
                check_place(*place, 1, false);
    }
    program.starts = static_cast<uint32_t>(count);
    // By message: 0 not begun, 1 begun, 2 waited for. Each is begun and waited for once.
    std::vector<uint8_t> stage(messages, 0);
    for (uint32_t at = 0; at < count; ++at) {
        const auto& one = program.instructions[at];
        bool begins = one.kind == Kind::post || one.kind == Kind::send;
        bool ends = one.kind == Kind::await || one.kind == Kind::sent;
        if (begins || ends) {
            need_messages(one.number < messages && stage[one.number] == (begins ? 0 : 1) &&
                              program.messages[one.number].sends == (one.kind == Kind::send || one.kind == Kind::sent),
                          "the order of its messages");
            stage[one.number] = begins ? 1 : 2;
            if (ends) program.starts = std::min(program.starts, at);
        } else if (one.kind == Kind::fold) {
            need_messages(one.length_of < data && one.chunks > 0 && one.chunks <= program.chunks, "a fold");
            check_place(one.destination, one.chunks, true);
            for (const ChunkPlace* place = program.sources.begin(at); place != program.sources.end(at); ++place)
                check_place(*place, one.chunks, false);
        } else {
            need_messages(one.kind == Kind::collective && one.number < program.inside.size(), "a collective");
            check_together(program.sources.begin(at), program.sources.end(at), false);
            check_together(program.into.begin(at), program.into.end(at), true);
        }
    }
    need_messages(std::all_of(stage.begin(), stage.end(), [](uint8_t one) { return one == 2; }),
                  "a message is not waited for");
    for (const auto& one : program.inside)
        need_messages(one.collective < collectives.size() && one.root >= 0, "a collective");
}

ChunkDivision::ChunkDivision(std::vector<uint64_t> inputs, std::vector<uint64_t> outputs, uint32_t chunks,
                             uint32_t rank)
    : chunks_(chunks), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
    const size_t row = size_t{chunks} + 1;
    rows_ = inputs_.size() / row;
    need_messages(chunks > 0 && rows_ > 0 && inputs_.size() % row == 0 && outputs_.size() == row, "bounds of chunks");
    own_ = rows_ > 1 ? rank * row : 0;
    need_messages(own_ + row <= inputs_.size() && std::is_sorted(outputs_.begin(), outputs_.end()), "bounds of chunks");
    for (size_t i = 0; i < inputs_.size(); ++i) {
        if (i % row == 0) continue;
        need_messages(inputs_[i] >= inputs_[i - 1], "bounds of chunks");
        longest_ = std::max(longest_, inputs_[i] - inputs_[i - 1]);
    }
}

}  // namespace allfold
