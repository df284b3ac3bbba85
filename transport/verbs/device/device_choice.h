#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_DEVICE_CHOICE_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_DEVICE_CHOICE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/paths/locality.h"
#include "transport/verbs/descriptor.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::verbs {

// A device with its ports, as input of the choice.
struct DevicePorts {
  std::string device;
  std::vector<PortInfo> ports;
};

// Start of a path: a port of a device and one of its addresses.
struct LocalAddress {
  std::string device;
  uint8_t port = 0;
  ibv_port_attr attributes = {};
  GidEntry gid;
};

// The user's choice; fields left empty are chosen automatically.
struct AddressPreference {
  std::string device;  // empty: any
  int port = 0;        // 0: any
  int gid_index = -1;  // negative: any
  Locality locality;   // of the devices, for rule 6
};

// "DEVICE", "DEVICE:PORT" or "DEVICE:PORT:GID"; empty: no preference.
absl::StatusOr<AddressPreference> ParseAddressPreference(
    absl::string_view text);

// The addresses a path may use, best first. With `peer`, only addresses that
// reach the peer. Each rule decides among equals of the rule above:
//   1. active ports only, and network devices that are up;
//   2. RoCE v2 (or InfiniBand) before RoCE v1, whose packets no router passes;
//   3. routable IPv4 before other routable addresses before link-local ones
//      before those of the loopback interface;
//   4. interfaces of bridges, tunnels and containers last;
//   5. the network of the peer (/24 of IPv4, /64 of IPv6);
//   6. the higher rate: of the port, or of the path to it where that is slower,
//      times its factor (Locality::Device); 7. the order of the system.
// FailedPrecondition when no port is left; names the ports found.
absl::StatusOr<std::vector<LocalAddress>> RankAddresses(
    const std::vector<DevicePorts>& devices,
    const AddressPreference& preference,
    const std::optional<EndpointDescription>& peer);

// Bits per second that `attributes` encode; 0 if unknown.
double PortRate(const ibv_port_attr& attributes);

// The rail name of a port: "mlx5_0:1".
std::string RailOf(absl::string_view device, uint8_t port);

// "rxe0 port 1 GID 1 (::ffff:10.0.0.1, RoCE v2)".
std::string Describe(const LocalAddress& address);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_DEVICE_CHOICE_H_
