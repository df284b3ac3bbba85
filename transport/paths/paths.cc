#include "transport/paths/paths.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/shm/factory.h"
#include "transport/tcp/factory.h"
#include "transport/verbs/factory.h"

namespace refract::transport {
namespace {

// A kind of data path. The transport's knowledge of a kind, besides the
// DataPath interface, is here.
struct PathKind {
  proto::TransportPath path = proto::TRANSPORT_PATH_UNSPECIFIED;
  absl::string_view name;
  Attachment attachment = Attachment::kTcp;
  // CreateRegion takes memory at once, not on first touch.
  bool pins_memory = false;
  // OK when paths of this kind may work on this machine.
  absl::Status (*check)(absl::string_view rdma_device) = nullptr;
  absl::StatusOr<std::unique_ptr<DataPath>> (*make)(
      Stream socket, absl::string_view peer, PathResources* resources,
      const PathChoice& choice) = nullptr;
};

absl::Status Always(absl::string_view) { return absl::OkStatus(); }

// The registry: a new kind of data path is an entry here and a number in
// proto/session.proto. Best first: on one machine nothing beats its memory.
const std::array kKinds = {
    PathKind{.path = proto::TRANSPORT_PATH_SHM,
             .name = "shm",
             .attachment = Attachment::kUnix,
             .check = Always,
             .make =
                 [](Stream socket, absl::string_view, PathResources*,
                    const PathChoice&) {
                   return shm::CreateShmPath(socket.TakeFd());
                 }},
    PathKind{.path = proto::TRANSPORT_PATH_VERBS,
             .name = "verbs",
             .attachment = Attachment::kNone,
             .pins_memory = true,
             .check = verbs::CheckDevice,
             .make =
                 [](Stream, absl::string_view peer, PathResources* resources,
                    const PathChoice& choice) {
                   return verbs::CreateVerbsPath(resources->verbs, peer,
                                                 choice);
                 }},
    PathKind{.path = proto::TRANSPORT_PATH_TCP,
             .name = "tcp",
             .attachment = Attachment::kTcp,
             .check = Always,
             .make =
                 [](Stream socket, absl::string_view, PathResources*,
                    const PathChoice&) {
                   return tcp::CreateTcpPath(std::move(socket));
                 }},
};

// Null: a peer named a kind that this build lacks.
const PathKind* Find(proto::TransportPath path) {
  const auto kind = std::find_if(
      kKinds.begin(), kKinds.end(),
      [path](const PathKind& candidate) { return candidate.path == path; });
  return kind == kKinds.end() ? nullptr : &*kind;
}

constexpr PathPreference PreferenceFor(proto::TransportPath path) {
  return static_cast<PathPreference>(path);
}
static_assert(PreferenceFor(proto::TRANSPORT_PATH_SHM) == PathPreference::kShm);
static_assert(PreferenceFor(proto::TRANSPORT_PATH_TCP) == PathPreference::kTcp);
static_assert(PreferenceFor(proto::TRANSPORT_PATH_VERBS) ==
              PathPreference::kVerbs);

}  // namespace

PathPreference PathPreferenceNamed(absl::string_view name) {
  for (const PathKind& kind : kKinds) {
    if (kind.name == name) return PreferenceFor(kind.path);
  }
  return PathPreference::kAuto;
}

std::vector<std::string> PathPreferenceNames() {
  std::vector<std::string> names = {"auto"};
  for (const PathKind& kind : kKinds) names.emplace_back(kind.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<proto::TransportPath> AllPaths() {
  std::vector<proto::TransportPath> paths;
  for (const PathKind& kind : kKinds) paths.push_back(kind.path);
  return paths;
}

absl::StatusOr<std::vector<proto::TransportPath>> PathsFor(
    PathPreference preference, absl::string_view rdma_device) {
  std::vector<proto::TransportPath> paths;
  for (const PathKind& kind : kKinds) {
    const bool asked_for = preference == PreferenceFor(kind.path);
    const absl::Status usable = kind.check(rdma_device);
    // A node must not fall back silently from a kind or a device that its
    // operator named.
    if (!usable.ok() && (asked_for || !rdma_device.empty())) {
      return base::Annotate(usable, absl::StrCat(kind.name, " transport"));
    }
    if (usable.ok() && (asked_for || preference == PathPreference::kAuto)) {
      paths.push_back(kind.path);
    }
  }
  if (paths.empty()) {
    return absl::InvalidArgumentError("unknown transport preference");
  }
  return paths;
}

absl::string_view PathName(proto::TransportPath path) {
  const PathKind* const kind = Find(path);
  return kind == nullptr ? "unknown" : kind->name;
}

std::string RailName(proto::TransportPath path, absl::string_view rail) {
  return rail.empty() ? std::string(PathName(path))
                      : absl::StrCat(PathName(path), ":", rail);
}

Attachment AttachmentOf(proto::TransportPath path) {
  const PathKind* const kind = Find(path);
  return kind == nullptr ? Attachment::kTcp : kind->attachment;
}

bool PinsMemory(proto::TransportPath path) {
  const PathKind* const kind = Find(path);
  return kind != nullptr && kind->pins_memory;
}

absl::StatusOr<std::unique_ptr<DataPath>> MakePath(proto::TransportPath path,
                                                   Stream socket,
                                                   absl::string_view peer,
                                                   PathResources* resources,
                                                   const PathChoice& choice) {
  const PathKind* const kind = Find(path);
  if (kind == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no data path of kind ", path));
  }
  return kind->make(std::move(socket), peer, resources, choice);
}

}  // namespace refract::transport
