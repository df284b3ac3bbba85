#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_API_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_API_H_

// The part of the verbs API that the transport uses, as an interface with two
// implementations: libibverbs, and a simulator that is stricter than any device
// (tests/transport/verbs_sim). The verbs data path uses only this interface, so
// the same code runs on a NIC, on soft-RoCE and, under sanitizers and a virtual
// clock, in the simulator.
//
// Structs and constants are those of <infiniband/verbs.h>. Objects are closed
// by their destructors, which must run in reverse order of creation; calls that
// libibverbs makes per message return its errno values instead of a status.
//
// Threads: as libibverbs. Objects may be used from any thread; the caller
// excludes concurrent calls on one queue pair or one completion queue.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::transport::verbs {

// Memory that a device may reach. Its destructor returns only when neither the
// device nor, through the remote key, a peer can reach it any more.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t remote_key() const = 0;
};

class CompletionChannel {
 public:
  virtual ~CompletionChannel() = default;
  // Readable while an event waits. Non-blocking.
  virtual int fd() const = 0;
  // Takes and acknowledges all waiting events. Returns how many.
  virtual int TakeEvents() = 0;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Takes up to `count` completions; returns their number, or a negative value
  // if the queue is broken (an overrun, a dead device).
  virtual int Poll(int count, ibv_wc* out) = 0;
  // Makes the next completion, or the next solicited one or error, raise one
  // event. 0 or an errno. Completions already in the queue raise no event: poll
  // once more.
  virtual int Arm(bool solicited_only) = 0;
};

class SharedReceiveQueue {
 public:
  virtual ~SharedReceiveQueue() = default;
  // 0 or an errno; then *bad is the first request that was not posted.
  virtual int Post(ibv_recv_wr* list, ibv_recv_wr** bad) = 0;
};

class QueuePair {
 public:
  // Returns when the device no longer uses the queue pair: only then may memory
  // that was granted to the peer be granted to another peer.
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  // Longest inline payload that the device granted. Bytes.
  virtual uint32_t max_inline() const = 0;
  // 0 or an errno. `mask` of ibv_qp_attr_mask.
  virtual int Modify(const ibv_qp_attr& attributes, int mask) = 0;
  // Posts a list of linked requests with one doorbell. 0 or an errno; then *bad
  // is the first request that was not posted.
  virtual int PostSend(ibv_send_wr* list, ibv_send_wr** bad) = 0;
};

struct QueuePairOptions {
  CompletionQueue* send_queue = nullptr;
  CompletionQueue* receive_queue = nullptr;
  SharedReceiveQueue* shared_receive_queue = nullptr;
  uint32_t max_send_requests = 0;
  uint32_t max_send_segments = 1;
  uint32_t wanted_inline = 0;  // the device may grant less
};

enum class GidType : uint8_t { kInfiniband, kRoceV1, kRoceV2 };

struct GidEntry {
  int index = 0;
  ibv_gid gid = {};
  GidType type = GidType::kInfiniband;
  std::string network_device;  // empty: unknown
  bool network_device_up = false;
};

struct PortInfo {
  uint8_t number = 0;
  ibv_port_attr attributes = {};
  std::vector<GidEntry> gids;  // valid entries only
};

struct AsyncEvent {
  ibv_event_type type = IBV_EVENT_DEVICE_FATAL;
  uint32_t queue_pair = 0;  // for events of a queue pair: its number
  uint8_t port = 0;         // for events of a port
};

// Memory registered in a domain can be reached only through queue pairs of the
// same domain, whatever key a peer guesses.
class ProtectionDomain {
 public:
  virtual ~ProtectionDomain() = default;

  // `access`: ibv_access_flags. ResourceExhausted names RLIMIT_MEMLOCK if that
  // limit is the cause.
  virtual absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(
      void* data, size_t bytes, int access) = 0;
  // A reliable connected queue pair in the reset state. The queues may be
  // shared with queue pairs of other domains.
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) = 0;
};

// An open device.
class Device {
 public:
  virtual ~Device() = default;

  virtual absl::string_view name() const = 0;
  virtual const ibv_device_attr& attributes() const = 0;
  // Present state; ports go up and down and their GIDs change.
  virtual absl::StatusOr<std::vector<PortInfo>> Ports() const = 0;

  virtual absl::StatusOr<std::unique_ptr<ProtectionDomain>> CreateDomain() = 0;
  virtual absl::StatusOr<std::unique_ptr<CompletionChannel>>
  CreateChannel() = 0;
  // `channel` must outlive the queue, which has at least `entries` entries.
  virtual absl::StatusOr<std::unique_ptr<CompletionQueue>>
  CreateCompletionQueue(int entries, CompletionChannel* channel) = 0;
  // Receive requests without a buffer: enough for writes with immediate. They
  // reach no memory, so they need no domain of a queue pair.
  virtual absl::StatusOr<std::unique_ptr<SharedReceiveQueue>>
  CreateSharedReceiveQueue(uint32_t entries) = 0;

  // Readable while an asynchronous event waits. Non-blocking.
  virtual int async_fd() const = 0;
  // Takes and acknowledges the oldest event.
  virtual std::optional<AsyncEvent> TakeAsyncEvent() = 0;

  // Counter of the port by its name in sysfs hw_counters, such as
  // "rcvd_rnr_err"; nullopt where the device has none of that name.
  virtual std::optional<uint64_t> HardwareCounter(
      uint8_t port, absl::string_view name) const = 0;
};

// Opens devices.
class Library {
 public:
  virtual ~Library() = default;
  // Names, in the system's order. Unavailable: the machine has no RDMA support.
  virtual absl::StatusOr<std::vector<std::string>> DeviceNames() const = 0;
  virtual absl::StatusOr<std::unique_ptr<Device>> Open(
      absl::string_view name) const = 0;
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_API_H_
