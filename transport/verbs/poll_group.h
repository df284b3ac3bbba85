#ifndef REFRACT_TRANSPORT_VERBS_POLL_GROUP_H_
#define REFRACT_TRANSPORT_VERBS_POLL_GROUP_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "transport/verbs/descriptor.h"
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/device/device_context.h"
#include "transport/verbs/device/port_watch.h"
#include "transport/verbs/hub.h"
#include "transport/verbs/mark_reader.h"
#include "transport/verbs/options.h"

namespace refract::transport::verbs {

// The hubs of one polling thread: one per device, and a further hub when the
// first is full. A hub lives as long as paths use it, and keeps its device open
// no longer: a device that is to be removed is closed as soon as its paths have
// failed. Thread-safe, because handshake threads make paths.
class PollGroup {
 public:
  // `registry` outlives this and its paths.
  PollGroup(DeviceRegistry& registry, const HubOptions& options,
            const AddressPreference& preference = {})
      : registry_(registry),
        options_(options),
        preference_(preference),
        ports_(registry, preference) {}

  // Where a path may start now, best first; RankAddresses says when there is
  // none. Devices that do not answer are passed over while other devices do.
  // Devices that answer are followed by ports() from then on.
  absl::StatusOr<std::vector<LocalAddress>> Addresses(
      const std::optional<EndpointDescription>& peer);

  // The queue pairs of a path and the hub that they are on.
  struct PathQueues {
    std::shared_ptr<CompletionHub> hub;
    CompletionHub::Attached attached;
  };
  // Makes the queue pairs of a path on `device`.
  absl::StatusOr<PathQueues> Attach(absl::string_view device,
                                    const PathOptions& options);
  // Where a queue pair starts to count its packets: 24 random bits, so that
  // packets of an earlier connection do not fit.
  uint32_t RandomPacketNumber();

  // Where the memory of paths over `device` should be; -1: anywhere.
  int NumaNodeOf(absl::string_view device) const {
    const Locality::Device* const known = preference_.locality.Find(device);
    return known == nullptr ? -1 : known->numa_node;
  }

  PortWatch& ports() { return ports_; }
  // Of the devices that have paths. For the polling thread.
  MarkSource& marks() { return marks_; }

 private:
  DeviceRegistry& registry_;
  const HubOptions options_;
  const AddressPreference preference_;
  PortWatch ports_;
  MarkReader marks_;
  absl::Mutex mu_;
  std::vector<std::weak_ptr<CompletionHub>> hubs_ ABSL_GUARDED_BY(mu_);
  absl::BitGen random_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_POLL_GROUP_H_
