// Ranks as threads of one process, for tests without Python.
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shared/arena.hpp"
#include "shared/errors.hpp"

namespace allfold::tests {

inline std::atomic<int> failures{0};

inline void expect(bool good, const std::string& what) {
    if (good) return;
    ++failures;
    std::fprintf(stderr, "not so: %s\n", what.c_str());
}

// Runs something that must fail with this fault and with these words in its message.
inline void expect_fault(Fault fault, const std::string& words, const std::function<void()>& work) {
    try {
        work();
    } catch (const EngineError& error) {
        expect(error.fault == fault, std::string("the kind of: ") + error.what());
        expect(std::string(error.what()).find(words) != std::string::npos,
               "'" + words + "' is in: " + std::string(error.what()));
        return;
    }
    expect(false, "an error with '" + words + "'");
}

inline void run_ranks(uint32_t ranks, const std::function<void(uint32_t)>& work) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            try {
                work(rank);
            } catch (const std::exception& error) {
                expect(false, "rank " + std::to_string(rank) + " ends well: " + error.what());
            }
        });
    for (auto& thread : threads) thread.join();
}

}  // namespace allfold::tests
