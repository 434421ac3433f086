// The interpreter's lock, and when to be without it.
#pragma once

#include <nanobind/nanobind.h>

namespace allfold {

// Threads of Python's that are without the lock in a call of the extension. Changed with the lock held.
inline int threads_without_gil = 0;

// Gives the lock up. An interpreter that ends unwinds daemon threads where they come back for it, which no destructor
// survives: whoever is without it is counted, so that the end can wait for them (see `await_threads`).
class WithoutGil {
  public:
    WithoutGil() {
        ++threads_without_gil;
        state_ = PyEval_SaveThread();
    }
    ~WithoutGil() {
        PyEval_RestoreThread(state_);
        --threads_without_gil;
    }
    WithoutGil(const WithoutGil&) = delete;

  private:
    PyThreadState* state_;
};

}  // namespace allfold
