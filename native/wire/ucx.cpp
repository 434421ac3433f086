// Every message is an active message of UCX, with a header of our own. We match messages and receives ourselves: a
// receive that waits is unknown to UCX, so it can be given up at any time. A short message goes eagerly, in one
// segment, and is copied out of UCX's memory; a long one goes by rendezvous, straight from the sender's memory into the
// receiver's, once both are known. Only then does UCX write into memory of callers, and it stops when the endpoint is
// closed by force.
#include "wire/ucx.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "shared/errors.hpp"
#include "shared/fork.hpp"
#include "wire/matched_wire.hpp"

namespace allfold::ucx {

namespace {

// For UCX to end the transfers of an endpoint that was closed by force, to send what is left when a wire ends, and to
// end a send that is released too early. What has not ended by then is left to UCX, with its memory.
constexpr auto patience = std::chrono::seconds(2);
// Calls of UCX's progress before the waiting thread checks its transfer.
constexpr int most_at_once = 64;

struct Header {
    uint64_t tag;
    uint64_t number;  // counts the messages of this pair of ranks, in this direction
    uint32_t from;
    uint32_t zero = 0;
};
static_assert(sizeof(Header) == 24);

// The last word of a rank before it closes its socket.
struct Goodbye {
    uint64_t sent;      // messages
    uint64_t gives_up;  // not 0: not all data of the long ones will come
};

class UcxWire;

// The wires of this process. UCX shuts itself down when a process ends, and no thread may be inside by then.
class Living {
  public:
    void add(UcxWire* wire);
    void remove(UcxWire* wire);
    bool is_ending() const { return is_ending_.load(std::memory_order_relaxed); }

  private:
    void end();

    std::mutex mutex_;
    std::vector<UcxWire*> wires_;
    bool has_handler_ = false;
    uint32_t forks_ = forks();
    // Relaxed: set and read by the thread that ends the process. Others block on locks that are never released.
    std::atomic<bool> is_ending_{false};
};

Living& living() {
    static Living* all = new Living;  // never destroyed: other threads may use it until the end
    return *all;
}

struct Transfer final : MatchedTransfer {
    UcxWire* wire = nullptr;
    bool is_in_ucx = false;     // UCX uses its memory, and will call back
    size_t length = 0;          // of the message that is being fetched
    int with = Wire::any_peer;  // the peer of which UCX uses the endpoint
    Header header{};
    Memory registered = nullptr;
};

// A message that has arrived: its data, or the handle by which UCX fetches them.
struct Message {
    size_t length = 0;
    std::unique_ptr<uint8_t[]> data;
    void* fetch_by = nullptr;
};

struct Peer : MatchedPeer {
    UcxWire* wire = nullptr;
    Endpoint endpoint = nullptr;
    Request closing = nullptr;

    bool has_trouble = false;  // it will be lost once what it sent before has been received
    std::string trouble;
    Clock::time_point trouble_ends{};  // and at this time at the latest

    uint64_t sent = 0, come = 0;                             // messages
    std::map<uint64_t, std::pair<uint64_t, Message>> early;  // that overtook others: by number, with their tags

    std::array<uint8_t, sizeof(Goodbye)> goodbye{};
    size_t goodbye_bytes = 0;
    std::unordered_set<Transfer*> in_ucx;
};

class UcxWire final : public MatchedWire<Peer, Transfer, Message> {
  public:
    UcxWire(std::shared_ptr<Worker> worker, int rank, const std::vector<int>& descriptors,
            const std::vector<std::string>& addresses, size_t longest_eager)
        : MatchedWire(rank, descriptors), worker_(std::move(worker)), api_(worker_->api()),
          longest_eager_(longest_eager) {
        HandlerParams handler;
        handler.on_message = on_message;
        handler.argument = this;
        check(api_.ucp_worker_set_am_recv_handler(worker_->handle, &handler), "no messages can be received");
        try {
            for (Peer& peer : peers_) {
                peer.wire = this;
                if (peer.is_lost()) continue;
                EndpointParams params;
                params.address = addresses.at(static_cast<size_t>(peer.rank)).data();
                params.on_error = on_error;
                params.argument = &peer;
                check(api_.ucp_ep_create(worker_->handle, &params, &peer.endpoint),
                      name_of(peer) + " cannot be reached");
            }
            for (Peer& peer : peers_)
                if (!peer.is_lost())
                    add(peer.descriptor, EPOLLIN | EPOLLRDHUP | EPOLLET, static_cast<uint64_t>(peer.rank));
            add(worker_->descriptor, EPOLLIN, is_worker);
            living().add(this);
            begin_keeping();
        } catch (...) {
            living().remove(this);
            close_endpoints();
            throw;
        }
    }

