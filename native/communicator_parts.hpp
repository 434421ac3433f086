// What the two files of the communicator share: running programs (communicator.cpp), and what can go wrong
// meanwhile (communicator_wait.cpp).
#pragma once

#include <cstring>

#include "communicator.hpp"

namespace allfold {

inline uint64_t mix(uint64_t value, uint64_t next) {
    value = (value ^ next) * 0x9E3779B97F4A7C15u;
    return value ^ value >> 29;
}

// What must be the same on all ranks. Where the arrays lie need not be.
inline uint64_t signature(const CallRecord& record) {
    uint64_t value = mix(record.call, record.elements);
    value = mix(value, static_cast<uint32_t>(record.root));
    value = mix(value, record.collective | record.dtype << 8 | record.op << 16);
    for (size_t i = 0; i < sizeof record.algorithm; i += sizeof(uint64_t)) {
        uint64_t word;
        std::memcpy(&word, record.algorithm + i, sizeof word);
        value = mix(value, word);
    }
    return value;
}

// The state of one call.
struct Communicator::Running {
    const std::function<void()>& let_go;
    const std::function<void()>& interrupted;
    CallRecord record;
    Clock::duration timeout;
    Clock::time_point deadline{};  // set when waiting first takes long: most calls never look at a clock
    // By rank; they belong to the communicator, so that a call allocates nothing.
    std::vector<uint8_t>& met;           // peers that were seen to be in the same call
    std::vector<const char*>& inputs;    // where arrays lie: one's own, and those of peers that may be reached
    std::vector<char*>& outputs;
    std::vector<uint8_t>& far;           // those are addresses in the peer's own process
    const Program* program = nullptr;
    uint32_t segments = 1;
    uint64_t segment_elements = 0;  // of every chunk; the last segments have what is left
    size_t slot_bytes = 0;
    bool is_tiny = false;  // everything fits the inline work areas
    bool beyond_caches = false;  // the arrays are too large for them
};

}  // namespace allfold
