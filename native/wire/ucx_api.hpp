// The part of UCX's public interface (ucp/api/ucp.h) that the wire uses, so that the build does not need UCX.
//
// Names and layouts are those of UCX 1.13, which later versions keep: the field mask of a structure says what it holds.
// UCX is Copyright (c) NVIDIA CORPORATION & AFFILIATES and others, under the BSD 3-clause licence.
#pragma once

#include <cstddef>
#include <cstdint>

namespace allfold::ucx {

// One byte, as in UCX. Every other value is an error.
enum class Status : int8_t { ok = 0, in_progress = 1, busy = -15 };

// The result of a call that may continue in the background: null (done), an error, or a request that must be freed.
using Request = void*;
inline bool is_error(Request request) { return reinterpret_cast<uintptr_t>(request) >= static_cast<uintptr_t>(-100); }
inline bool is_under_way(Request request) { return request != nullptr && !is_error(request); }
inline Status error_of(Request request) { return static_cast<Status>(reinterpret_cast<intptr_t>(request)); }

struct Config;
struct ContextObject;
struct WorkerObject;
struct EndpointObject;
struct AddressObject;
using ContextHandle = ContextObject*;
using WorkerHandle = WorkerObject*;
using Endpoint = EndpointObject*;
struct MemoryObject;
using Memory = MemoryObject*;  // that was registered

inline constexpr unsigned api_major = 1, api_minor = 13;

// Room for the fields after those declared here, none of which is ever in the mask.
template <size_t bytes>
using Rest = uint8_t[bytes];

struct ContextParams {
    static constexpr uint64_t has_features = 1 << 0, has_several_threads = 1 << 5;
    static constexpr uint64_t active_messages = 1 << 6, wakeup = 1 << 4;
    uint64_t fields = has_features | has_several_threads;
    uint64_t features = active_messages | wakeup;
    Rest<32> not_set{};
    int several_threads = 1;  // use its workers, each its own
    Rest<128> rest{};
};

struct WorkerParams {
    static constexpr uint64_t has_thread_mode = 1 << 0;
    static constexpr int serialized = 1;  // any thread, one at a time
    uint64_t fields = has_thread_mode;
    int thread_mode = serialized;
    Rest<256> rest{};
};

struct EndpointParams {
    static constexpr uint64_t has_address = 1 << 0, has_error_mode = 1 << 1, has_error_handler = 1 << 2;
    static constexpr int says_if_peer_fails = 1;
    uint64_t fields = has_address | has_error_mode | has_error_handler;
    const void* address = nullptr;
    int error_mode = says_if_peer_fails;
    void (*on_error)(void* argument, Endpoint endpoint, Status status) = nullptr;
    void* argument = nullptr;
    Rest<128> rest{};
};

struct MessageInfo {
    static constexpr uint64_t is_rendezvous = 1 << 17;
    uint64_t attributes;
    Endpoint reply;
};

using OnMessage = Status (*)(void* argument, const void* header, size_t header_bytes, void* data, size_t bytes,
                             const MessageInfo* info);

struct HandlerParams {
    static constexpr uint64_t all_fields = 0xF;
    static constexpr uint32_t whole_messages = 1 << 0;
    uint64_t fields = all_fields;
    unsigned id = 0;
    uint32_t flags = whole_messages;
    OnMessage on_message = nullptr;
    void* argument = nullptr;
};

struct RequestParams {
    static constexpr uint32_t has_callback = 1 << 1, has_argument = 1 << 2, has_flags = 1 << 4,
                              has_memory_type = 1 << 6, has_memory = 1 << 8;
    static constexpr uint32_t send_eagerly = 1 << 1, send_by_rendezvous = 1 << 2, close_by_force = 1 << 0;
    uint32_t fields = 0;
    uint32_t flags = 0;
    void* request = nullptr;
    union {
        void (*on_sent)(void* request, Status status, void* argument);
        void (*on_received)(void* request, Status status, size_t bytes, void* argument);
    } callback{};
    uint64_t datatype = 0;
    void* argument = nullptr;
    void* reply = nullptr;
    int memory_type = 0;  // of the host
    void* received = nullptr;
    Memory memory = nullptr;
    Rest<32> rest{};
};

struct MemoryParams {
    static constexpr uint64_t has_address = 1 << 0, has_length = 1 << 1;
    uint64_t fields = has_address | has_length;
    void* address = nullptr;
    size_t length = 0;
    Rest<64> rest{};
};

// The functions, by their names in the library.
struct Api {
    Status (*ucp_config_read)(const char* prefix, const char* file, Config** made);
    Status (*ucp_config_modify)(Config*, const char* name, const char* value);
    void (*ucp_config_release)(Config*);
    Status (*ucp_init_version)(unsigned major, unsigned minor, const ContextParams*, const Config*,
                               ContextHandle* made);
    void (*ucp_cleanup)(ContextHandle);
    Status (*ucp_mem_map)(ContextHandle, const MemoryParams*, Memory* made);
    Status (*ucp_mem_unmap)(ContextHandle, Memory);
    Status (*ucp_worker_create)(ContextHandle, const WorkerParams*, WorkerHandle* made);
    void (*ucp_worker_destroy)(WorkerHandle);
    Status (*ucp_worker_get_address)(WorkerHandle, AddressObject** address, size_t* bytes);
    void (*ucp_worker_release_address)(WorkerHandle, AddressObject*);
    Status (*ucp_worker_get_efd)(WorkerHandle, int* descriptor);
    Status (*ucp_worker_arm)(WorkerHandle);
    unsigned (*ucp_worker_progress)(WorkerHandle);
    Status (*ucp_worker_set_am_recv_handler)(WorkerHandle, const HandlerParams*);
    Status (*ucp_ep_create)(WorkerHandle, const EndpointParams*, Endpoint* made);
    Request (*ucp_ep_close_nbx)(Endpoint, const RequestParams*);
    Request (*ucp_ep_flush_nbx)(Endpoint, const RequestParams*);
    Request (*ucp_am_send_nbx)(Endpoint, unsigned id, const void* header, size_t header_bytes, const void* data,
                               size_t bytes, const RequestParams*);
    Request (*ucp_am_recv_data_nbx)(WorkerHandle, void* descriptor, void* data, size_t bytes, const RequestParams*);
    Status (*ucp_request_check_status)(void* request);
    void (*ucp_request_free)(void* request);
    void (*ucp_get_version)(unsigned* major, unsigned* minor, unsigned* release);
    const char* (*ucs_status_string)(Status status);
};

}  // namespace allfold::ucx
