#ifndef REFRACT_TRANSPORT_VERBS_FACTORY_H_
#define REFRACT_TRANSPORT_VERBS_FACTORY_H_

// What the rest of the transport knows of verbs. Needs no verbs header; in a
// build without libibverbs, everything here says kUnimplemented.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/datapath.h"

namespace refract::transport::verbs {

// What the verbs paths of one polling thread share. Thread-safe.
class PollGroup;

// OK when verbs paths may work on this machine: there is an RDMA device that
// `device` allows ("DEVICE", "DEVICE:PORT" or "DEVICE:PORT:GID", empty: any),
// whatever the state of its ports, which comes and goes. Otherwise why not:
// InvalidArgument (`device` is not of that form), Unimplemented,
// FailedPrecondition.
absl::Status CheckDevice(absl::string_view device);

// Opens nothing yet. Null when `device` is not of the form above.
std::shared_ptr<PollGroup> MakePollGroup(absl::string_view device);

// One end of a path on the best port for it. `peer`: what the peer exported,
// when it is known already, so that the port can be one that it reaches; empty
// otherwise. FailedPrecondition: no port is usable now. ResourceExhausted: a
// limit of the device or of locked memory.
absl::StatusOr<std::unique_ptr<DataPath>> CreateVerbsPath(
    const std::shared_ptr<PollGroup>& group, absl::string_view peer);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_FACTORY_H_
