#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_DEVICE_CONTEXT_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_DEVICE_CONTEXT_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "transport/datapath.h"
#include "transport/loop/fd.h"
#include "transport/memory/mapping.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::verbs {

// The ibv_access_flags for memory to which a peer has `access`.
int AccessFlags(Access access);

// Receives a device's asynchronous events, in order, on the thread that finds
// them, under no lock; must not block. May add and remove listeners, including
// itself.
class DeviceListener {
 public:
  virtual ~DeviceListener() = default;
  virtual void OnDeviceEvent(absl::string_view device,
                             const AsyncEvent& event) = 0;
};

// A device that is open once in this process. Its users share a thread that
// waits for its asynchronous events. Thread-safe.
class DeviceContext {
 public:
  enum class Events {
    kWatched,  // by a thread
    kPumped,   // by PumpEvents: for simulators on a single thread
  };
  static absl::StatusOr<std::shared_ptr<DeviceContext>> Create(
      std::unique_ptr<Device> device, Events events);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  Device& device() { return *device_; }

  // `listener` receives later events.
  void AddListener(DeviceListener* listener);
  // Returns when no call of `listener` is running, except a call from which
  // this function itself is called.
  void RemoveListener(DeviceListener* listener);

  // Passes on the waiting events. Returns how many.
  int PumpEvents();

  // The device reported a fatal error: every operation fails from now on.
  bool dead() const { return dead_.load(std::memory_order_relaxed); }

 private:
  // A running call of a listener.
  struct RunningCall {
    DeviceListener* listener;
    std::thread::id thread;
  };

  DeviceContext(std::unique_ptr<Device> device, UniqueFd stop);
  void Watch();
  void Tell(const AsyncEvent& event);

  const std::unique_ptr<Device> device_;
  const UniqueFd stop_;  // eventfd; invalid: no thread
  std::atomic<bool> dead_ = false;
  absl::Mutex listeners_mu_;
  std::vector<DeviceListener*> listeners_ ABSL_GUARDED_BY(listeners_mu_);
  std::vector<RunningCall> running_ ABSL_GUARDED_BY(listeners_mu_);
  std::thread watcher_;
};

// Opens each device once. Thread-safe.
class DeviceRegistry {
 public:
  // `library` must outlive the registry.
  explicit DeviceRegistry(
      const Library& library,
      DeviceContext::Events events = DeviceContext::Events::kWatched)
      : library_(library), events_(events) {}

  // The registry of SystemLibrary(), for the whole process.
  static DeviceRegistry& System();
  // For tests that run nodes on simulated devices: `registry` replaces the
  // system's registry until null is passed. Not while either is in use.
  static void ReplaceSystem(DeviceRegistry* registry);

  // Unavailable: the machine has no RDMA support.
  absl::StatusOr<std::vector<std::string>> DeviceNames() const {
    return library_.DeviceNames();
  }
  // The open context if the device works, or a new context. Its last user
  // closes it.
  absl::StatusOr<std::shared_ptr<DeviceContext>> Open(absl::string_view name);

 private:
  const Library& library_;
  const DeviceContext::Events events_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::weak_ptr<DeviceContext>> open_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_DEVICE_CONTEXT_H_
