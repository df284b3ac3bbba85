#include "transport/verbs/factory.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "transport/verbs/descriptor.h"
#include "transport/verbs/device_choice.h"
#include "transport/verbs/device_context.h"
#include "transport/verbs/poll_group.h"
#include "transport/verbs/verbs_path.h"

namespace refract::transport::verbs {

absl::Status CheckDevice(absl::string_view device) {
  REFRACT_ASSIGN_OR_RETURN(const AddressPreference preference,
                           ParseAddressPreference(device));
  const absl::StatusOr<std::vector<std::string>> names =
      DeviceRegistry::System().DeviceNames();
  if (!names.ok() || names->empty()) {
    return absl::FailedPreconditionError(names.ok()
                                             ? "this machine has no RDMA device"
                                             : names.status().message());
  }
  if (!preference.device.empty() &&
      std::find(names->begin(), names->end(), preference.device) ==
          names->end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no RDMA device ", preference.device, "; there is ",
                     absl::StrJoin(*names, ", ")));
  }
  return absl::OkStatus();
}

std::shared_ptr<PollGroup> MakePollGroup(absl::string_view device) {
  const absl::StatusOr<AddressPreference> preference =
      ParseAddressPreference(device);
  if (!preference.ok()) return nullptr;
  return std::make_shared<PollGroup>(DeviceRegistry::System(), HubOptions(),
                                     *preference);
}

absl::StatusOr<std::unique_ptr<DataPath>> CreateVerbsPath(
    const std::shared_ptr<PollGroup>& group, absl::string_view peer) {
  if (group == nullptr) {
    return absl::InvalidArgumentError("a verbs path without poll group");
  }
  std::optional<EndpointDescription> endpoint;
  if (!peer.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const RegionDescription region,
                             DecodeRegion(peer));
    endpoint = region.endpoint;
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<LocalAddress> addresses,
                           group->Addresses(endpoint));
  return VerbsPath::Create(group, addresses.front(), PathOptions());
}

}  // namespace refract::transport::verbs
