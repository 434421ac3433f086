// Point-to-point messages for Python: arrays in, waits without the GIL.
#include "messages/channel.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/calls/communicator.hpp"
#include "bindings/calls/entry.hpp"
#include "bindings/calls/messages.hpp"
#include "bindings/gil.hpp"
#include "shared/attachment.hpp"
#include "shared/text.hpp"

namespace allfold {

namespace {

int64_t number(nb::handle value, const char* name, const char* what) {
    int overflow = 0;
    long long result = -1;
    if (PyIndex_Check(value.ptr())) {
        nb::object index = nb::steal(in_python([&] { return PyNumber_Index(value.ptr()); }));
        if (index.is_valid()) result = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
        if (!PyErr_Occurred() && overflow == 0) [[likely]]
            return result;
    }
    drop_error();
    throw EngineError(Fault::usage, joined({name, ": ", what, " must be a whole number", overflow ? " of 31 bits" : "",
                                            ", not ", shown(value)}));
}

class PyChannel : public MessageEntry {
  public:
    using MessageEntry::MessageEntry;

    void send(nb::handle array, nb::handle destination, nb::handle tag, nb::handle timeout, nb::handle dtype) {
        native_->check_caller("send");
        PyOperation job;
        prepare(job, Operation::Kind::send, "send", array, destination, tag, dtype);
        run(job.operation, timeout);
    }

    nb::tuple receive(nb::handle array, nb::handle source, nb::handle tag, nb::handle timeout, nb::handle dtype) {
        native_->check_caller("recv");
        PyOperation job;
        prepare(job, Operation::Kind::receive, "recv", array, source, tag, dtype);
        return message(run(job.operation, timeout));
    }

    std::shared_ptr<PyOperation> start(bool sends, nb::handle array, nb::handle peer, nb::handle tag, nb::handle dtype,
                                       uint8_t context, bool asks) {
        native_->check_caller(sends ? "isend" : "irecv");
        auto job = std::make_shared<PyOperation>();
        prepare(*job, sends ? Operation::Kind::send : Operation::Kind::receive, sends ? "isend" : "irecv", array, peer,
                tag, dtype);
        job->operation.context = context;
        job->operation.asks = asks;
        return begin(std::move(job));
    }

    std::shared_ptr<PyOperation> start_taking(nb::handle source, nb::handle tag, uint8_t context) {
        native_->check_caller("irecv");
        auto job = std::make_shared<PyOperation>();
        address(job->operation, Operation::Kind::take, "irecv", source, tag);
        job->operation.context = context;
        return begin(std::move(job));
    }

    nb::tuple take(nb::handle source, nb::handle tag, nb::handle timeout, uint8_t context) {
        native_->check_caller("recv");
        PyOperation job;
        address(job.operation, Operation::Kind::take, "recv", source, tag);
        job.operation.context = context;
        run(job.operation, timeout);
        return with_data(job.operation);
    }

    bool done(PyOperation& job) {
        native_->check_caller("done");
        return poll(job);
    }

    nb::object probe(nb::handle source, nb::handle tag, uint8_t context) {
        native_->check_caller("probe");
        int64_t from = source.is_none() ? any_source : number(source, "probe", "source");
        auto found = native_->probe(from, number(tag, "probe", "tag"), context);
        return found ? nb::object(message(*found)) : nb::none();
    }

    nb::tuple await_message(nb::handle source, nb::handle tag, nb::handle timeout, uint8_t context) {
        native_->check_caller("probe");
        PyOperation job;
        address(job.operation, Operation::Kind::probe, "probe", source, tag);
        job.operation.context = context;
        return message(run(job.operation, timeout));
    }

    bool withdraw(PyOperation& job) {
        native_->check_caller("cancel");
        WithoutGil without;
        return native_->withdraw(job.operation);
    }

    nb::object wait(PyOperation& job, nb::handle timeout) {
        native_->check_caller("wait");
        auto kind = job.operation.kind;
        Message received = finished(job, duration(timeout));
        if (job.operation.withdrawn || kind == Operation::Kind::send) return nb::none();
        return kind == Operation::Kind::take ? with_data(job.operation) : message(received);
    }

    void close() {
        if (!native_->is_here()) return;
        WithoutGil without;
        native_->close();
    }

  private:
    static nb::tuple message(const Message& message) {
        return nb::make_tuple(message.source, message.tag, message.elements);
    }

    // Of a take.
    static nb::tuple with_data(Operation& operation) {
        const Message& message = operation.message;
        return nb::make_tuple(message.source, message.tag, message.elements, data_of(operation));
    }

    static void address(Operation& operation, Operation::Kind kind, const char* name, nb::handle peer, nb::handle tag) {
        bool receives = kind != Operation::Kind::send;
        operation.kind = kind;
        bool anyone = receives && peer.is_none();
        operation.peer = anyone ? any_source : number(peer, name, receives ? "source" : "destination");
        operation.tag = number(tag, name, "tag");
    }

    Clock::duration duration(nb::handle timeout) const {
        double seconds = timeout_;
        if (!timeout.is_none() && (!nb::try_cast(timeout, seconds) || !(seconds >= 0)))
            throw EngineError(Fault::usage,
                              std::string("timeout must be a non-negative number of seconds, not ") + shown(timeout));
        return allfold::seconds(std::max(0.0, seconds));
    }

