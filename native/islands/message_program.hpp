// One rank's message program, as src/allfold/programs/messages.py made it, and where the chunks of a call lie.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/program.hpp"

namespace allfold {

enum class MessageSpace : uint8_t { input, output, work, arrived };

// The place of a chunk: in an array (`at`: the chunk), in a work slot, or in a received message (`at`), as its `part`.
struct ChunkPlace {
    MessageSpace space;
    uint32_t at, part;
};

struct MessageProgram {
    enum class Kind : uint8_t { post, send, await, sent, fold, collective };

    struct Instruction {
        Kind kind;
        bool complete;       // of a fold: the result holds every contribution, and an average divides
        uint32_t number;     // of its message, or of its collective
        uint32_t length_of;  // of a fold: the datum that it handles,
        uint32_t chunks;     // and the number of chunks from there, equally long and adjacent
        ChunkPlace destination;
    };
    struct Message {
        bool sends;
        bool together;  // a send of one part, or of adjacent parts: it needs no copy
        uint32_t peer;
    };
    struct Inside {  // a collective of the island
        uint8_t collective;
        int32_t root;
    };

    uint32_t rank = 0, ranks = 0, chunks = 0, work_slots = 0;
    uint32_t begins = 0;        // the instructions before it first waits for other islands
    bool even = false;          // all chunks must be equally long
    bool carries_data = false;  // a barrier has chunks, but no arrays
    Extent input{}, output{};   // the chunks that the arrays of this rank hold
    std::vector<Instruction> instructions;
    Rows<ChunkPlace> sources, into;  // by instruction
    std::vector<Message> messages;
    Rows<uint32_t> lengths;   // by message: the data in it
    Rows<ChunkPlace> places;  // by message: where a send's parts lie; where a receive's go, if not to memory of its own
    std::vector<Inside> inside;
    // Found by check_messages().
    uint32_t starts = 0;  // the instructions before the first that waits for a message
};

// Checks everything that the interpreter relies on: every number, place and list is in range. Throws if something is
// wrong. That the program does what its schedule says is proved where it is made (programs/check_messages.py).
void check_messages(MessageProgram& program);

// The places and lengths of a call's chunks in the input and the output of this rank, in elements. A datum
// is a chunk or, where ranks exchange, owner · chunks + chunk. src/allfold/division.py has the rule.
class ChunkDivision {
  public:
    ChunkDivision(uint64_t elements, uint32_t chunks)
        : chunks_(chunks), whole_(elements / chunks), rest_(elements % chunks), longest_(whole_ + (rest_ != 0)) {}
    // Slices that differ in length. `inputs`: the bounds of the chunks, a row for every owner or one for all.
    // `outputs`: those of this rank.
    ChunkDivision(std::vector<uint64_t> inputs, std::vector<uint64_t> outputs, uint32_t chunks, uint32_t rank);

    bool is_even() const { return inputs_.empty() && rest_ == 0; }
    uint64_t longest() const { return longest_; }
    uint64_t first(MessageSpace space, uint32_t chunk) const {
        if (inputs_.empty()) return chunk * whole_ + chunk * rest_ / chunks_;
        return space == MessageSpace::input ? inputs_[own_ + chunk] : outputs_[chunk];
    }
    uint64_t length(uint32_t datum) const {
        uint32_t chunk = datum % chunks_;
        if (inputs_.empty()) return first(MessageSpace::input, chunk + 1) - first(MessageSpace::input, chunk);
        size_t at = (rows_ > 1 ? datum / chunks_ * (size_t{chunks_} + 1) : 0) + chunk;
        return inputs_.at(at + 1) - inputs_[at];
    }

  private:
    uint32_t chunks_;
    uint64_t whole_ = 0, rest_ = 0;
    uint64_t longest_ = 0;
    std::vector<uint64_t> inputs_, outputs_;
    size_t rows_ = 0, own_ = 0;
};

}  // namespace allfold
