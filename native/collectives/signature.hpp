// The signature of a call, which ranks compare: its digest, its description, and the error for calls that differ.
// src/allfold/engines/signature.py does the same for engines written in Python; a test checks that the two agree
// (tests/engines/test_signature.py).
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"

namespace allfold {

inline uint64_t mix(uint64_t value, uint64_t next) {
    value = (value ^ next) * 0x9E3779B97F4A7C15u;
    return value ^ value >> 29;
}

// Of everything but the name of a user-defined operation, which is part of that operation's own digest. `place`: see
// signature.py; 0 for calls in main memory.
inline uint64_t digest_of(const Signature& signature, uint64_t place = 0) {
    constexpr size_t words = offsetof(Signature, op_name) / sizeof(uint64_t);
    static_assert(words * sizeof(uint64_t) == offsetof(Signature, op_name));
    uint64_t each[words], value = 0;
    std::memcpy(each, &signature, sizeof each);
    for (uint64_t word : each) value = mix(value, word);
    return mix(value, place);
}

Signature signature_of(const Call& call);

// The least length of what a rank tells others of its call (`said`): its digest and its number, 8 bytes each, and its
// signature.
inline constexpr size_t said_bytes = 2 * sizeof(uint64_t) + sizeof(Signature);

inline Communicator::Whole whole_call(const char* said) {
    Communicator::Whole whole;
    const size_t word = sizeof whole.digest;
    std::memcpy(&whole.digest, said, word);
    std::memcpy(&whole.number, said + word, word);
    std::memcpy(&whole.signature, said + 2 * word, sizeof whole.signature);
    return whole;
}

// The text in a field, which is padded with zeros.
template <size_t bytes>
std::string name_in(const char (&field)[bytes]) {
    return std::string(field, strnlen(field, bytes));
}

// all_reduce(float64[3] sum by ring)
std::string in_words(const Signature& signature);

// By rank, if its call is known: "all_reduce: rank 0 called it with float64[3] sum, rank 1 with float64[4] sum".
std::string difference(const std::vector<std::optional<Signature>>& calls);

}  // namespace allfold
