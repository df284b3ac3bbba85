#include "transport/verbs/factory.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "transport/verbs/descriptor.h"
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/device/device_context.h"
#include "transport/verbs/poll_group.h"
#include "transport/verbs/verbs_path.h"

namespace refract::transport::verbs {
namespace {

// Most tries of local addresses for one of the peer's. A refusal may take
// seconds, if a neighbour's address cannot be resolved.
constexpr size_t kMaxTries = 4;

}  // namespace

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
        absl::StrCat("no RDMA device ", preference.device,
                     "; this machine has ", absl::StrJoin(*names, ", ")));
  }
  return absl::OkStatus();
}

std::shared_ptr<PollGroup> MakePollGroup(absl::string_view device,
                                         const Locality& locality) {
  absl::StatusOr<AddressPreference> preference = ParseAddressPreference(device);
  if (!preference.ok()) return nullptr;
  preference->locality = locality;
  return std::make_shared<PollGroup>(DeviceRegistry::System(), HubOptions(),
                                     *preference);
}

absl::StatusOr<std::unique_ptr<DataPath>> CreateVerbsPath(
    const std::shared_ptr<PollGroup>& group, absl::string_view peer,
    const PathChoice& choice) {
  if (group == nullptr) {
    return absl::InvalidArgumentError("a verbs path without poll group");
  }
  std::optional<EndpointDescription> endpoint;
  if (!peer.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const RegionDescription region,
                             DecodeRegion(peer));
    endpoint = region.endpoint;
  }
  REFRACT_ASSIGN_OR_RETURN(std::vector<LocalAddress> addresses,
                           group->Addresses(endpoint));
  // Rails that failed lately go last, but may still be tried.
  std::stable_partition(
      addresses.begin(), addresses.end(), [&](const LocalAddress& address) {
        return std::find(choice.avoid.begin(), choice.avoid.end(),
                         RailOf(address.device, address.port)) ==
               choice.avoid.end();
      });
  if (choice.skip >= addresses.size()) {
    return absl::OutOfRangeError(absl::StrCat("no more than ", addresses.size(),
                                              " addresses of RDMA ports"));
  }
  addresses.erase(addresses.begin(),
                  addresses.begin() + static_cast<ptrdiff_t>(choice.skip));
  if (!endpoint.has_value()) {
    return VerbsPath::Create(group, addresses.front(), PathOptions());
  }
  if (addresses.size() > kMaxTries) addresses.resize(kMaxTries);
  absl::Status refused;
  for (const LocalAddress& address : addresses) {
    REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<VerbsPath> path,
                             VerbsPath::Create(group, address, PathOptions()));
    const absl::Status connected = path->Connect(*endpoint);
    if (connected.ok()) return path;
    // Any other error would be no better from another address.
    if (!absl::IsUnavailable(connected)) return connected;
    refused.Update(connected);
  }
  return refused;
}

MarkSource* Marks(PollGroup* group) {
  return group == nullptr ? nullptr : &group->marks();
}

void WatchPorts(PollGroup* group, std::shared_ptr<Waker> waker) {
  if (group != nullptr) group->ports().Start(std::move(waker));
}

std::optional<std::vector<PortState>> TakePorts(PollGroup* group) {
  if (group == nullptr) return std::nullopt;
  return group->ports().Take();
}

}  // namespace refract::transport::verbs
