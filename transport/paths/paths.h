#ifndef REFRACT_TRANSPORT_PATHS_PATHS_H_
#define REFRACT_TRANSPORT_PATHS_PATHS_H_

// The registry of data paths: only this file knows which kinds exist.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/session.pb.h"
#include "transport/datapath.h"
#include "transport/links/channel.h"
#include "transport/loop/stream.h"
#include "transport/paths/path_choice.h"
#include "transport/paths/path_resources.h"

namespace refract::transport {

// All kinds, best first.
std::vector<proto::TransportPath> AllPaths();

// The kinds that `preference` allows on this machine, best first. `rdma_device`
// as in ClientOptions. An error says why the named kind or device cannot be
// used.
absl::StatusOr<std::vector<proto::TransportPath>> PathsFor(
    PathPreference preference, absl::string_view rdma_device);

// "shm", "tcp", …
absl::string_view PathName(proto::TransportPath path);
// The name of a path's rail in RailHealth: "verbs:mlx5_0:1"; "verbs" if `rail`
// is empty.
std::string RailName(proto::TransportPath path, absl::string_view rail);

// Connection of this process over which a path is made.
enum class Attachment {
  kTcp,   // a further connection to the server's TCP port
  kUnix,  // a connection to its abstract unix socket: one machine
  kNone,  // none: the exported descriptors suffice
};
Attachment AttachmentOf(proto::TransportPath path);

// Whether regions take their memory when made, not on first touch: a device
// pins the memory that it may reach.
bool PinsMemory(proto::TransportPath path);

// `socket` is of the kind that AttachmentOf says, invalid for kNone. `peer`: a
// descriptor that the peer exported; empty: none has come yet. `resources`
// belong to the polling thread of the path, and outlive the path. OutOfRange:
// `choice` skips every address.
absl::StatusOr<std::unique_ptr<DataPath>> MakePath(
    proto::TransportPath path, Stream socket, absl::string_view peer,
    PathResources* resources, const PathChoice& choice = {});

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_PATHS_H_
