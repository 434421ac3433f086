// Collectives on buffers, as MPI's calls give them.
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "bindings/calls/communicator.hpp"
#include "bindings/gil.hpp"
#include "bindings/mpi/words.hpp"

namespace allfold::mpi {

namespace {

int collective_named(std::string_view name) {
    for (size_t i = 0; i < collectives.size(); ++i)
        if (collectives[i].name == name) return static_cast<int>(i);
    throw std::logic_error("there is no such collective");
}

// The engine's numbers of collectives, which Python defines when it is imported.
struct Numbers {
    int all_reduce = collective_named("all_reduce"), reduce = collective_named("reduce"),
        broadcast = collective_named("broadcast"), gather = collective_named("gather"),
        scatter = collective_named("scatter"), all_gather = collective_named("all_gather"),
        reduce_scatter = collective_named("reduce_scatter"), all_to_all = collective_named("all_to_all"),
        scan = collective_named("scan"), exscan = collective_named("exscan"), barrier = collective_named("barrier");
};
const Numbers& numbers() {
    static const Numbers made;
    return made;
}

// One collective call: its arrays, and what is copied before it.
class Collective {
  public:
    explicit Collective(const Given& given) : given_(given), calls_(calls_of(given.self, keep_)) {
        if (calls_ && (calls_->is_queued || !calls_->entry.is_free())) calls_ = nullptr;
    }

    explicit operator bool() const { return calls_ != nullptr; }
    uint32_t rank() const { return calls_->rank; }
    uint32_t size() const { return calls_->size; }

    // False if the argument is not a rank of this communicator.
    bool set_root(size_t place) {
        return given_.number(place, root_) && root_ >= 0 && root_ < static_cast<long>(size());
    }
    bool is_root() const { return root_ == static_cast<long>(rank()); }

    bool is_in_place(size_t place) const { return given_[place] == known.in_place || given_[place] == Py_None; }
    bool set_input(size_t place, uint32_t blocks = 1) { return taken(job_.input, place, false, blocks); }
    bool set_output(size_t place, uint32_t blocks = 1) { return taken(job_.output, place, true, blocks); }
    Job& job() { return job_; }

    // The engine's number of an operation, for the type of the output; false if the engine does not know it.
    bool set_op(size_t place) {
        auto found = known.ops.find(given_[place] ? given_[place] : known.sum);
        if (found == known.ops.end()) return false;
        op_ = found->second[static_cast<size_t>(job_.output->dtype)];
        return op_.is_valid();
    }

    // The output of a reduction; an input of it must have the same type of MPI.
    bool set_result(size_t place) {
        job_.output = memory_of(given_[place], true, 1, &type_);
        return job_.output && type_;
    }
    bool set_reduced(size_t place, uint32_t blocks = 1) {
        PyObject* type = nullptr;
        job_.input = memory_of(given_[place], false, blocks, &type);
        return job_.input && type == type_;
    }
    // The input is copied to the output before the call, which works there. False if they differ.
    bool starts_from(size_t place) {
        if (!set_reduced(place)) return false;
        source_ = std::move(job_.input);
        job_.input.reset();
        return source_->elements == job_.output->elements;
    }
    // Reduce; on ranks without a result, the output is the caller's input.
    nb::object reduce(bool only_reads) {
        only_reads_ = only_reads;
        if (bytes_of(*job_.output) >= calls_->from_bytes) job_.algorithm = calls_->reduces_by;
        return run(numbers().reduce);
    }
    // The call works in memory of its own: MPI's array stays as it is.
    void work_aside() {
        if (!source_) source_ = std::move(job_.output);
        job_.output.emplace(aside(source_->elements, source_->dtype));
    }
    // The input is a copy of a part of the output.
    void bring_part(size_t first, size_t elements) {
        Array& output = *job_.output;
        job_.input.emplace(aside(elements, output.dtype));
        std::memcpy(job_.input->data, static_cast<char*>(output.data) + first * size_of(output.dtype),
                    bytes_of(*job_.input));
    }
    Array aside(size_t elements, DType dtype) {
        Array array;
        memory_.reset(new char[elements * size_of(dtype)]);
        array.data = memory_.get();
        array.elements = elements;
        array.dtype = dtype;
        return array;
    }

    nb::object run(int collective) {
        nb::handle op = op_.is_valid() ? op_ : nb::handle(Py_None);
        const bool good = unless_refused([&] {
            calls_->entry.prepare_taken(job_, collective, op, static_cast<int>(root_));
            return true;
        });
        if (!good) return {};
        if (only_reads_ && writes_output()) {
            work_aside();
            job_.call.output = job_.output->data;
        }
        nb::object made = calls_->entry.telling([&] {
            copy_source();
            calls_->entry.perform(job_);
            return nb::none();
        });
        if (!made.is_valid()) fail(given_.self, "_fail_collective");
        return made;
    }

  private:
    bool writes_output() const {
        const Call& call = job_.call;
        for (const Program* program : {call.private_program, call.readable_program})
            if (program && program->writes_own_output) return true;
        // In shared memory, peers may write there.
        return call.shared_program &&
               communicator_of(calls_->communicator).in_shared_memory(call.output, bytes_of(*job_.output));
    }
    bool taken(std::optional<Array>& array, size_t place, bool writable, uint32_t blocks) {
        array = memory_of(given_[place], writable, blocks);
        return array.has_value();
    }
    void copy_source() {
        if (!source_) return;
        Interpreter interpreter(bytes_of(*source_));
        std::memmove(job_.output->data, source_->data, bytes_of(*source_));
    }

