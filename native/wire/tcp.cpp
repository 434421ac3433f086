#include "wire/tcp.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

#include "wire/tcp_parts.hpp"

namespace allfold {

namespace tcp {

namespace {

class TcpWire final : public MatchedWire<Connection, Transfer, std::unique_ptr<Kept>> {
  public:
    TcpWire(int rank, const std::vector<int>& descriptors, double seconds) : MatchedWire(rank, descriptors) {
        for (Connection& one : peers_) {
            if (one.is_lost()) continue;
            set_options(one.descriptor, seconds);
            one.staging.reset(new uint8_t[staging_bytes]);
            add(one.descriptor, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, static_cast<uint64_t>(one.rank));
        }
        begin_keeping();
    }

    ~TcpWire() override {
        end_keeping();
        cut();
        // Not before: a descriptor's number may be used again at once, and a fork closes by numbers.
        close_descriptors();
    }

    // When a socket is closed that has unread data, the kernel drops what the other end has not confirmed.
    bool is_draining() override {
        if (!is_here()) return false;
        std::lock_guard lock(mutex_);
        return std::any_of(peers_.begin(), peers_.end(), [](const Connection& one) {
            int unconfirmed = 0;
            return !one.is_lost() &&
                   (!one.outgoing.empty() || (ioctl(one.descriptor, SIOCOUTQ, &unconfirmed) == 0 && unconfirmed > 0));
        });
    }

  private:
    void before_sleep() override {
        if (paused_ > 0)
            for (Connection& one : peers_) resume(one);
    }
    bool may_sleep() override { return busy_.empty(); }

    static void set_options(int descriptor, double seconds) {
        auto set = [&](int level, int option, int value) {
            setsockopt(descriptor, level, option, &value, sizeof value);
        };
        fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
        set(IPPROTO_TCP, TCP_NODELAY, 1);
        // allfold's heartbeats detect a host that does not answer. These options end an idle connection to it. No
        // TCP_USER_TIMEOUT: it would also end the connection to a rank that is stopped or slow and does not read for a
        // while.
        int probe = std::max(1, static_cast<int>(seconds / 4));
        set(SOL_SOCKET, SO_KEEPALIVE, 1);
        set(IPPROTO_TCP, TCP_KEEPIDLE, probe);
        set(IPPROTO_TCP, TCP_KEEPINTVL, probe);
        set(IPPROTO_TCP, TCP_KEEPCNT, 3);
    }

    // Events ------------------------------------------------------------------------------------------------------

    bool handle(const epoll_event* events, int count) override {
        bool moved = false;
        for (int i = 0; i < count; ++i) {
            if (events[i].data.u64 == is_bell) {
                ++ended_;
                continue;
            }
            Connection& one = peers_[events[i].data.u64];
            if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) one.is_ending = true;
            mark_busy(one);
        }
        // Each connection has one turn, however much there is to move. Then the waiting thread checks its transfer.
        for (size_t left = busy_.size(); left > 0; --left) {
            Connection& one = *busy_.front();
            busy_.pop_front();
            one.is_busy = false;
            bool more = write_some(one);
            more |= read_some(one);
            settle(one);
            moved = true;
            if (more && !one.is_lost()) mark_busy(one);
        }
        return moved;
    }

    // Sending -----------------------------------------------------------------------------------------------------

    void begin_send(Connection& one, Transfer* transfer) override {
        const size_t bytes = transfer->size;
        if (bytes <= tcp_longest_at_once) {
            one.outgoing.push_back({{Header::message, 0, transfer->tag, bytes}, transfer, 0, bytes});
        } else {
            uint32_t id = one.next_send++;
            one.waiting_sends[id] = transfer;
            one.outgoing.push_back({{Header::ask, id, transfer->tag, bytes}, nullptr, 0, 0});
        }
        if (one.outgoing.size() == 1 && write_some(one)) prod(one);
        settle(one);
    }