    ~UcxWire() override {
        living().remove(this);
        end_keeping();
        if (!is_cut_) flush();
        cut();
        close_endpoints();
        close_descriptors();
    }

    // When the process ends: send what is left, and keep all other threads out. Nothing is closed; the kernel does
    // that.
    void stop() {
        end_keeping();
        if (!is_cut_) flush();
        mutex_.lock();
        for (Peer& peer : peers_)
            if (!peer.is_lost()) say_goodbye(peer);
    }

  private:
    static constexpr uint64_t is_worker = ~uint64_t{1};

    void check(Status status, const std::string& what) {
        if (status != Status::ok)
            throw EngineError(Fault::usage, joined({"ucx: ", what, ": ", api_.ucs_status_string(status)}));
    }

    RequestParams with_callback(Transfer* transfer) {
        transfer->wire = this;
        RequestParams params;
        params.fields = RequestParams::has_callback | RequestParams::has_argument | RequestParams::has_memory_type;
        params.argument = transfer;
        return params;
    }

    // UCX would do it too, but 1.20 then crashes when the peer is lost, if it may not watch the memory of the process
    // (see `load`). If this fails, it is left to UCX.
    void register_memory(Transfer* transfer, size_t bytes, RequestParams& params) {
        MemoryParams memory;
        memory.address = transfer->memory;
        memory.length = bytes;
        if (api_.ucp_mem_map(worker_->context(), &memory, &transfer->registered) != Status::ok) return;
        params.fields |= RequestParams::has_memory;
        params.memory = transfer->registered;
    }
    void unregister(Transfer* transfer) {
        if (Memory memory = std::exchange(transfer->registered, nullptr))
            api_.ucp_mem_unmap(worker_->context(), memory);
    }

    void enter_ucx(Peer& peer, Transfer* transfer) {
        transfer->is_in_ucx = true;
        transfer->with = peer.rank;
        peer.in_ucx.insert(transfer);
    }

    void begin_send(Peer& peer, Transfer* transfer) override {
        const size_t bytes = transfer->size;
        transfer->header = {transfer->tag, peer.sent, static_cast<uint32_t>(rank())};
        bool is_eager = bytes <= longest_eager_;
        RequestParams params = with_callback(transfer);
        params.fields |= RequestParams::has_flags;
        params.flags = is_eager ? RequestParams::send_eagerly : RequestParams::send_by_rendezvous;
        params.callback.on_sent = on_sent;
        if (!is_eager) register_memory(transfer, bytes, params);
        Request request =
            api_.ucp_am_send_nbx(peer.endpoint, 0, &transfer->header, sizeof(Header), transfer->memory, bytes, &params);
        if (is_under_way(request)) {
            ++peer.sent;
            enter_ucx(peer, transfer);
            if (is_eager) ring();  // there was no room: the sleeping thread finds out when there is
            return;
        }
        unregister(transfer);
        if (request == nullptr) {
            ++peer.sent;
            done(transfer, peer, bytes);
        } else {
            has_trouble(peer, said(peer, error_of(request)));
            fail(transfer, peer, peer.trouble);
        }
    }

    // Called by UCX, which is called under the lock -------------------------------------------------------------------

    static void on_sent(void* request, Status status, void* argument) {
        auto* transfer = static_cast<Transfer*>(argument);
        transfer->wire->left_ucx(transfer, request, status, transfer->size);
    }
    static void on_received(void* request, Status status, size_t, void* argument) {
        auto* transfer = static_cast<Transfer*>(argument);
        transfer->wire->left_ucx(transfer, request, status, transfer->length);
    }
    void left_ucx(Transfer* transfer, void* request, Status status, size_t bytes) {
        Peer& peer = peers_[static_cast<size_t>(transfer->with)];
        peer.in_ucx.erase(transfer);
        transfer->is_in_ucx = false;
        unregister(transfer);
        api_.ucp_request_free(request);
        if (status == Status::ok) {
            done(transfer, peer, bytes);
            return;
        }
        has_trouble(peer, said(peer, status));
        fail(transfer, peer, peer.is_lost() ? peer.why : peer.trouble);
    }

