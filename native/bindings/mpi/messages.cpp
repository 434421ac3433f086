// Messages of buffers, as MPI's calls give them: their bytes, whatever their type.
#include "bindings/gil.hpp"
#include "bindings/mpi/requests.hpp"

namespace allfold::mpi {

Clock::duration limit_of(const MessageEntry& messages) { return seconds(messages.timeout()); }

namespace {

bool set_memory(const Given& given, PyOperation& job, size_t place, bool receives) {
    auto memory = memory_of(given[place], receives);
    if (!memory) return false;
    job.array = std::move(*memory);
    Operation& operation = job.operation;
    operation.kind = receives ? Operation::Kind::receive : Operation::Kind::send;
    operation.dtype = DType::uint8;
    operation.data = static_cast<char*>(job.array.data);
    operation.elements = bytes_of(job.array);
    return true;
}

bool is_rank(const Calls& calls, long number) { return number >= 0 && number < static_cast<long>(calls.size); }
bool is_tag(long number) { return number >= 0 && number <= known.highest_tag; }

bool is_status(PyObject* status) { return !status || Py_TYPE(status) == known.status; }

void set_status(PyObject* status, uint32_t source, int32_t tag, uint64_t bytes) {
    if (status) call_python(nb::handle(status).attr("_set"), call_python(known.arrived, source, tag, bytes));
}

// A source and a tag, or any.
bool set_source(const Given& given, const Calls& calls, Operation& operation, size_t peer, size_t tag) {
    long source = known.any_source, label = known.any_tag;
    if (!given.number(peer, source) || !given.number(tag, label)) return false;
    if ((!is_rank(calls, source) && source != known.any_source) || (!is_tag(label) && label != known.any_tag))
        return false;
    operation.peer = source == known.any_source ? any_source : source;
    operation.tag = label == known.any_tag ? any_tag : label;
    return true;
}

nb::object send(const Given& given) {
    nb::object keep;
    Calls* calls = calls_of(given.self, keep);
    PyOperation job;
    if (!calls || !set_send(given, *calls, job, 0, 1, 2)) return {};
    return failing(given.self, [&] {
        calls->messages.native().check_caller("send");
        calls->messages.performed(job.operation, limit_of(calls->messages));
        return nb::none();
    });
}

nb::object receive(const Given& given) {
    nb::object keep;
    Calls* calls = calls_of(given.self, keep);
    PyObject* status = given.has(3) ? given[3] : nullptr;
    PyOperation job;
    if (!calls || !is_status(status) || !set_receive(given, *calls, job, 0, 1, 2)) return {};
    const Message message = failing(given.self, [&] {
        calls->messages.native().check_caller("recv");
        return calls->messages.performed(job.operation, limit_of(calls->messages));
    });
    set_status(status, message.source, message.tag, message.elements);
    return nb::none();
}

// A message of objects: what it holds goes to Python's `loaded`, small ones as bytes, because those are made faster.
nb::object receive_object(const Given& given) {
    constexpr size_t small = 64 << 10;
    nb::object keep;
    Calls* calls = calls_of(given.self, keep);
    PyObject* status = given.has(3) ? given[3] : nullptr;
    PyOperation job;
    job.operation.kind = Operation::Kind::take;
    if (!calls || given.has(0) || !is_status(status) || !set_source(given, *calls, job.operation, 1, 2)) return {};
    const Message message = failing(given.self, [&] {
        calls->messages.native().check_caller("recv");
        return calls->messages.performed(job.operation, limit_of(calls->messages));
    });
    set_status(status, message.source, message.tag, job.operation.bytes());
    const size_t bytes = job.operation.bytes();
    nb::object data = bytes <= small ? nb::object(nb::bytes(job.operation.own.get(), bytes)) : data_of(job.operation);
    return call_python(known.loaded, data);
}

nb::object started(const Given& given, bool receives) {
    nb::object keep;
    Calls* calls = calls_of(given.self, keep);
    if (!calls) return {};
    auto job = std::make_shared<PyOperation>();
    if (!(receives ? set_receive : set_send)(given, *calls, *job, 0, 1, 2)) return {};
    failing(given.self, [&] {
        calls->messages.native().check_caller(receives ? "irecv" : "isend");
        calls->messages.begin(job);
    });
    return request_for(given.self, *calls, std::move(job));
}

nb::object isend(const Given& given) { return started(given, false); }
nb::object irecv(const Given& given) { return started(given, true); }

nb::object sendrecv(const Given& given) {
    nb::object keep;
    Calls* calls = calls_of(given.self, keep);
    if (!calls || given.has(6)) return {};
    auto sending = std::make_shared<PyOperation>(), receiving = std::make_shared<PyOperation>();
    // Both are checked first: after an error, a receive that was begun would take the next message.
    if (!set_send(given, *calls, *sending, 0, 1, 2) || !set_receive(given, *calls, *receiving, 3, 4, 5)) return {};
    failing(given.self, [&] {
        MessageEntry& messages = calls->messages;
        messages.native().check_caller("irecv");
        messages.begin(receiving);
        messages.begin(sending);
        messages.finished(*receiving, limit_of(messages));
        messages.finished(*sending, limit_of(messages));
    });
    return nb::none();
}

}  // namespace

bool set_send(const Given& given, const Calls& calls, PyOperation& job, size_t array, size_t peer, size_t tag) {
    long destination = 0, label = 0;
    if (!given.number(peer, destination) || !given.number(tag, label)) return false;
    if (!is_rank(calls, destination) || !is_tag(label) || !set_memory(given, job, array, false)) return false;
    job.operation.peer = destination;
    job.operation.tag = label;
    return true;
}

bool set_receive(const Given& given, const Calls& calls, PyOperation& job, size_t array, size_t peer, size_t tag) {
    return set_source(given, calls, job.operation, peer, tag) && set_memory(given, job, array, true);
}

const std::vector<Word> message_words = {
    {"Send", {"buf", "dest", "tag"}, 2, send},
    {"Rsend", {"buf", "dest", "tag"}, 2, send},
    {"Recv", {"buf", "source", "tag", "status"}, 1, receive},
    {"recv", {"buf", "source", "tag", "status"}, 0, receive_object},
    {"Isend", {"buf", "dest", "tag"}, 2, isend},
    {"Irsend", {"buf", "dest", "tag"}, 2, isend},
    {"Irecv", {"buf", "source", "tag"}, 1, irecv},
    {"Sendrecv", {"sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status"}, 2, sendrecv},
};

}  // namespace allfold::mpi
