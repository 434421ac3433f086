// The interpreter's lock (GIL), and when to release it.
#pragma once

#include <nanobind/nanobind.h>

namespace allfold {

// How many Python threads are in a call of the extension without the lock, and how often this one is. Changed with the
// lock held.
inline int threads_without_gil = 0;
inline thread_local int times_without_gil = 0;

// For a forked child, which has of all threads only the one that forked.
inline void forget_other_threads() { threads_without_gil = times_without_gil; }

// Releases the lock. An interpreter that ends unwinds daemon threads when they try to take it again, which no
// destructor survives. So threads without the lock are counted, and the end can wait for them (see `await_threads`).
class WithoutGil {
  public:
    WithoutGil() {
        ++threads_without_gil;
        ++times_without_gil;
        state_ = PyEval_SaveThread();
    }
    ~WithoutGil() {
        PyEval_RestoreThread(state_);
        --times_without_gil;
        --threads_without_gil;
    }
    WithoutGil(const WithoutGil&) = delete;

  private:
    PyThreadState* state_;
};

}  // namespace allfold
