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

// ibv_access_flags of memory that a peer has `access` to.
int AccessFlags(Access access);

// Hears of a device's asynchronous events, in order, on the thread that finds
// them and under no lock, and must not block it. May add and remove listeners,
// itself too.
class DeviceListener {
 public:
  virtual ~DeviceListener() = default;
  virtual void OnDeviceEvent(absl::string_view device,
                             const AsyncEvent& event) = 0;
};

// A device that is open once in this process. Its users share the protection
// domain and a thread that waits for its asynchronous events. Thread-safe.
class DeviceContext {
 public:
  enum class Events {
    kWatched,  // by a thread
    kPumped,   // by calls of PumpEvents: simulators that want one thread only
  };
  static absl::StatusOr<std::shared_ptr<DeviceContext>> Create(
      std::unique_ptr<Device> device, Events events);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  Device& device() { return *device_; }

  // Hears of events that are found from now on.
  void AddListener(DeviceListener* listener);
  // Returns when no call of `listener` runs any more, except a call that this
  // is called from.
  void RemoveListener(DeviceListener* listener);

  // Hands out the events that wait. Returns how many.
  int PumpEvents();

  // It told of a fatal error: whatever is done with it fails from now on.
  bool dead() const { return dead_.load(std::memory_order_relaxed); }

 private:
  // A call of a listener that runs.
  struct RunningCall {
    DeviceListener* listener;
    std::thread::id thread;
  };

  DeviceContext(std::unique_ptr<Device> device, UniqueFd stop);
  void Watch();
  void Tell(const AsyncEvent& event);

  const std::unique_ptr<Device> device_;
  const UniqueFd stop_;  // eventfd; invalid when nothing is watched
  std::atomic<bool> dead_ = false;
  absl::Mutex listeners_mu_;
  std::vector<DeviceListener*> listeners_ ABSL_GUARDED_BY(listeners_mu_);
  std::vector<RunningCall> running_ ABSL_GUARDED_BY(listeners_mu_);
  std::thread watcher_;
};

// Opens each device once. Thread-safe.
class DeviceRegistry {
 public:
  // `library` outlives this.
  explicit DeviceRegistry(
      const Library& library,
      DeviceContext::Events events = DeviceContext::Events::kWatched)
      : library_(library), events_(events) {}

  // Over SystemLibrary(), for the whole process.
  static DeviceRegistry& System();
  // For tests that run nodes over simulated devices: `registry` takes the place
  // of the system's until null is passed. Not while anything uses either.
  static void ReplaceSystem(DeviceRegistry* registry);

  // Unavailable: no RDMA support here.
  absl::StatusOr<std::vector<std::string>> DeviceNames() const {
    return library_.DeviceNames();
  }
  // The context that is open and not dead, or a new context. It closes with its
  // last user.
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