    static void on_error(void* argument, Endpoint, Status status) {
        auto& peer = *static_cast<Peer*>(argument);
        peer.wire->has_trouble(peer, peer.wire->said(peer, status));
        peer.trouble_ends = Clock::now();  // it has said goodbye: nothing more will arrive
    }

    static Status on_message(void* argument, const void* head, size_t head_bytes, void* data, size_t bytes,
                             const MessageInfo* info) {
        auto& wire = *static_cast<UcxWire*>(argument);
        Header header;
        if (head_bytes != sizeof header) return Status::ok;
        std::memcpy(&header, head, sizeof header);
        if (header.from >= wire.peers_.size()) return Status::ok;
        Peer& peer = wire.peers_[header.from];
        if (peer.is_lost() || header.number < peer.come || peer.early.contains(header.number)) return Status::ok;
        bool is_rendezvous = (info->attributes & MessageInfo::is_rendezvous) != 0;
        if (header.number == peer.come && !is_rendezvous) {
            // The usual case: from UCX's memory into a posted receive.
            ++peer.come;
            if (Transfer* receive = wire.matching_.take_receive(peer.rank, header.tag))
                wire.take(peer, receive, data, bytes);
            else
                wire.matching_.keep(peer.rank, header.tag, copy_of(data, bytes));
        } else {
            Message message = is_rendezvous ? Message{bytes, nullptr, data} : copy_of(data, bytes);
            peer.early.emplace(header.number, std::pair(header.tag, std::move(message)));
        }
        while (!peer.early.empty() && peer.early.begin()->first == peer.come) {
            auto [tag, message] = std::move(peer.early.begin()->second);
            peer.early.erase(peer.early.begin());
            ++peer.come;
            if (Transfer* receive = wire.matching_.take_receive(peer.rank, tag))
                wire.meet(peer, receive, std::move(message));
            else
                wire.matching_.keep(peer.rank, tag, std::move(message));
        }
        // In progress: the handle by which a long message is fetched stays valid.
        return is_rendezvous ? Status::in_progress : Status::ok;
    }

    // Receiving -------------------------------------------------------------------------------------------------------

    static Message copy_of(const void* data, size_t bytes) {
        Message made{bytes, std::unique_ptr<uint8_t[]>(new uint8_t[std::max<size_t>(1, bytes)]), nullptr};
        if (bytes > 0) std::memcpy(made.data.get(), data, bytes);
        return made;
    }

    bool fits(Peer& peer, Transfer* receive, size_t length) {
        if (length <= receive->size) return true;
        has_trouble(peer, too_long(peer, length, receive));
        fail(receive, peer, peer.trouble);
        return false;
    }

    void take(Peer& peer, Transfer* receive, const void* data, size_t bytes) {
        if (!fits(peer, receive, bytes)) return;
        if (bytes > 0) std::memcpy(receive->memory, data, bytes);
        done(receive, peer, bytes);
    }

    void meet(Peer& peer, Transfer* receive, Message message) {
        if (message.fetch_by == nullptr) {
            take(peer, receive, message.data.get(), message.length);
        } else if (peer.is_lost()) {
            fail(receive, peer, peer.why);
        } else if (fits(peer, receive, message.length)) {
            receive->length = message.length;
            fetches_.push_back({&peer, receive, message.fetch_by});
        }
    }

    void take_kept(Peer& peer, Transfer* receive, Message message) override {
        meet(peer, receive, std::move(message));
        start_fetches();
        if (troubled_ > 0) advance();
    }

    // Not from within a callback.
    void start_fetches() {
        for (auto [peer, receive, by] : std::exchange(fetches_, {})) {
            RequestParams params = with_callback(receive);
            params.callback.on_received = on_received;
            register_memory(receive, receive->length, params);
            Request request = api_.ucp_am_recv_data_nbx(worker_->handle, by, receive->memory, receive->length, &params);
            if (is_under_way(request)) {
                enter_ucx(*peer, receive);
                continue;
            }
            unregister(receive);
            if (request == nullptr) {
                done(receive, *peer, receive->length);
            } else {
                has_trouble(*peer, said(*peer, error_of(request)));
                fail(receive, *peer, peer->trouble);
            }
        }
    }

