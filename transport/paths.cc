#include "transport/paths.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/shm/factory.h"
#include "transport/tcp/factory.h"

namespace refract::transport {

absl::StatusOr<std::vector<proto::TransportPath>> PathsFor(
    PathPreference preference) {
  switch (preference) {
    case PathPreference::kAuto:
      return std::vector<proto::TransportPath>{proto::TRANSPORT_PATH_SHM,
                                               proto::TRANSPORT_PATH_TCP};
    case PathPreference::kShm:
      return std::vector<proto::TransportPath>{proto::TRANSPORT_PATH_SHM};
    case PathPreference::kTcp:
      return std::vector<proto::TransportPath>{proto::TRANSPORT_PATH_TCP};
    case PathPreference::kVerbs:
      return absl::InvalidArgumentError(
          "the verbs transport is not built in this version");
  }
  return absl::InvalidArgumentError("unknown transport preference");
}

absl::string_view PathName(proto::TransportPath path) {
  switch (path) {
    case proto::TRANSPORT_PATH_VERBS:
      return "verbs";
    case proto::TRANSPORT_PATH_SHM:
      return "shm";
    case proto::TRANSPORT_PATH_TCP:
      return "tcp";
    default:
      return "unknown";
  }
}

bool AttachesLocally(proto::TransportPath path) {
  return path == proto::TRANSPORT_PATH_SHM;
}

absl::StatusOr<std::unique_ptr<DataPath>> MakePath(proto::TransportPath path,
                                                   UniqueFd socket) {
  if (path == proto::TRANSPORT_PATH_SHM) {
    return shm::CreateShmPath(std::move(socket));
  }
  if (path == proto::TRANSPORT_PATH_TCP) {
    return tcp::CreateTcpPath(std::move(socket));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no data path of kind ", path));
}

}  // namespace refract::transport