    static void prepare(PyOperation& job, Operation::Kind kind, const char* name, nb::handle array, nb::handle peer,
                        nb::handle tag, nb::handle dtype) {
        bool receives = kind == Operation::Kind::receive;
        Operation& operation = job.operation;
        address(operation, kind, name, peer, tag);
        take_arguments(name, [&] {
            std::optional<DType> as;
            if (!dtype.is_none()) as = dtype_named(dtype);
            job.array = Array(array, receives, as);
        });
        operation.dtype = job.array.dtype;
        operation.data = static_cast<char*>(job.array.data);
        operation.elements = job.array.elements;
    }

    Message run(Operation& operation, nb::handle timeout) { return performed(operation, duration(timeout)); }
};

}  // namespace

MessageEntry::MessageEntry(uint32_t rank, const std::vector<MemberTuple>& members, std::string label, double timeout,
                           bool fetches, std::shared_ptr<FirstError> first_error,
                           std::shared_ptr<Attachment> attachment)
    : attachment_(std::move(attachment)), timeout_(timeout) {
    std::vector<Channel::Member> list;
    for (auto& [arena, post, inbox] : members) list.push_back({arena, post, inbox});
    native_ = std::make_unique<Channel>(rank, std::move(list), std::move(label), fetches, std::move(first_error));
}

// A forked child must not destroy its copy: locks may be held, and the threads do not exist there.
MessageEntry::~MessageEntry() {
    if (!native_->is_here()) static_cast<void>(native_.release());
}

Message MessageEntry::performed(Operation& operation, Clock::duration limit) {
    Interpreter interpreter(operation.bytes());
    return native_->run(operation, limit, [&] { interpreter.release(); }, check_signals);
}

std::shared_ptr<PyOperation> MessageEntry::begin(std::shared_ptr<PyOperation> job) {
    {
        Interpreter interpreter(job->operation.bytes());
        native_->start(job->operation, [&] { interpreter.release(); });
    }
    if (!is_done(*job)) keep(job);
    return job;
}

Message MessageEntry::finished(PyOperation& job, Clock::duration limit) {
    Message received;
    {
        Interpreter interpreter(0);
        if (!is_done(job)) interpreter.release();
        received = native_->wait(job.operation, limit, check_signals);
    }
    job.array = Array();
    return received;
}

nb::object data_of(Operation& taken) {
    const size_t bytes = taken.bytes();
    char* data = taken.own.release();
    nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<char*>(memory); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(data, {bytes}, owner));
}

bool MessageEntry::poll(PyOperation& job) {
    if (!native_->done(job.operation)) return false;
    job.array = Array();
    return true;
}

// The engine uses operations until they are done, even if their handles were dropped.
void MessageEntry::keep(const std::shared_ptr<PyOperation>& job) {
    if (kept_.size() >= sweep_at_) {
        std::erase_if(kept_, [](const auto& old) { return is_done(*old); });
        sweep_at_ = std::max<size_t>(16, 2 * kept_.size());
    }
    kept_.push_back(job);
}

MessageEntry& messages_of(nb::handle object) { return *nb::cast<PyChannel*>(object); }
Channel& channel_of(nb::handle object) { return nb::cast<PyChannel*>(object)->native(); }

void bind_channel(nb::module_& module) {
    nb::class_<FirstError>(module, "FirstError").def(nb::init<>());
    nb::class_<PyOperation>(module, "Operation");
    nb::class_<PyChannel>(module, "Channel")
        .def(nb::init<uint32_t, const std::vector<PyChannel::MemberTuple>&, std::string, double, bool,
                      std::shared_ptr<FirstError>, std::shared_ptr<Attachment>>())
        .def("send", &PyChannel::send, nb::arg("array").none(), nb::arg("destination").none(), nb::arg("tag").none(),
             nb::arg("timeout").none(), nb::arg("dtype").none())
        .def("receive", &PyChannel::receive, nb::arg("array").none(), nb::arg("source").none(), nb::arg("tag").none(),
             nb::arg("timeout").none(), nb::arg("dtype").none())
        .def("start", &PyChannel::start, nb::arg("sends"), nb::arg("array").none(), nb::arg("peer").none(),
             nb::arg("tag").none(), nb::arg("dtype").none(), nb::arg("context") = 0, nb::arg("asks") = false)
        .def("start_taking", &PyChannel::start_taking, nb::arg("source").none(), nb::arg("tag").none(),
             nb::arg("context") = 0)
        .def("take", &PyChannel::take, nb::arg("source").none(), nb::arg("tag").none(), nb::arg("timeout").none(),
             nb::arg("context") = 0)
        .def("done", &PyChannel::done)
        .def("probe", &PyChannel::probe, nb::arg("source").none(), nb::arg("tag").none(), nb::arg("context") = 0)
        .def("await_message", &PyChannel::await_message, nb::arg("source").none(), nb::arg("tag").none(),
             nb::arg("timeout").none(), nb::arg("context") = 0)
        .def("withdraw", &PyChannel::withdraw)
        .def("wait", &PyChannel::wait, nb::arg("operation"), nb::arg("timeout").none())
        .def("close", &PyChannel::close);
    module.def("inbox_bytes", &Channel::inbox_bytes);
    module.attr("ANY_TAG") = any_tag;
}

}  // namespace allfold
