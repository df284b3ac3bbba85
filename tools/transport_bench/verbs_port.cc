#include "tools/transport_bench/verbs_port.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/device/ibv_library.h"

namespace refract::transport_bench {

absl::StatusOr<VerbsPort> ChooseVerbsPort(absl::string_view preference) {
  namespace verbs = transport::verbs;
  REFRACT_ASSIGN_OR_RETURN(const verbs::AddressPreference wanted,
                           verbs::ParseAddressPreference(preference));
  const verbs::Library& library = verbs::SystemLibrary();
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           library.DeviceNames());
  std::vector<verbs::DevicePorts> devices;
  for (const std::string& name : names) {
    REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<verbs::Device> device,
                             library.Open(name));
    REFRACT_ASSIGN_OR_RETURN(std::vector<verbs::PortInfo> ports,
                             device->Ports());
    devices.push_back({name, std::move(ports)});
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<verbs::LocalAddress> addresses,
                           verbs::RankAddresses(devices, wanted, std::nullopt));
  const verbs::LocalAddress& best = addresses.front();
  return VerbsPort{best.device, best.port, best.gid.index,
                   128 << static_cast<int>(best.attributes.active_mtu)};
}

}  // namespace refract::transport_bench
