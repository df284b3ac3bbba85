#include "transport/paths/paths.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/shm/factory.h"
#include "transport/tcp/factory.h"
#include "transport/verbs/factory.h"

namespace refract::transport {

absl::StatusOr<std::vector<proto::TransportPath>> PathsFor(
    PathPreference preference, absl::string_view rdma_device) {
  const absl::Status verbs = verbs::CheckDevice(rdma_device);
  // Who names a device wants it used.
  if (!rdma_device.empty()) {
    REFRACT_RETURN_IF_ERROR(base::Annotate(verbs, "verbs transport"));
  }
  std::vector<proto::TransportPath> paths;
  switch (preference) {
    case PathPreference::kAuto:
      // On one machine nothing beats its memory.
      paths.push_back(proto::TRANSPORT_PATH_SHM);
      if (verbs.ok()) paths.push_back(proto::TRANSPORT_PATH_VERBS);
      paths.push_back(proto::TRANSPORT_PATH_TCP);
      return paths;
    case PathPreference::kShm:
      return std::vector<proto::TransportPath>{proto::TRANSPORT_PATH_SHM};
    case PathPreference::kTcp:
      return std::vector<proto::TransportPath>{proto::TRANSPORT_PATH_TCP};
    case PathPreference::kVerbs:
      REFRACT_RETURN_IF_ERROR(base::Annotate(verbs, "verbs transport"));
      return std::vector<proto::TransportPath>{proto::TRANSPORT_PATH_VERBS};
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

std::string RailName(proto::TransportPath path, absl::string_view rail) {
  return rail.empty() ? std::string(PathName(path))
                      : absl::StrCat(PathName(path), ":", rail);
}

Attachment AttachmentOf(proto::TransportPath path) {
  switch (path) {
    case proto::TRANSPORT_PATH_SHM:
      return Attachment::kUnix;
    case proto::TRANSPORT_PATH_VERBS:
      return Attachment::kNone;
    default:
      return Attachment::kTcp;
  }
}

absl::StatusOr<std::unique_ptr<DataPath>> MakePath(proto::TransportPath path,
                                                   UniqueFd socket,
                                                   absl::string_view peer,
                                                   PathResources* resources,
                                                   const PathChoice& choice) {
  switch (path) {
    case proto::TRANSPORT_PATH_VERBS:
      return verbs::CreateVerbsPath(resources->verbs, peer, choice);
    case proto::TRANSPORT_PATH_SHM:
      return shm::CreateShmPath(std::move(socket));
    case proto::TRANSPORT_PATH_TCP:
      return tcp::CreateTcpPath(std::move(socket));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("no data path of kind ", path));
  }
}

}  // namespace refract::transport