    const Given& given_;
    nb::object keep_;
    Calls* calls_;
    std::unique_ptr<char[]> memory_;
    Job job_;
    std::optional<Array> source_;
    nb::handle op_;
    PyObject* type_ = nullptr;
    long root_ = 0;
    bool only_reads_ = false;
};

nb::object barrier(const Given& given) {
    Collective call(given);
    return call ? call.run(numbers().barrier) : nb::object();
}

nb::object bcast(const Given& given) {
    Collective call(given);
    return call && call.set_root(1) && call.set_output(0) ? call.run(numbers().broadcast) : nb::object();
}

// Of reductions on ranks that have a result: sendbuf, recvbuf, op.
bool has_result(Collective& call) {
    return call && call.set_result(1) && call.set_op(2) && (call.is_in_place(0) || call.starts_from(0));
}
nb::object reduced_to(Collective& call, int collective) {
    return has_result(call) ? call.run(collective) : nb::object();
}

nb::object allreduce(const Given& given) {
    Collective call(given);
    return reduced_to(call, numbers().all_reduce);
}

nb::object scan(const Given& given) {
    Collective call(given);
    return reduced_to(call, numbers().scan);
}

// Rank 0 has no result: its receive buffer stays as it is.
nb::object exscan(const Given& given) {
    Collective call(given);
    if (!call || call.rank() > 0 || call.is_in_place(0)) return reduced_to(call, numbers().exscan);
    if (!call.set_result(1) || !call.set_op(2) || !call.starts_from(0)) return {};
    call.work_aside();
    return call.run(numbers().exscan);
}

nb::object reduce(const Given& given) {
    Collective call(given);
    if (!call || !call.set_root(3)) return {};
    if (call.is_root()) return has_result(call) ? call.reduce(false) : nb::object();
    Job& job = call.job();
    if (call.is_in_place(0) || !call.set_input(0)) return {};
    job.output = std::move(job.input);
    job.input.reset();
    if (!call.set_op(2)) return {};
    return call.reduce(true);
}

nb::object allgather(const Given& given) {
    Collective call(given);
    if (!call || !call.set_output(1, call.size())) return {};
    const size_t part = call.job().output->elements / call.size();
    if (call.is_in_place(0))
        call.bring_part(part * call.rank(), part);
    else if (!call.set_input(0))
        return {};
    return call.run(numbers().all_gather);
}

nb::object alltoall(const Given& given) {
    Collective call(given);
    if (!call || !call.set_output(1, call.size())) return {};
    if (call.is_in_place(0))
        call.bring_part(0, call.job().output->elements);
    else if (!call.set_input(0, call.size()))
        return {};
    return call.run(numbers().all_to_all);
}

nb::object gather(const Given& given) {
    Collective call(given);
    if (!call || !call.set_root(2)) return {};
    if (!call.is_root()) return call.set_input(0) ? call.run(numbers().gather) : nb::object();
    if (!call.set_output(1, call.size())) return {};
    const size_t part = call.job().output->elements / call.size();
    if (call.is_in_place(0))
        call.bring_part(part * call.rank(), part);
    else if (!call.set_input(0))
        return {};
    return call.run(numbers().gather);
}

nb::object scatter(const Given& given) {
    Collective call(given);
    if (!call || !call.set_root(2)) return {};
    if (!call.is_root()) return call.set_output(1) ? call.run(numbers().scatter) : nb::object();
    if (!call.set_input(0, call.size())) return {};
    Job& job = call.job();
    if (call.is_in_place(1))
        job.output.emplace(call.aside(job.input->elements / call.size(), job.input->dtype));
    else if (!call.set_output(1))
        return {};
    return call.run(numbers().scatter);
}

nb::object reduce_scatter_block(const Given& given) {
    Collective call(given);
    if (!call || call.is_in_place(0) || !call.set_result(1) || !call.set_op(2) || !call.set_reduced(0, call.size()))
        return {};
    return call.run(numbers().reduce_scatter);
}

}  // namespace

const std::vector<Word> collective_words = {
    {"Barrier", {}, 0, barrier},
    {"Bcast", {"buf", "root"}, 1, bcast},
    {"Reduce", {"sendbuf", "recvbuf", "op", "root"}, 2, reduce},
    {"Allreduce", {"sendbuf", "recvbuf", "op"}, 2, allreduce},
    {"Allgather", {"sendbuf", "recvbuf"}, 2, allgather},
    {"Alltoall", {"sendbuf", "recvbuf"}, 2, alltoall},
    {"Gather", {"sendbuf", "recvbuf", "root"}, 2, gather},
    {"Scatter", {"sendbuf", "recvbuf", "root"}, 2, scatter},
    {"Reduce_scatter_block", {"sendbuf", "recvbuf", "op"}, 2, reduce_scatter_block},
    {"Scan", {"sendbuf", "recvbuf", "op"}, 2, scan},
    {"Exscan", {"sendbuf", "recvbuf", "op"}, 2, exscan},
};

}  // namespace allfold::mpi
