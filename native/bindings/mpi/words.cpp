#include "bindings/mpi/words.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <deque>
#include <string>

#include "bindings/bindings.hpp"
#include "bindings/calls/communicator.hpp"
#include "bindings/gil.hpp"

namespace allfold::mpi {

Known& known = *new Known;  // never destroyed: its objects are Python's

namespace {

constexpr size_t most_arguments = 8, most_words = 64;

// A method that was replaced: its word, the names of its arguments, and the Python function.
struct Replaced {
    const Word* word;
    std::vector<PyObject*> names;
    PyObject* instead;
};
std::deque<Replaced> replaced;
PyMethodDef definitions[most_words];

// Puts the arguments into their places; false if they do not fit, which Python will say.
bool placed(const Replaced& method, PyObject* const* arguments, Py_ssize_t count, PyObject* names, PyObject** into) {
    const size_t most = method.names.size();
    if (static_cast<size_t>(count) > most) return false;
    std::copy(arguments, arguments + count, into);
    const Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t i = 0; i < named; ++i) {
        // Names in a program's source are interned, so they are the same objects.
        auto found = std::find(method.names.begin(), method.names.end(), PyTuple_GetItem(names, i));
        if (found == method.names.end()) return false;
        PyObject*& place = into[found - method.names.begin()];
        if (place) return false;
        place = arguments[count + i];
    }
    return std::all_of(into, into + method.word->required, [](PyObject* one) { return one != nullptr; });
}

// The same call of the function that was replaced.
PyObject* instead(const Replaced& method, PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                  PyObject* names) noexcept {
    const Py_ssize_t all = count + (names ? PyTuple_Size(names) : 0);
    PyObject* small[2 * most_arguments];
    std::vector<PyObject*> large;
    PyObject** given = small;
    if (static_cast<size_t>(all) + 1 > std::size(small)) {
        large.resize(static_cast<size_t>(all) + 1);
        given = large.data();
    }
    given[0] = self;
    std::copy(arguments, arguments + all, given + 1);
    return PyObject_Vectorcall(method.instead, given, static_cast<size_t>(count) + 1, names);
}

template <size_t number>
PyObject* enter(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) noexcept {
    const Replaced& method = replaced[number];
    try {
        PyObject* given[most_arguments] = {};
        if (placed(method, arguments, count, names, given)) {
            nb::object made = method.word->make({self, given});
            if (made.is_valid()) return made.release().ptr();
        }
    } catch (nb::python_error& error) {
        error.restore();
        return nullptr;
    } catch (const EngineError& error) {
        raise(error);
        return nullptr;
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    return instead(method, self, arguments, count, names);
}

using Entry = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

template <size_t... numbers>
constexpr std::array<Entry, sizeof...(numbers)> entries_of(std::index_sequence<numbers...>) {
    return {enter<numbers>...};
}
constexpr auto entries = entries_of(std::make_index_sequence<most_words>());

// A method of `type` in place of the Python function of this name.
nb::object compiled(nb::handle type, const std::string& name, nb::handle function) {
    for (const auto* words : {&collective_words, &message_words, &request_words})
        for (const Word& word : *words) {
            if (word.name != name) continue;
            const size_t number = replaced.size();
            if (number == most_words) throw nb::value_error("more methods than there are entries");
            std::vector<PyObject*> names;
            for (const char* one : word.arguments) names.push_back(PyUnicode_InternFromString(one));
            replaced.push_back({&word, std::move(names), function.inc_ref().ptr()});
            definitions[number] = {word.name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(entries[number])),
                                   METH_FASTCALL | METH_KEYWORDS, nullptr};
            auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());
            auto* made = word.of_class ? PyDescr_NewClassMethod(of, &definitions[number])
                                       : PyDescr_NewMethod(of, &definitions[number]);
            if (!made) throw nb::python_error();
            return nb::steal(made);
        }
    throw nb::value_error("there is no such method");
}

