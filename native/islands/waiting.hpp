// Waiting for transfers over a wire, within the time of a call.
#pragma once

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

#include "shared/wait.hpp"
#include "wire/wire.hpp"

namespace allfold {

// A transfer over the wire has failed: its peer is lost, or cannot be reached. The bindings raise `Disconnected`.
class WireLost : public std::runtime_error {
  public:
    WireLost(const std::string& why, int peer) : std::runtime_error(why), peer(peer) {}
    int peer;  // -1: unknown
};

// How much longer than their call transfers may take, so that the timeout of the call is reported first: it says more.
inline constexpr auto spare_time = std::chrono::seconds(2);

// The timeout of collectives inside an island: the thread that watches over the whole call ends them.
inline constexpr auto island_forever = std::chrono::hours(2000);

struct Waiting {
    Clock::time_point deadline;         // of the call
    std::function<void()> interrupted;  // called now and then in long waits; ends them by throwing

    // Waits until a transfer is done, or throws.
    void await(Wire& wire, const WireTransfer& transfer) const {
        settle(wire, transfer);
        if (transfer.state() == WireTransfer::State::failed) throw WireLost(transfer.why(), transfer.peer());
    }

    // Waits until a transfer is done or has failed; throws if that takes too long.
    void settle(Wire& wire, const WireTransfer& transfer) const {
        Clock::time_point limit{}, looked{};
        while (!transfer.is_over()) {
            uint64_t seen = wire.turn();
            if (transfer.is_over()) break;
            auto now = Clock::now();
            if (limit == Clock::time_point{}) {
                limit = std::max(now, deadline) + spare_time;
                looked = now;
            } else if (now >= limit) {
                throw WireLost("it was cancelled", -1);
            } else if (interrupted && now - looked >= Wire::longest_sleep) {
                looked = now;
                interrupted();
            }
            wire.sleep(seen, limit);
        }
    }
};

}  // namespace allfold
