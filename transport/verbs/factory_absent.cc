// The factory of a build without libibverbs.

#include "transport/verbs/factory.h"

namespace refract::transport::verbs {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError("this build has no verbs transport");
}

}  // namespace

absl::Status CheckDevice(absl::string_view device) {
  if (device.empty()) return Absent();
  return absl::InvalidArgumentError(Absent().message());
}

std::shared_ptr<PollGroup> MakePollGroup(absl::string_view /*device*/,
                                         const Locality& /*locality*/) {
  return nullptr;
}

absl::StatusOr<std::unique_ptr<DataPath>> CreateVerbsPath(
    const std::shared_ptr<PollGroup>& /*group*/, absl::string_view /*peer*/,
    const PathChoice& /*choice*/) {
  return Absent();
}

MarkSource* Marks(PollGroup* /*group*/) { return nullptr; }

void WatchPorts(PollGroup* /*group*/, std::shared_ptr<Waker> /*waker*/) {}

std::optional<std::vector<PortState>> TakePorts(PollGroup* /*group*/) {
  return std::nullopt;
}

}  // namespace refract::transport::verbs