// MPI's type for the elements of an array, by their format in the buffer protocol; null if there is none.
PyObject* type_of_code(const char* format) {
    if (!format) return known.byte;
    if (*format == '@' || *format == '=' || *format == '<') ++format;
    const bool is_complex = *format == 'Z';
    const auto code = static_cast<unsigned char>(format[is_complex]);
    return code < 128 && code && !format[is_complex + 1] ? known.types_by_code[is_complex][code] : nullptr;
}

PyTypeObject* type_in(nb::handle object) { return reinterpret_cast<PyTypeObject*>(object.inc_ref().ptr()); }

void learn(const nb::dict& facts) {
    auto kept = [&](const char* name) { return nb::object(facts[name]).release().ptr(); };
    known.state = type_in(facts["state"]);
    known.request = type_in(facts["request"]);
    known.status = type_in(facts["status"]);
    for (nb::handle one : nb::list(facts["memory"])) known.memory.push_back(type_in(one));
    for (nb::handle one : nb::list(facts["bytes"])) known.bytes.push_back(type_in(one));
    for (auto [key, type] : nb::dict(facts["types_by_code"])) {
        const auto code = nb::cast<std::string>(key);
        const bool is_complex = code.size() == 2 && code[0] == 'Z';
        if (is_complex || code.size() == 1) known.types_by_code[is_complex][code.back() & 127] = type.inc_ref().ptr();
    }
    for (nb::handle pair : nb::list(facts["types"]))
        known.types[nb::object(pair[0]).release().ptr()] = dtype_named(pair[1]);
    for (nb::handle pair : nb::list(facts["ops"])) {
        auto& row = known.ops[nb::object(pair[0]).release().ptr()];
        for (auto [name, number] : nb::dict(pair[1]))
            row[static_cast<size_t>(dtype_named(name))] = number.inc_ref().ptr();
    }
    known.in_thread = facts["in_thread"];
    known.in_place = kept("in_place");
    known.arrived = kept("arrived");
    known.loaded = kept("loaded");
    known.sum = kept("sum");
    known.byte = kept("byte");
    known.any_source = nb::cast<long>(facts["any_source"]);
    known.any_tag = nb::cast<long>(facts["any_tag"]);
    known.highest_tag = nb::cast<long>(facts["highest_tag"]);
}

}  // namespace

Calls::Calls(nb::object of_communicator, nb::object of_channel, std::optional<std::string> reduces_by,
             size_t from_bytes)
    : communicator(std::move(of_communicator)), channel(std::move(of_channel)), entry(entry_of(communicator)),
      messages(messages_of(channel)), reduces_by(std::move(reduces_by)), from_bytes(from_bytes) {
    rank = communicator_of(communicator).rank();
    size = communicator_of(communicator).size();
}

bool Given::number(size_t place, long& value) const {
    PyObject* given = arguments[place];
    if (!given) return true;
    if (!PyLong_CheckExact(given)) return false;
    int overflow = 0;
    value = PyLong_AsLongAndOverflow(given, &overflow);
    return overflow == 0;
}

Calls* calls_of(nb::handle communicator, nb::object& keep) {
    static PyObject *const raw = PyUnicode_InternFromString("_raw"), *const calls = PyUnicode_InternFromString("calls"),
                           *const of_thread = PyUnicode_InternFromString("communicator");
    static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(nb::type<Calls>().ptr());
    nb::object state = nb::steal(PyObject_GetAttr(communicator.ptr(), raw));
    if (!state.is_valid()) throw nb::python_error();
    if (Py_TYPE(state.ptr()) == known.state) {
        keep = nb::steal(PyObject_GetAttr(state.ptr(), calls));
        if (!keep.is_valid()) throw nb::python_error();
    } else {
        auto found = std::find_if(known.worlds.begin(), known.worlds.end(),
                                  [&](const auto& world) { return world.first == state.ptr(); });
        if (found == known.worlds.end()) return nullptr;
        nb::object here = nb::steal(PyObject_GetAttr(known.in_thread.ptr(), of_thread));
        if (!here.is_valid()) throw nb::python_error();
        if (!here.is_none()) return nullptr;
        keep = found->second;
    }
    if (Py_TYPE(keep.ptr()) != type) return nullptr;
    auto* found = nb::inst_ptr<Calls>(keep);
    return found->is_open ? found : nullptr;
}

