#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_PORT_WATCH_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_PORT_WATCH_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "transport/loop/waker.h"
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/device/device_context.h"
#include "transport/verbs/factory.h"

namespace refract::transport::verbs {

// Knows which ports of some devices are up, from asynchronous events, and wakes
// a thread when that changes. Keeps the devices open, because a closed device
// reports nothing, but not a device that is broken or was removed from the
// system, which may be waiting for its users to close it. Follows no device
// before Start. Thread-safe.
class PortWatch {
 public:
  // Watches the ports that `preference` allows. `registry` must outlive this.
  PortWatch(DeviceRegistry& registry, const AddressPreference& preference);
  ~PortWatch();
  PortWatch(const PortWatch&) = delete;
  PortWatch& operator=(const PortWatch&) = delete;

  // Wakes `waker` at later changes. Call once.
  void Start(std::shared_ptr<Waker> waker);
  // Starts to follow a device; no effect if it is followed already.
  void Follow(const std::shared_ptr<DeviceContext>& context);

  // Every port of the followed devices that work, if something changed
  // since the last call; stops following broken devices. Cheap if nothing
  // changed.
  std::optional<std::vector<PortState>> Take();

 private:
  class Follower;

  void OnChange();
  bool IsListed(absl::string_view device) const;
  // Followers of dead devices. Destroy them without the lock, which their calls
  // take, and not from a call of a follower, which would wait for itself.
  std::vector<std::unique_ptr<Follower>> TakeGone()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Follows(const DeviceContext& context) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  DeviceRegistry& registry_;
  const AddressPreference preference_;
  std::atomic<bool> changed_ = false;
  absl::Mutex mu_;
  std::shared_ptr<Waker> waker_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Follower>> followers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_PORT_WATCH_H_
