// The interpreter's lock (GIL): when it is released, and what happens to threads that request it too late.
//
// When the interpreter ends, daemon threads that ask for its lock never get it. Python 3.14 parks them. Before that,
// Python ends them as pthread_exit() does: it unwinds all frames, where C++ would run destructors that need the lock,
// or swallow the unwinding, or end the process with std::terminate(). So every place where a thread may ask for the
// lock is `noexcept`: the unwinding stops there, before any frame of ours, with std::terminate(). From the moment the
// interpreter begins to end, that parks the thread for good (park_other_threads). A call of any Python function is such
// a place too, since it releases the lock now and then.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

namespace allfold {

namespace nb = nanobind;

[[noreturn]] inline void park() {
    while (true) pause();
}

inline thread_local bool ends_the_interpreter = false;

// The interpreter is about to end, and this thread ends it. The handler also serves libraries that cannot be told to
// stop their threads.
inline void park_other_threads() {
    ends_the_interpreter = true;
    static const std::terminate_handler before = std::set_terminate([] {
        if (!ends_the_interpreter) park();
        before ? before() : std::abort();
    });
}

// The number of Python threads in a call of the extension without the lock, and how deeply this one is nested. Changed
// with the lock held.
inline int threads_without_gil = 0;
inline thread_local int times_without_gil = 0;

// For a forked child, where only the thread that forked exists.
inline void forget_other_threads() { threads_without_gil = times_without_gil; }

// Releases the lock. Threads without it are counted, so that the end of the interpreter can wait for them: see
// `await_threads`.
class WithoutGil {
  public:
    WithoutGil() {
        ++threads_without_gil;
        ++times_without_gil;
        state_ = PyEval_SaveThread();
    }
    ~WithoutGil() noexcept {
        PyEval_RestoreThread(state_);
        --times_without_gil;
        --threads_without_gil;
    }
    WithoutGil(const WithoutGil&) = delete;

  private:
    PyThreadState* state_;
};

// The lock during one call of the engine, released only if the call is long or waits: a small one ends before another
// thread could take the lock.
class Interpreter {
  public:
    explicit Interpreter(size_t bytes) {
        constexpr size_t small = 16 << 10;
#if defined(__SANITIZE_THREAD__)
        bytes = small + 1;  // if kept, it would order accesses that ThreadSanitizer should see as unordered
#endif
        if (bytes > small) release();
    }
    void release() {
        if (!without_) without_.emplace();
    }

  private:
    std::optional<WithoutGil> without_;
};

// Takes the lock on any thread, even one that Python does not know, or that has it already.
class WithGil {
  public:
    WithGil() noexcept {
        // The thread that ends the interpreter has the lock until the end, and destroys what is left.
        if (!Py_IsInitialized() && !(ends_the_interpreter && PyGILState_GetThisThreadState())) park();
        state_ = PyGILState_Ensure();
    }
    ~WithGil() noexcept { PyGILState_Release(state_); }
    WithGil(const WithGil&) = delete;

  private:
    PyGILState_STATE state_;
};

// Makes a call of Python's C interface that may run Python code. It throws nothing.
template <class Work>
auto in_python(Work work) noexcept {
    return work();
}

template <class... Arguments>
nb::object call_python(nb::handle function, Arguments&&... arguments) {
    nb::tuple all = nb::make_tuple(std::forward<Arguments>(arguments)...);
    nb::object result = nb::steal(in_python([&] { return PyObject_CallObject(function.ptr(), all.ptr()); }));
    if (!result.is_valid()) throw nb::python_error();
    return result;
}

// The text that errors show for an object.
inline std::string shown(nb::handle object) {
    nb::object text = nb::steal(in_python([&] { return PyObject_Repr(object.ptr()); }));
    if (!text.is_valid()) throw nb::python_error();
    return nb::cast<std::string>(text);
}

// True if an exception is an interrupt that has nothing to do with the code it interrupted: Ctrl-C, or one that a
// signal handler raised. Python runs handlers in the middle of any Python function.
inline bool is_interrupt(const nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) return true;
    if (!error.traceback().is_valid()) return false;  // not raised in Python: most errors end here
    return call_python(nb::module_::import_("allfold.errors").attr("raised_by_handler"), error.value()).is(Py_True);
}

// Drops the exception of a function of Python's that has failed, unless it is an interrupt: that is thrown.
inline void drop_error() {
    if (!PyErr_Occurred()) return;
    nb::python_error error;
    if (is_interrupt(error)) throw error;
}

inline void check_signals() {
    WithGil with;
    if (in_python([] { return PyErr_CheckSignals(); }) != 0) throw nb::python_error();
}

}  // namespace allfold