std::optional<Array> memory_of(PyObject* message, bool writable, uint32_t blocks, PyObject** mpi_type) {
    if (!message) return std::nullopt;
    PyObject *memory = message, *count = nullptr, *type = nullptr;
    const bool is_list = PyList_CheckExact(message);
    if (is_list || PyTuple_CheckExact(message)) {
        const Py_ssize_t length = is_list ? PyList_Size(message) : PyTuple_Size(message);
        auto item = [&](Py_ssize_t i) { return is_list ? PyList_GetItem(message, i) : PyTuple_GetItem(message, i); };
        if (length != 2 && length != 3) return std::nullopt;
        memory = item(0);
        (length == 3 || PyLong_CheckExact(item(1)) ? count : type) = item(1);
        if (length == 3) type = item(2);
        if (count == Py_None) count = nullptr;
        if (count && !PyLong_CheckExact(count)) return std::nullopt;
    }
    auto is_one_of = [&](const std::vector<PyTypeObject*>& kinds) {
        return std::find(kinds.begin(), kinds.end(), Py_TYPE(memory)) != kinds.end();
    };
    const bool is_bytes = !is_one_of(known.memory);
    if (is_bytes && !is_one_of(known.bytes)) return std::nullopt;
    std::optional<DType> as;
    if (type) {
        auto found = known.types.find(type);
        if (found == known.types.end()) return std::nullopt;
        as = found->second;
    }
    std::optional<Array> made =
        unless_refused([&] { return std::optional<Array>(std::in_place, nb::handle(memory), writable, std::nullopt); });
    if (!made) return std::nullopt;
    const size_t bytes = bytes_of(*made);
    if (as) made->dtype = *as;
    const size_t block = size_of(made->dtype) * blocks;
    size_t items = bytes / block;
    if (count) {
        const Py_ssize_t given = PyLong_AsSsize_t(count);
        if (given < 0 || static_cast<size_t>(given) > items) {
            PyErr_Clear();
            return std::nullopt;
        }
        items = static_cast<size_t>(given);
    } else if (bytes % block) {
        return std::nullopt;
    }
    if (items == 0) return std::nullopt;
    made->elements = items * blocks;
    if (mpi_type) *mpi_type = type ? type : is_bytes ? known.byte : type_of_code(made->format());
    return made;
}

void fail(nb::handle communicator, const char* method) {
    nb::python_error problem;
    call_python(communicator.attr(method), problem.value());
    throw problem;
}

}  // namespace allfold::mpi

namespace allfold {

void bind_mpi_requests(nb::module_& module);

void bind_mpi(nb::module_& module) {
    using mpi::Calls;
    nb::class_<Calls>(module, "MpiCalls")
        .def(nb::init<nb::object, nb::object, std::optional<std::string>, size_t>(), nb::arg("communicator"),
             nb::arg("channel"), nb::arg("reduces_by").none(), nb::arg("from_bytes"))
        .def_rw("is_open", &Calls::is_open)
        .def_rw("is_queued", &Calls::is_queued);
    bind_mpi_requests(module);
    module.def("learn_mpi", &mpi::learn);
    module.def("compiled_method", &mpi::compiled);
    // The communicators that a function finds, for threads that are not ranks themselves.
    module.def("learn_mpi_worlds", [](const nb::dict& worlds) {
        mpi::known.worlds.clear();
        for (auto [function, calls] : worlds)
            mpi::known.worlds.emplace_back(function.inc_ref().ptr(), nb::borrow(calls));
    });
}

}  // namespace allfold