    // Progress --------------------------------------------------------------------------------------------------------

    bool may_sleep() override { return is_at_rest() || api_.ucp_worker_arm(worker_->handle) != Status::busy; }

    // After a cut in the middle of a send, UCX is left alone as soon as it uses no memory of callers any more: when the
    // peer then closes its end, UCX 1.13 may use a connection that it has freed, and crash.
    bool is_at_rest() const {
        return is_cut_ && was_cut_off_ &&
               std::ranges::all_of(peers_, [](const Peer& one) { return one.in_ucx.empty(); });
    }

    bool handle(const epoll_event* events, int count) override {
        for (int i = 0; i < count; ++i) {
            if (events[i].data.u64 == is_bell)
                ++ended_;
            else if (events[i].data.u64 != is_worker)
                listen_to(peers_[events[i].data.u64]);
            else if (is_at_rest())
                remove(worker_->descriptor);
        }
        return advance();
    }

    bool advance() {
        int rounds = 0;
        while (!is_at_rest() && rounds < most_at_once && api_.ucp_worker_progress(worker_->handle) > 0) {
            ++rounds;
            start_fetches();
        }
        if (troubled_ > 0 && rounds < most_at_once) settle();
        return rounds > 0;
    }

    // Wait for a condition under the lock, while UCX makes progress; true if it came true. Only after failures, or at
    // the end.
    template <class Condition>
    bool wait_until(Condition has_come, Clock::time_point deadline) {
        while (true) {
            advance();
            if (has_come()) return true;
            if (Clock::now() >= deadline) return false;
            pollfd one{worker_->descriptor, POLLIN, 0};
            if (api_.ucp_worker_arm(worker_->handle) != Status::busy) poll(&one, 1, 5);
        }
    }

    // Losing ----------------------------------------------------------------------------------------------------------

    std::string said(const Peer& peer, Status status) const { return broken(peer, api_.ucs_status_string(status)); }

    // Nothing is closed within a callback: see `settle`.
    void has_trouble(Peer& peer, const std::string& why) {
        if (peer.has_trouble || peer.is_lost()) return;
        peer.has_trouble = true;
        peer.trouble = why;
        peer.trouble_ends = Clock::now();
        ++troubled_;
    }

    // Its socket is readable: a goodbye, or the peer's end.
    void listen_to(Peer& peer) {
        if (peer.is_lost()) return;
        while (true) {
            std::array<uint8_t, 64> come;
            ssize_t got = recv(peer.descriptor, come.data(), come.size(), MSG_DONTWAIT);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
            if (got <= 0) break;
            for (ssize_t i = 0; i < got && peer.goodbye_bytes < peer.goodbye.size(); ++i)
                peer.goodbye[peer.goodbye_bytes++] = come[static_cast<size_t>(i)];
        }
        bool is_first = !peer.has_trouble;
        has_trouble(peer, has_closed(peer));
        // After a goodbye, UCX may still deliver its messages.
        if (is_first && peer.goodbye_bytes == peer.goodbye.size()) peer.trouble_ends += patience;
    }

    // A long message counts as soon as it is announced, and its data follow.
    bool has_all(const Peer& peer) const {
        Goodbye said;
        std::memcpy(&said, peer.goodbye.data(), sizeof said);
        return peer.come >= said.sent && (said.gives_up || !has_under_way(peer, false));
    }

    // UCX is at a send to this peer, or at a receive from it.
    static bool has_under_way(const Peer& peer, bool sends) {
        return std::ranges::any_of(peer.in_ucx, [&](const Transfer* one) { return one->sends == sends; });
    }

    // UCX has nothing more at the moment: lose the peers in trouble.
    void settle() {
        for (Peer& peer : peers_)
            if (peer.has_trouble && (Clock::now() >= peer.trouble_ends || has_all(peer)))
                lose(peer, std::string(peer.trouble));
    }

    void was_lost(Peer& peer) override {
        if (std::exchange(peer.has_trouble, false)) --troubled_;
        peer.early.clear();
        was_cut_off_ |= has_under_way(peer, true);
        // Its transfers in UCX fail now, or when UCX is called next.
        close_endpoint(peer);
    }

