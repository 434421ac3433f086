// Reads a rank's state from its arena, from outside: for `allfold doctor`, for the flight recorder, and for ranks that
// agree on which ranks are left.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bindings/bindings.hpp"
#include "collectives/communicator.hpp"
#include "collectives/signature.hpp"
#include "peers/blame.hpp"
#include "peers/stack_query.hpp"
#include "shared/ticks.hpp"

namespace allfold {

namespace nb = nanobind;

namespace {

// Converts ticks to seconds since 1970, from both clocks when the communicator was made and now.
struct Times {
    uint64_t start_ticks, start_time;
    double ticks_a_nanosecond;

    explicit Times(const Post& post)
        : start_ticks(post.start_ticks.load(std::memory_order_relaxed)),
          start_time(post.start_time.load(std::memory_order_relaxed)) {
        double passed = static_cast<double>(nanoseconds_since_1970() - start_time);
        ticks_a_nanosecond = passed > 0 ? static_cast<double>(ticks() - start_ticks) / passed : 1;
    }
    nb::object seconds(uint64_t tick) const {
        if (tick < start_ticks || ticks_a_nanosecond <= 0) return nb::none();
        double nanoseconds = static_cast<double>(tick - start_ticks) / ticks_a_nanosecond;
        return nb::float_((static_cast<double>(start_time) + nanoseconds) * 1e-9);
    }
};

nb::dict record_of(uint64_t call, const CallRecord& record, const Times& times) {
    nb::dict dict;
    const Signature& made = record.signature;
    bool known = made.collective < collectives.size() && made.dtype < dtype_count;
    dict["call"] = call;
    dict["collective"] = known ? collectives[made.collective].name.c_str() : "?";
    dict["dtype"] = known ? name_of(static_cast<DType>(made.dtype)) : "?";
    dict["op"] = made.op == custom_op ? "custom" : made.op < op_count ? name_of(static_cast<Op>(made.op)) : "?";
    dict["elements"] = made.elements;
    dict["root"] = made.root;
    dict["algorithm"] = name_in(made.algorithm);
    dict["begun"] = times.seconds(record.begun);
    dict["ended"] = record.ended ? times.seconds(record.ended) : nb::none();
    return dict;
}

const char* standing_of(const Post& post) {
    static constexpr const char* names[] = {"open", "mismatch", "aborted", "left", "late"};
    return names[std::min<uint32_t>(post.standing.load(std::memory_order_acquire), 4)];
}

nb::dict post_of(const Post& post, int32_t process) {
    uint64_t last = post.last_call.load(std::memory_order_acquire);
    uint32_t waits = post.waiting_for.load(std::memory_order_relaxed);
    Times times(post);
    nb::list calls;
    for (uint64_t call = last > records_kept ? last - records_kept + 1 : 1; call <= last; ++call) {
        CallRecord record;
        if (post.records[call % records_kept].load(call, record)) calls.append(record_of(call, record, times));
    }
    nb::dict dict;
    dict["process"] = process;
    dict["standing"] = standing_of(post);
    dict["last_call"] = last;
    dict["last_done"] = post.last_done.load(std::memory_order_acquire);
    dict["progress"] = post.progress.load(std::memory_order_acquire);
    dict["waiting_for"] = waits ? nb::cast(waits - 1) : nb::none();
    dict["calls"] = calls;
    return dict;
}

// As src/allfold/engines/signature.py packs it: the signature, and the place of the arrays.
std::pair<Signature, uint64_t> unpacked(nb::bytes packed) {
    std::pair<Signature, uint64_t> made;
    if (packed.size() != sizeof made.first + sizeof made.second)
        throw nb::value_error("a signature of the wrong length");
    std::memcpy(&made.first, packed.data(), sizeof made.first);
    std::memcpy(&made.second, static_cast<const char*>(packed.data()) + sizeof made.first, sizeof made.second);
    if (made.first.collective >= collectives.size() || made.first.dtype >= dtype_count ||
        (made.first.op >= op_count && made.first.op != custom_op))
        throw nb::value_error("not the signature of a call");
    return made;
}

std::string difference_of(nb::list calls) {
    std::vector<std::optional<Signature>> made;
    for (nb::handle call : calls)
        made.push_back(call.is_none() ? std::nullopt : std::optional(unpacked(nb::cast<nb::bytes>(call)).first));
    return difference(made);
}

// A mapping that ends with its scope.
class View {
  public:
    View(int descriptor, bool writable) {
        struct stat facts;
        if (fstat(descriptor, &facts) != 0 || facts.st_size < static_cast<off_t>(sizeof(Directory)))
            throw nb::value_error("this is not an arena of allfold");
        size_ = static_cast<size_t>(facts.st_size);
        base_ =
            mmap(nullptr, size_, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED | MAP_NORESERVE, descriptor, 0);
        if (base_ == MAP_FAILED) throw nb::value_error("the arena cannot be mapped");
        if (directory().magic.load(std::memory_order_acquire) != layout_hash) {
            munmap(base_, size_);
            throw nb::value_error("this is not an arena of this version of allfold");
        }
    }
    ~View() { munmap(base_, size_); }
    View(const View&) = delete;
    Directory& directory() const { return *static_cast<Directory*>(base_); }
    const Post* post(uint64_t offset) const {
        bool there = offset >= sizeof(Directory) && offset % line_bytes == 0 && offset <= size_ &&
                     sizeof(Post) <= size_ - offset;
        return there ? reinterpret_cast<const Post*>(static_cast<char*>(base_) + offset) : nullptr;
    }

