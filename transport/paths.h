#ifndef REFRACT_TRANSPORT_PATHS_H_
#define REFRACT_TRANSPORT_PATHS_H_

// The one place that knows which back-ends exist.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/session.pb.h"
#include "transport/channel.h"
#include "transport/datapath.h"
#include "transport/fd.h"

namespace refract::transport {

// Back-ends that `preference` allows here, best first. InvalidArgument: one
// that this version does not have.
absl::StatusOr<std::vector<proto::TransportPath>> PathsFor(
    PathPreference preference);

// "shm", "tcp", …
absl::string_view PathName(proto::TransportPath path);

// True: attached through the server's abstract unix socket, so both ends are
// on one machine; false: through its TCP port.
bool AttachesLocally(proto::TransportPath path);

// Over a connected socket of the kind that AttachesLocally says.
absl::StatusOr<std::unique_ptr<DataPath>> MakePath(proto::TransportPath path,
                                                   UniqueFd socket);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_H_