    // True if more could be written now.
    bool write_some(Connection& one) {
        size_t budget = most_at_once;
        while (!one.is_lost() && one.write_error == 0) {
            if (one.outgoing.empty()) {
                if (one.long_sends.empty()) return false;
                Transfer* next = one.long_sends.front();
                size_t bytes = std::min(longest_piece, next->size - next->moved);
                one.outgoing.push_back({{Header::piece, next->asked_as, 0, bytes}, next, next->moved, bytes});
            }
            Outgoing& out = one.outgoing.front();
            std::array<iovec, 2> parts;
            int count = 0;
            if (out.gone < sizeof(Header))
                parts[count++] = {reinterpret_cast<uint8_t*>(&out.header) + out.gone, sizeof(Header) - out.gone};
            size_t body = out.gone > sizeof(Header) ? out.gone - sizeof(Header) : 0;
            if (body < out.bytes) parts[count++] = {out.of->memory + out.from + body, out.bytes - body};
            msghdr what{};
            what.msg_iov = parts.data();
            what.msg_iovlen = static_cast<size_t>(count);
            ssize_t written = sendmsg(one.descriptor, &what, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (written < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
                one.write_error = errno;  // see `settle`
                return false;
            }
            out.gone += static_cast<size_t>(written);
            if (out.gone < sizeof(Header) + out.bytes) {
                // The kernel's buffer is full; epoll reports when there is room.
                if (budget <= static_cast<size_t>(written)) return true;
                budget -= static_cast<size_t>(written);
                continue;
            }
            Outgoing gone = out;
            one.outgoing.pop_front();
            if (gone.of != nullptr) {
                gone.of->moved += gone.bytes;
                if (gone.of->moved == gone.of->size) {
                    if (gone.header.kind == Header::piece) one.long_sends.pop_front();
                    done(gone.of, one, gone.of->size);
                }
            }
            if (budget <= static_cast<size_t>(written)) return true;
            budget -= static_cast<size_t>(written);
        }
        return false;
    }

    // Nothing more can be written. But what the other end sent before may still be read.
    void settle(Connection& one) {
        if (one.write_error == 0) return;
        one.is_ending = true;
        while (read_some(one)) {}
        lose(one, broken(one, std::strerror(one.write_error)));
    }

    // Receiving ---------------------------------------------------------------------------------------------------

    // True if there may be more to read now.
    bool read_some(Connection& one) {
        size_t budget = most_at_once;
        while (!one.is_lost()) {
            if (!parse(one)) return false;
            if (one.is_paused) return false;
            if (budget == 0) return true;
            // The body goes straight to its destination, and what follows it into the staging memory, which is empty
            // now.
            std::array<iovec, 2> parts;
            int count = 0;
            size_t wanted = 0;
            if (one.body_left > 0 && body_memory(one) != nullptr) {
                parts[count++] = {body_memory(one), one.body_left};
                wanted = one.body_left;
            }
            size_t direct = wanted;
            // Move the beginning of an incomplete header to the front.
            if (one.begin > 0) {
                std::memmove(one.staging.get(), one.staging.get() + one.begin, one.end - one.begin);
                one.end -= one.begin;
                one.begin = 0;
            }
            parts[count++] = {one.staging.get() + one.end, staging_bytes - one.end};
            wanted += staging_bytes - one.end;
            ssize_t got = readv(one.descriptor, parts.data(), count);
            if (got < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
                lose(one, broken(one, std::strerror(errno)));
                return false;
            }
            if (got == 0) {
                lose(one, has_closed(one));
                return false;
            }
            auto come = static_cast<size_t>(got);
            size_t into_body = std::min(come, direct);
            if (into_body > 0) came(one, into_body);
            one.end += come - into_body;
            budget -= std::min(budget, come);
            if (come < wanted && !one.is_ending) {
                // A read that returns less than requested has emptied the socket; epoll reports when there is more.
                parse(one);
                return false;
            }
        }
        return false;
    }

    uint8_t* body_memory(const Connection& one) const {
        if (one.body_of != nullptr)
            return one.body_of->to == nullptr ? nullptr : one.body_of->to->memory + one.body_of->come;
        if (one.body_to != nullptr) return one.body_to->memory + one.body_to->moved;
        if (one.body_kept != nullptr) return one.body_kept->data.get() + one.body_kept->come;
        return nullptr;
    }

    // This many bytes of the body have arrived at their destination.
    void came(Connection& one, size_t bytes) {
        one.body_left -= bytes;
        if (one.body_of != nullptr) {
            one.body_of->come += bytes;
            if (one.body_left > 0) return;
            Incoming all = *one.body_of;
            one.body_of = nullptr;
            if (all.come < all.length) return;
            one.incoming.erase(one.body_id);
            if (all.to != nullptr) done(all.to, one, all.length);
        } else if (one.body_to != nullptr) {
            one.body_to->moved += bytes;
            if (one.body_left > 0) return;
            Transfer* all = std::exchange(one.body_to, nullptr);
            done(all, one, all->moved);
        } else if (one.body_kept != nullptr) {
            one.body_kept->come += bytes;
            if (one.body_left == 0) one.body_kept = nullptr;
        }
    }

    // Parse what is in the staging memory. False if the connection was closed because of it.
    bool parse(Connection& one) {
        while (one.begin < one.end || one.body_left == 0) {
            if (one.body_left > 0) {
                size_t bytes = std::min(one.body_left, one.end - one.begin);
                if (uint8_t* memory = body_memory(one)) std::memcpy(memory, one.staging.get() + one.begin, bytes);
                one.begin += bytes;
                came(one, bytes);
                continue;
            }
            if (one.end - one.begin < sizeof(Header)) break;
            if (one.kept_bytes > one.may_keep) {
                one.is_paused = true;
                ++paused_;
                return true;
            }
            Header header;
            std::memcpy(&header, one.staging.get() + one.begin, sizeof header);
            one.begin += sizeof header;
            if (!understand(one, header)) return false;
        }
        if (one.begin == one.end) one.begin = one.end = 0;
        return true;
    }

    bool understand(Connection& one, const Header& header) {
        switch (header.kind) {
            case Header::message:
                if (header.id != 0 || header.length > tcp_longest_at_once) break;
                return begin_message(one, header);
            case Header::ask:
                if (header.length <= tcp_longest_at_once || header.length > longest_message) break;
                return begin_message(one, header);
            case Header::go: {
                auto found = one.waiting_sends.find(header.id);
                if (header.length != 0 || header.tag > UINT32_MAX || found == one.waiting_sends.end()) break;
                found->second->asked_as = static_cast<uint32_t>(header.tag);
                one.long_sends.push_back(found->second);
                one.waiting_sends.erase(found);
                if (one.outgoing.empty() && write_some(one)) prod(one);
                return true;
            }
            case Header::piece: {
                auto found = one.incoming.find(header.id);
                if (found == one.incoming.end() || header.tag != 0 || header.length == 0 ||
                    header.length > found->second.length - found->second.come)
                    break;
                one.body_of = &found->second;
                one.body_id = header.id;
                one.body_left = header.length;
                return true;
            }
        }
        lose(one, name_of(one) + " sent an invalid message, and its connection was closed");
        return false;
    }

    void mark_busy(Connection& one) {
        if (one.is_busy) return;
        one.is_busy = true;
        busy_.push_back(&one);
    }
    // For the thread that moves the rest, which may be asleep.
    void prod(Connection& one) {
        mark_busy(one);
        ring();
    }

    bool begin_message(Connection& one, const Header& header) {
        Transfer* receive = matching_.take_receive(one.rank, header.tag);
        if (receive == nullptr) {
            auto kept = std::make_unique<Kept>();
            kept->tag = header.tag;
            kept->length = header.length;
            kept->waits = header.kind == Header::ask;
            kept->id = header.id;
            one.kept_bytes += sizeof(Kept);
            if (!kept->waits) {
                kept->data.reset(new uint8_t[std::max<size_t>(1, header.length)]);
                one.kept_bytes += header.length;
                one.body_left = header.length;
                one.body_kept = header.length > 0 ? kept.get() : nullptr;
            }
            matching_.keep(one.rank, header.tag, std::move(kept));
            return true;
        }
        if (!fits(one, receive, header.length)) return false;
        if (header.kind == Header::ask) {
            ask_for(one, receive, header.id, header.length);
        } else if (header.length == 0) {
            done(receive, one, 0);
        } else {
            one.body_to = receive;
            one.body_left = header.length;
        }
        return !one.is_lost();
    }

    bool fits(Connection& one, Transfer* receive, size_t length) {
        if (length <= receive->size) return true;
        lose(one, too_long(one, length, receive));
        fail(receive, one, one.why);
        return false;
    }

    void ask_for(Connection& one, Transfer* receive, uint32_t id, size_t length) {
        uint32_t own = one.next_incoming++;
        one.incoming[own] = {receive, length};
        one.outgoing.push_back({{Header::go, id, own, 0}, nullptr, 0, 0});
        // Its order among messages does not matter, but it must not split one.
        if (one.outgoing.size() == 1 && write_some(one)) prod(one);
    }

    void take_kept(Connection& one, Transfer* receive, std::unique_ptr<Kept> kept) override {
        one.kept_bytes -= sizeof(Kept) + (kept->waits ? 0 : kept->length);
        if (fits(one, receive, kept->length)) deliver(one, receive, *kept);
        settle(one);
    }
    void deliver(Connection& one, Transfer* receive, const Kept& kept) {
        if (kept.waits) {
            if (one.is_lost())
                fail(receive, one, one.why);
            else
                ask_for(one, receive, kept.id, kept.length);
        } else {
            std::memcpy(receive->memory, kept.data.get(), kept.come);
            if (one.body_kept == &kept) {  // the rest goes to its destination
                one.body_kept = nullptr;
                one.body_to = receive;
                receive->moved = kept.come;
            } else {
                done(receive, one, kept.length);
            }
        }
        resume(one);
    }

    // A thread waits for something that has not arrived: it may come after the data that fill our memory, be it a
    // message or the `go` that a long send waits for. So every sleep reads a bit more, and no wait lasts forever.
    void resume(Connection& one) {
        if (!one.is_paused) return;
        one.is_paused = false;
        --paused_;
        one.may_keep = one.kept_bytes + tcp_most_kept;
        if (read_some(one)) prod(one);
    }

    void was_posted(Connection& one) override { resume(one); }

    void leave(Transfer* transfer) override {
        if (transfer->sends) {
            // Pieces are addressed by their place in the whole message, so all of it is copied.
            transfer->copy.reset(new uint8_t[transfer->size]);
            std::memcpy(transfer->copy.get(), transfer->memory, transfer->size);
            transfer->memory = transfer->copy.get();
            transfer->was_left = true;
            return;
        }
        for (Connection& one : peers_) {
            if (one.body_to == transfer) one.body_to = nullptr;  // the rest is read and dropped
            for (auto& [id, incoming] : one.incoming)
                if (incoming.to == transfer) incoming.to = nullptr;
        }
    }

    // Losing ------------------------------------------------------------------------------------------------------

    void was_lost(Connection& one) override {
        auto fail_one = [&](Transfer* transfer) {
            if (transfer != nullptr) fail(transfer, one, one.why);
        };
        fail_one(std::exchange(one.body_to, nullptr));
        one.body_of = nullptr;
        for (auto& [id, incoming] : one.incoming) fail_one(incoming.to);
        one.incoming.clear();
        if (Kept* half = std::exchange(one.body_kept, nullptr))
            matching_.drop_last(one.rank, half->tag, [&](const auto& kept) { return kept.get() == half; });
        one.body_left = 0;
        // A long send has a piece among the outgoing ones too; it fails only once.
        for (Outgoing& out : one.outgoing)
            if (out.header.kind == Header::message) fail_one(out.of);
        one.outgoing.clear();
        for (Transfer* transfer : one.long_sends) fail_one(transfer);
        one.long_sends.clear();
        for (auto& [id, transfer] : one.waiting_sends) fail_one(transfer);
        one.waiting_sends.clear();
    }

    std::deque<Connection*> busy_;
    int paused_ = 0;
};

}  // namespace

}  // namespace tcp

std::shared_ptr<Wire> tcp_wire(int rank, const std::vector<int>& descriptors, double seconds) {
    tcp::TcpWire* made;
    try {
        made = new tcp::TcpWire(rank, descriptors, seconds);
    } catch (...) {
        for (int one : descriptors)
            if (one >= 0) close(one);
        throw;
    }
    return {made, [](tcp::TcpWire* wire) {
                if (wire->is_here()) delete wire;
            }};
}

}  // namespace allfold