  private:
    void* base_;
    size_t size_;
};

// Everything that the directory of an arena names.
nb::dict inspect(int descriptor) {
    View view(descriptor, false);
    Directory& directory = view.directory();
    nb::list communicators;
    for (const Entry& entry : directory.entries) {
        const Post* post = view.post(entry.post.load(std::memory_order_acquire));
        if (!post) continue;
        nb::dict dict = post_of(*post, directory.process.load(std::memory_order_relaxed));
        std::string label;
        for (const auto& character : entry.label)
            if (char c = character.load(std::memory_order_relaxed)) label += c;
        dict["label"] = nb::bytes(label.c_str(), label.size());
        dict["group"] = entry.group.load(std::memory_order_relaxed);
        dict["rank"] = entry.rank.load(std::memory_order_relaxed);
        dict["size"] = entry.size.load(std::memory_order_relaxed);
        communicators.append(dict);
    }
    nb::dict dict;
    int32_t process = directory.process.load(std::memory_order_relaxed);
    Life life = sees_processes_of(directory) ? life_of_process(process) : life_by_lock(directory, descriptor);
    dict["process"] = process;
    dict["alive"] = life == Life::alive;
    dict["communicators"] = communicators;
    return dict;
}

nb::bytes ask_descriptor(int descriptor, double seconds) {
    View view(descriptor, true);
    std::string text;
    {
        nb::gil_scoped_release release;
        text =
            ask(view.directory(), std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
    }
    return nb::bytes(text.data(), text.size());
}

// A plain C function, without objects to destroy: when the interpreter ends, a thread that requests its lock exits
// immediately, through all frames, and C++ treats that as an error in most functions.
PyObject* next_question(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 2 || !nb::isinstance<Arena>(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "next_question takes an arena and a number");
        return nullptr;
    }
    Arena* arena = nb::inst_ptr<Arena>(arguments[0]);
    if (!arena->is_here()) return PyLong_FromLong(0);
    unsigned long long seen = PyLong_AsUnsignedLongLong(arguments[1]);
    if (PyErr_Occurred()) return nullptr;
    PyThreadState* state = PyEval_SaveThread();
    uint64_t question = await_question(arena->directory(), seen);
    PyEval_RestoreThread(state);
    return PyLong_FromUnsignedLongLong(question);
}

// The nanoseconds that the flight recorder adds to a call, which stores a record and reads the clock twice. The best of
// several rounds, each over as many records as are kept.
double recorder_nanoseconds() {
    auto records = std::make_unique<SharedRecord[]>(records_kept);
    constexpr uint64_t calls = 64 * records_kept;
    auto best = Clock::duration::max();
    for (int round = 0; round < 16; ++round) {
        auto start = Clock::now();
        for (uint64_t call = 1; call <= calls; ++call) {
            CallRecord record;
            record.begun = ticks();
            records[call % records_kept].store(call, record);
            records[call % records_kept].end(ticks());
        }
        best = std::min<Clock::duration>(best, Clock::now() - start);
    }
    return std::chrono::duration<double, std::nano>(best).count() / calls;
}

std::atomic<uint64_t>& shrink_word(const Arena& arena, size_t post, size_t word) {
    arena.need_here("shrink");
    auto& words = reinterpret_cast<Post*>(arena.at(post))->shrink;
    if (word >= std::size(words)) throw nb::index_error("a post has fewer words than that");
    return words[word];
}

}  // namespace

void bind_inspect(nb::module_& module) {
    module.attr("LAYOUT") = layout_hash;
    module.def("inspect", &inspect);
    // For the test that Python's signatures are the same as these.
    module.def("signature_digest", [](nb::bytes packed) {
        auto [signature, place] = unpacked(packed);
        return digest_of(signature, place);
    });
    module.def("signature_words", [](nb::bytes packed) { return in_words(unpacked(packed).first); });
    module.def("difference", &difference_of);
    module.def("ask", &ask_descriptor);
    module.def("flight", [](const Arena& arena, size_t post) {
        arena.need_here("flight");
        return post_of(*reinterpret_cast<Post*>(arena.at(post)), process_of(arena));
    });
    module.def("standing", [](const Arena& arena, size_t post) {
        arena.need_here("standing");
        return standing_of(*reinterpret_cast<const Post*>(arena.at(post)));
    });
    static PyMethodDef asked{"next_question", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(next_question)),
                             METH_FASTCALL, "Wait for a question to this arena."};
    module.attr("next_question") = nb::steal(PyCFunction_New(&asked, nullptr));
    module.def("give_answer", [](const Arena& arena, uint64_t question, nb::bytes text) {
        arena.need_here("give_answer");
        give_answer(arena.directory(), question, std::string(text.c_str(), text.size()));
    });
    module.def("end_questions", [](const Arena& arena) {
        if (arena.is_here()) end_questions(arena.directory());  // the thread that answers is the parent's
    });
    module.def("recorder_nanoseconds", &recorder_nanoseconds);
    module.def("is_alive", [](const Arena& arena) {
        arena.need_here("is_alive");
        return life_of(arena) == Life::alive;
    });
    module.def("process_of", [](const Arena& arena) {
        arena.need_here("process_of");
        return arena.is_own() || !arena.sees_owner() ? 0 : process_of(arena);
    });
    // Sequentially consistent: ranks that agree through these words each write their own and then read the others.
    module.def("load_word",
               [](const Arena& arena, size_t post, size_t word) { return shrink_word(arena, post, word).load(); });
    module.def("store_word", [](const Arena& arena, size_t post, size_t word, uint64_t value) {
        shrink_word(arena, post, word).store(value);
    });
}

}  // namespace allfold
