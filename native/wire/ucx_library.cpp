#include "wire/ucx_library.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <type_traits>

#include "shared/errors.hpp"
#include "shared/fork.hpp"
#include "shared/text.hpp"

namespace allfold::ucx {

namespace {

constexpr const char* file = "libucp.so.0";
constexpr const char* how_to_get =
    "install the system's UCX, 1.13 or newer (Debian and Ubuntu: apt-get install libucx0; "
    "Fedora and RHEL: dnf install ucx)";

// Sets a variable of the environment, and restores it at the end.
class Setting {
  public:
    Setting(const char* name, const char* value) : name_(name) {
        if (const char* before = std::getenv(name)) before_ = before;
        setenv(name, value, 1);
    }
    ~Setting() {
        if (before_)
            setenv(name_, before_->c_str(), 1);
        else
            unsetenv(name_);
    }
    Setting(const Setting&) = delete;

  private:
    const char* name_;
    std::optional<std::string> before_;
};

[[noreturn]] void missing(const std::string& what) {
    throw EngineError(Fault::usage, joined({"ucx: ", what, ": ", how_to_get}));
}

Api load() {
    void* found;
    {
        // Read once, while the library is loaded, and only from the environment. Without these it patches mmap, munmap
        // and brk of the process, and takes over signals that Python's faulthandler needs.
        Setting events("UCX_MEM_EVENTS", "n"), signals("UCX_DEBUG_SIGNO", "0"), errors("UCX_HANDLE_ERRORS", "none");
        // Failures are reported by exceptions. Users who want UCX's own messages set this variable.
        std::optional<Setting> quiet;
        if (std::getenv("UCX_LOG_LEVEL") == nullptr) quiet.emplace("UCX_LOG_LEVEL", "fatal");
        found = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    if (found == nullptr) {
        const char* why = dlerror();
        missing(joined({file, " cannot be loaded (", why != nullptr ? why : "no reason was given", ")"}));
    }
    Api api{};
    auto look_up = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(found, name));
        if (function == nullptr) missing(joined({file, " has no function ", name}));
    };
#define ALLFOLD_LOOK_UP(name) look_up(api.name, #name)
    ALLFOLD_LOOK_UP(ucp_get_version);
    unsigned major = 0, minor = 0, release = 0;
    api.ucp_get_version(&major, &minor, &release);
    if (major != api_major || minor < api_minor)
        missing(joined({file, " is version ", major, ".", minor, ".", release}));
    ALLFOLD_LOOK_UP(ucp_config_read);
    ALLFOLD_LOOK_UP(ucp_config_modify);
    ALLFOLD_LOOK_UP(ucp_config_release);
    ALLFOLD_LOOK_UP(ucp_init_version);
    ALLFOLD_LOOK_UP(ucp_cleanup);
    ALLFOLD_LOOK_UP(ucp_mem_map);
    ALLFOLD_LOOK_UP(ucp_mem_unmap);
    ALLFOLD_LOOK_UP(ucp_worker_create);
    ALLFOLD_LOOK_UP(ucp_worker_destroy);
    ALLFOLD_LOOK_UP(ucp_worker_get_address);
    ALLFOLD_LOOK_UP(ucp_worker_release_address);
    ALLFOLD_LOOK_UP(ucp_worker_get_efd);
    ALLFOLD_LOOK_UP(ucp_worker_arm);
    ALLFOLD_LOOK_UP(ucp_worker_progress);
    ALLFOLD_LOOK_UP(ucp_worker_set_am_recv_handler);
    ALLFOLD_LOOK_UP(ucp_ep_create);
    ALLFOLD_LOOK_UP(ucp_ep_close_nbx);
    ALLFOLD_LOOK_UP(ucp_ep_flush_nbx);
    ALLFOLD_LOOK_UP(ucp_am_send_nbx);
    ALLFOLD_LOOK_UP(ucp_am_recv_data_nbx);
    ALLFOLD_LOOK_UP(ucp_request_check_status);
    ALLFOLD_LOOK_UP(ucp_request_free);
    ALLFOLD_LOOK_UP(ucs_status_string);
#undef ALLFOLD_LOOK_UP
    return api;
}

// The fork count when this process began to use UCX; -1: it has not. Relaxed: nothing else depends on it.
std::atomic<int64_t> used_after_forks{-1};

bool is_own() { return used_after_forks.load(std::memory_order_relaxed) == forks(); }

// Its background thread does not survive a fork, and a child that ends what it has inherited breaks its parent.
void begin_to_use() {
    int64_t nobody = -1;
    if (!used_after_forks.compare_exchange_strong(nobody, forks(), std::memory_order_relaxed) && !is_own())
        throw EngineError(Fault::usage,
                          "ucx: this process was forked from one that uses UCX, so it cannot use UCX itself; start it "
                          "without fork, or set ALLFOLD_FABRIC=tcp");
}

void check(const Api& api, Status status, const char* what) {
    if (status != Status::ok)
        throw EngineError(Fault::usage, joined({"ucx: ", what, ": ", api.ucs_status_string(status)}));
}

}  // namespace

const Api& library() {
    static const Api api = load();  // it stays loaded
    return api;
}

Context::Context(const Settings& settings) : api(library()) {
    begin_to_use();
    Config* config = nullptr;
    check(api, api.ucp_config_read(nullptr, nullptr, &config), "its configuration cannot be read");
    for (auto& [name, value] : settings) {
        if (std::getenv(("UCX_" + name).c_str()) != nullptr) continue;
        // Names of a transport's settings begin with that of the transport, but not here in UCX 1.13. UCX ignores those
        // that it does not know.
        std::string in_old_versions = name.starts_with("TCP_") ? name.substr(4) : name;
        for (auto& one : {name, in_old_versions}) api.ucp_config_modify(config, one.c_str(), value.c_str());
    }
    ContextParams params;
    Status made = api.ucp_init_version(api_major, api_minor, &params, config, &handle);
    api.ucp_config_release(config);
    check(api, made, "it cannot be used on this host");
}

Context::~Context() {
    if (is_own()) api.ucp_cleanup(handle);
}

Worker::Worker(std::shared_ptr<Context> context) : context_(std::move(context)) {
    const Api& api = context_->api;
    WorkerParams params;
    check(api, api.ucp_worker_create(context_->handle, &params, &handle), "no worker can be made");
    AddressObject* own = nullptr;
    size_t bytes = 0;
    Status found = api.ucp_worker_get_efd(handle, &descriptor);
    if (found == Status::ok) found = api.ucp_worker_get_address(handle, &own, &bytes);
    if (found == Status::ok) {
        address.assign(reinterpret_cast<const char*>(own), bytes);
        api.ucp_worker_release_address(handle, own);
    } else {
        api.ucp_worker_destroy(handle);
        check(api, found, "a worker has no address");
    }
}

Worker::~Worker() {
    if (handle != nullptr && is_own()) api().ucp_worker_destroy(handle);
}

}  // namespace allfold::ucx
