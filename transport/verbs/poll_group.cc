#include "transport/verbs/poll_group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_macros.h"

namespace refract::transport::verbs {

absl::StatusOr<std::vector<LocalAddress>> PollGroup::Addresses(
    const std::optional<EndpointDescription>& peer) {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           registry_.DeviceNames());
  std::vector<DevicePorts> devices;
  absl::Status broken;
  for (const std::string& name : names) {
    if (!preference_.device.empty() && name != preference_.device) continue;
    const absl::StatusOr<std::shared_ptr<DeviceContext>> context =
        registry_.Open(name);
    // A broken device must not hide a device that works: its error is returned
    // only if no device is left.
    broken.Update(context.status());
    if (!context.ok()) continue;
    absl::StatusOr<std::vector<PortInfo>> ports = (*context)->device().Ports();
    broken.Update(ports.status());
    if (!ports.ok()) continue;
    ports_.Follow(*context);
    devices.push_back({name, *std::move(ports)});
  }
  if (devices.empty()) REFRACT_RETURN_IF_ERROR(broken);
  return RankAddresses(devices, preference_, peer);
}

absl::StatusOr<PollGroup::PathQueues> PollGroup::Attach(
    absl::string_view device, const PathOptions& options) {
  absl::MutexLock lock(&mu_);
  std::erase_if(hubs_, [](const auto& hub) { return hub.expired(); });
  // The first hub of the device with room takes the path; a further hub is made
  // when all are full.
  for (const std::weak_ptr<CompletionHub>& known : hubs_) {
    std::shared_ptr<CompletionHub> hub = known.lock();
    if (hub == nullptr || hub->dead()) continue;
    if (hub->context().device().name() != device) continue;
    absl::StatusOr<CompletionHub::Attached> attached = hub->Attach(options);
    if (attached.ok()) return PathQueues{hub, *std::move(attached)};
    if (!absl::IsResourceExhausted(attached.status())) {
      return attached.status();
    }
  }
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<DeviceContext> context,
                           registry_.Open(device));
  REFRACT_ASSIGN_OR_RETURN(
      std::shared_ptr<CompletionHub> hub,
      CompletionHub::Create(std::move(context), options_, options));
  REFRACT_ASSIGN_OR_RETURN(CompletionHub::Attached attached,
                           hub->Attach(options));
  marks_.Add(hub->shared_context());
  hubs_.push_back(hub);
  return PathQueues{std::move(hub), std::move(attached)};
}

uint32_t PollGroup::RandomPacketNumber() {
  absl::MutexLock lock(&mu_);
  return absl::Uniform<uint32_t>(random_, 0, 1u << 24);
}

}  // namespace refract::transport::verbs
