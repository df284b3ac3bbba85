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

// The hubs of a polling thread: one per device, and a further hub when the
// first is full. A hub lives as long as paths use it, and keeps its device open
// no longer: a device that is to be removed is closed as soon as its paths have
// failed. Thread-safe, because handshake threads make paths.
class PollGroup {
 public:
  // `registry` must outlive the group and its paths.
  PollGroup(DeviceRegistry& registry, const HubOptions& options,
            const AddressPreference& preference = {})
      : registry_(registry),
        options_(options),
        preference_(preference),
        ports_(registry, preference) {}

  // Addresses where a path may start now, best first; RankAddresses gives the
  // errors. Devices that do not answer are skipped while other devices do.
  // ports() follows devices that answer from then on.
  absl::StatusOr<std::vector<LocalAddress>> Addresses(
      const std::optional<EndpointDescription>& peer);

  // The queue pairs of a path and their hub.
  struct PathQueues {
    std::shared_ptr<CompletionHub> hub;
    CompletionHub::Attached attached;
  };
  // Makes the queue pairs of a path on `device`.
  absl::StatusOr<PathQueues> Attach(absl::string_view device,
                                    const PathOptions& options);
  // First packet number of a queue pair: 24 random bits, so that packets of an
  // earlier connection do not fit.
  uint32_t RandomPacketNumber();

  // NUMA node for the memory of paths over `device`; -1: any.
  int NumaNodeOf(absl::string_view device) const {
    const Locality::Device* const known = preference_.locality.Find(device);
    return known == nullptr ? -1 : known->numa_node;
  }

  PortWatch& ports() { return ports_; }
  // Marks of the devices that have paths. For the polling thread.
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