    void leave(Transfer* transfer) override {
        // UCX cannot be told to use other memory or to stop, except by closing the endpoint.
        Peer& peer = peers_[static_cast<size_t>(transfer->with)];
        auto has_ended = [&] { return !transfer->is_in_ucx; };
        bool may_end = transfer->sends && !peer.is_lost();
        if (!may_end || !wait_until(has_ended, Clock::now() + patience)) {
            lose(peer, transfer->sends ? "a send to it was cancelled" : "a receive from it was cancelled");
            wait_until(has_ended, Clock::now() + patience);
        }
        transfer->was_left = transfer->is_in_ucx;
        announce();
    }

    void close_endpoint(Peer& peer) {
        if (peer.endpoint == nullptr) return;
        RequestParams params;
        params.fields = RequestParams::has_flags;
        params.flags = RequestParams::close_by_force;
        peer.closing = api_.ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &params);
    }

    bool is_done(Request& request) {
        if (!is_under_way(request)) return true;
        if (api_.ucp_request_check_status(request) == Status::in_progress) return false;
        api_.ucp_request_free(std::exchange(request, nullptr));
        return true;
    }

    // The peer waits for all messages before it considers this end lost.
    void say_goodbye(Peer& peer) override {
        const Goodbye said{peer.sent, has_under_way(peer, true)};
        [[maybe_unused]] auto written = ::send(peer.descriptor, &said, sizeof said, MSG_NOSIGNAL | MSG_DONTWAIT);
    }

    // Let what was sent leave before this end is closed.
    void flush() {
        std::lock_guard lock(mutex_);
        std::vector<Request> flushes;
        for (Peer& peer : peers_)
            if (!peer.is_lost()) {
                RequestParams params;
                flushes.push_back(api_.ucp_ep_flush_nbx(peer.endpoint, &params));
            }
        auto are_done = [&] {
            return std::ranges::count_if(flushes, [&](Request& one) { return !is_done(one); }) == 0;
        };
        has_leftovers_ = !wait_until(are_done, Clock::now() + patience);
    }

    void close_endpoints() {
        std::lock_guard lock(mutex_);
        for (Peer& peer : peers_) close_endpoint(peer);
        auto are_done = [&] {
            return std::ranges::count_if(
                       peers_, [&](Peer& peer) { return !is_done(peer.closing) || !peer.in_ucx.empty(); }) == 0;
        };
        if (is_at_rest() || !wait_until(are_done, Clock::now() + patience) || has_leftovers_) worker_->leave();
    }

    std::shared_ptr<Worker> worker_;
    const Api& api_;
    size_t longest_eager_;
    struct Fetch {
        Peer* peer;
        Transfer* receive;
        void* by;
    };
    std::vector<Fetch> fetches_;
    int troubled_ = 0;
    bool has_leftovers_ = false, was_cut_off_ = false;
};

void Living::add(UcxWire* wire) {
    std::lock_guard lock(mutex_);
    // Handlers run before libraries are unloaded.
    if (!std::exchange(has_handler_, true)) std::atexit([] { living().end(); });
    wires_.push_back(wire);
}

void Living::remove(UcxWire* wire) {
    std::lock_guard lock(mutex_);
    std::erase(wires_, wire);
}

void Living::end() {
    if (forks_ != forks()) return;
    is_ending_.store(true, std::memory_order_relaxed);
    mutex_.lock();  // for good
    for (UcxWire* wire : wires_) wire->stop();
}

}  // namespace

}  // namespace allfold::ucx

namespace allfold {

std::shared_ptr<Wire> ucx_wire(std::shared_ptr<ucx::Worker> worker, int rank, const std::vector<int>& descriptors,
                               const std::vector<std::string>& addresses, size_t longest_eager) {
    ucx::UcxWire* made;
    try {
        made = new ucx::UcxWire(std::move(worker), rank, descriptors, addresses, longest_eager);
    } catch (...) {
        for (int one : descriptors)
            if (one >= 0) close(one);
        throw;
    }
    return {made, [](ucx::UcxWire* wire) {
                if (wire->is_here() && !ucx::living().is_ending()) delete wire;
            }};
}

}  // namespace allfold
