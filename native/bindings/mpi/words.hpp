// Compiled entries for the calls of MPI that src/allfold/mpi4py offers: the common case, without Python.
//
// A method of the Python class, such as Comm.Allreduce, is replaced by a function of this extension. It recognizes
// calls on ordinary communicators with contiguous arrays of predefined types, and makes them as Communicator's own
// methods do. Everything else it passes on to the method that it replaced, with the same arguments, before anything has
// happened: derived types, wrong arguments, communicators that are freed, of threads or across hosts. So every error of
// an argument is raised by Python. What MPI's types and operations are, Python says (mpi4py/data/compiled.py).
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/calls/entry.hpp"
#include "bindings/calls/messages.hpp"

namespace allfold::mpi {

// What Python tells of its classes and tables, which live until the process ends.
struct Known {
    PyTypeObject *state = nullptr, *request = nullptr, *status = nullptr;
    std::vector<PyTypeObject*> memory;           // types of objects with memory
    std::unordered_map<PyObject*, DType> types;  // predefined, as the engine has them
    PyObject* types_by_code[2][128] = {};        // of arrays, by the last character of their format; [1]: after a Z
    std::vector<PyTypeObject*> bytes;            // types of memory whose elements are bytes
    std::unordered_map<PyObject*, std::array<PyObject*, dtype_count>> ops;  // the engine's numbers, or null
    std::vector<std::pair<PyObject*, nb::object>> worlds;                   // what finds a communicator, and its calls
    nb::object in_thread;                                                   // its `communicator` is that of this thread
    PyObject *byte = nullptr, *in_place = nullptr, *sum = nullptr, *arrived = nullptr, *loaded = nullptr;
    long any_source = 0, any_tag = 0, highest_tag = 0;
};
extern Known& known;

// The native parts of one communicator.
struct Calls {
    // `reduces_by`: the algorithm of Reduce from a size on, if it is not the engine's choice. See records.py.
    Calls(nb::object communicator, nb::object channel, std::optional<std::string> reduces_by, size_t from_bytes);

    bool is_open = true;     // not revoked, freed or finalized
    bool is_queued = false;  // collectives must wait behind those in the background
    uint32_t rank, size;
    nb::object communicator, channel;
    CallEntry& entry;
    MessageEntry& messages;
    std::optional<std::string> reduces_by;
    size_t from_bytes;
};

// One call of a method: its object, and its arguments by position, null where none was given.
struct Given {
    nb::handle self;
    PyObject* const* arguments;

    PyObject* operator[](size_t place) const { return arguments[place]; }
    bool has(size_t place) const { return arguments[place] && arguments[place] != Py_None; }
    // A whole number; false if it is something else. Without the argument it stays as it is.
    bool number(size_t place, long& value) const;
};

// A method: it returns nothing if the call is not for it, and throws what the call raises.
struct Word {
    const char* name;
    std::vector<const char*> arguments;
    size_t required;
    nb::object (*make)(const Given&);
    bool of_class = false;
};
extern const std::vector<Word> collective_words, message_words, request_words;

// The native parts of a communicator that is open; null if it has none. `keep` keeps them alive.
Calls* calls_of(nb::handle communicator, nb::object& keep);

// The memory of a message of MPI: an array, [array, type], [array, count] or [array, count, type]; without a count, it
// holds `blocks` messages. Nothing for everything else. `type`: becomes MPI's type, of which several can be one of the
// engine's.
std::optional<Array> memory_of(PyObject* message, bool writable, uint32_t blocks = 1, PyObject** type = nullptr);

inline size_t bytes_of(const Array& array) { return array.elements * size_of(array.dtype); }

// Does what may fail for reasons that Python finds again; nothing if it does.
template <class Work>
auto unless_refused(Work work) -> decltype(work()) {
    try {
        return work();
    } catch (const nb::python_error& error) {
        if (is_interrupt(error)) throw;
    } catch (const std::exception&) {}
    return {};
}

// Raises the error of a call as `method` of the communicator does.
[[noreturn]] void fail(nb::handle communicator, const char* method);

}  // namespace allfold::mpi
