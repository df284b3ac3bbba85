#ifndef REFRACT_TRANSPORT_VERBS_FACTORY_H_
#define REFRACT_TRANSPORT_VERBS_FACTORY_H_

// The interface of verbs for the rest of the transport. It needs no verbs
// header; in a build without libibverbs all functions return kUnimplemented.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/datapath.h"
#include "transport/loop/waker.h"
#include "transport/paths/locality.h"
#include "transport/paths/path_choice.h"
#include "transport/pulls/mark_source.h"

namespace refract::transport::verbs {

// State that the verbs paths of one polling thread share. Thread-safe.
class PollGroup;

// OK when verbs paths may work on this machine: there is an RDMA device that
// `device` allows ("DEVICE", "DEVICE:PORT" or "DEVICE:PORT:GID", empty: any),
// whatever the state of its ports, which may change. Other codes give the
// reason: InvalidArgument (`device` is not of that form), Unimplemented,
// FailedPrecondition.
absl::Status CheckDevice(absl::string_view device);

// Opens no device yet. Null if `device` is not of the form above.
std::shared_ptr<PollGroup> MakePollGroup(absl::string_view device,
                                         const Locality& locality = {});

// One end of a path, on its best address. `peer`: a descriptor that the peer
// exported; empty: not known yet. With `peer`, the path is connected at once,
// from the first address with a route to the peer's address: only trying shows
// which addresses have a route. `choice` as in path_choice.h.
//
// FailedPrecondition: no port is usable now, or no port reaches the peer.
// Unavailable: there is no route to the peer's address. OutOfRange: choice.skip
// leaves no address. ResourceExhausted: a limit of the device or of locked
// memory.
absl::StatusOr<std::unique_ptr<DataPath>> CreateVerbsPath(
    const std::shared_ptr<PollGroup>& group, absl::string_view peer,
    const PathChoice& choice = {});

// Congestion notifications of the devices of the group's paths, for its polling
// thread; lives as long as the group. Null if `group` is null.
MarkSource* Marks(PollGroup* group);

// A port that paths of a group may use.
struct PortState {
  std::string rail;  // DataPath::rail()
  bool up = false;
  friend bool operator==(const PortState&, const PortState&) = default;
};
// Wakes `waker` when a port comes up or goes down. Opens no device: devices are
// followed from their first path on. Call once; null: no effect.
void WatchPorts(PollGroup* group, std::shared_ptr<Waker> waker);
// All followed ports, if a state has changed since the last call; ports of a
// broken device are left out. Cheap if nothing changed.
std::optional<std::vector<PortState>> TakePorts(PollGroup* group);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_FACTORY_H_
