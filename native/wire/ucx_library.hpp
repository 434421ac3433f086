// The host's own UCX, loaded on first use.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "wire/ucx_api.hpp"

namespace allfold::ucx {

// The library of this process. Throws an EngineError that says what is missing.
const Api& library();

// UCX with some settings; variables of the same names in the environment (UCX_TLS and others) override them.
class Context {
  public:
    using Settings = std::vector<std::pair<std::string, std::string>>;

    explicit Context(const Settings& settings);
    ~Context();
    Context(const Context&) = delete;

    const Api& api;
    ContextHandle handle = nullptr;
};

// One end of a group's connections, before they are established.
class Worker {
  public:
    explicit Worker(std::shared_ptr<Context> context);
    ~Worker();
    Worker(const Worker&) = delete;

    const Api& api() const { return context_->api; }
    ContextHandle context() const { return context_->handle; }
    // Never destroy it or its context: it has requests that do not end.
    void leave() {
        handle = nullptr;
        new std::shared_ptr<Context>(context_);
    }

    WorkerHandle handle = nullptr;
    std::string address;  // by which other ranks connect to it
    int descriptor = -1;  // readable when there is something to do, once it was armed

  private:
    std::shared_ptr<Context> context_;
};

}  // namespace allfold::ucx
