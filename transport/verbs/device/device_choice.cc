#include "transport/verbs/device/device_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace refract::transport::verbs {
namespace {

// Larger is better.
enum class Reach { kNone, kLoopback, kLinkLocal, kRoutable, kRoutableIpv4 };

bool IsIpv4(const uint8_t* gid) {
  static constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0,    0,
                                                      0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid, kMapped.data(), kMapped.size()) == 0;
}

Reach ReachOf(const GidEntry& entry) {
  // All bytes but the last are 0: "::1" is the loopback address, "::" an empty
  // entry.
  const uint8_t* gid = entry.gid.raw;
  if (std::all_of(gid, gid + 15, [](uint8_t x) { return x == 0; })) {
    return gid[15] == 1 ? Reach::kLoopback : Reach::kNone;
  }
  if (IsIpv4(gid)) {
    if (gid[12] == 127) return Reach::kLoopback;
    if (gid[12] == 169 && gid[13] == 254) return Reach::kLinkLocal;
    return Reach::kRoutableIpv4;
  }
  // InfiniBand's default subnet prefix looks like a link-local address.
  if (entry.type == GidType::kInfiniband) return Reach::kRoutable;
  if (gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80) return Reach::kLinkLocal;
  return Reach::kRoutable;
}

// Traffic through these is wrapped, bridged or never leaves the host.
bool IsOverlay(absl::string_view interface) {
  static constexpr std::array<absl::string_view, 10> kPrefixes = {
      "docker", "br-",   "virbr", "cni", "flannel",
      "cali",   "vxlan", "tun",   "tap", "kube"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](absl::string_view prefix) {
                       return absl::StartsWith(interface, prefix);
                     });
}

// Leading bits in common, at most the length of a usual subnet.
int CommonBits(const GidEntry& entry, const EndpointDescription& peer) {
  // An IPv4 address is in the last 4 of the 16 bytes, behind a fixed prefix of
  // 96 bits.
  const int most = IsIpv4(entry.gid.raw) ? 96 + 24 : 64;
  int bits = 0;
  while (bits < most) {
    const int byte = bits / 8;
    const int mask = 0x80 >> (bits % 8);
    if (((entry.gid.raw[byte] ^ peer.gid[byte]) & mask) != 0) break;
    ++bits;
  }
  return bits;
}

bool CanReach(const GidEntry& entry, const EndpointDescription& peer) {
  return static_cast<uint8_t>(entry.type) == peer.gid_type &&
         (entry.type == GidType::kInfiniband ||
          IsIpv4(entry.gid.raw) == IsIpv4(peer.gid.data()));
}

// Rule 6: expected bits per second of the port.
double ExpectedRate(const ibv_port_attr& attributes,
                    const Locality::Device* device) {
  double rate = PortRate(attributes);
  if (device == nullptr) return rate;
  if (device->path_gbps > 0) rate = std::min(rate, device->path_gbps * 1e9);
  return rate * device->factor;
}

struct Candidate {
  LocalAddress address;
  // Rules 2 to 6 in their order; larger is better. Rule 1 drops candidates
  // before, and the stable sort is rule 7.
  std::tuple<bool, Reach, bool, int, double> rank;
};

}  // namespace

absl::StatusOr<AddressPreference> ParseAddressPreference(
    absl::string_view text) {
  AddressPreference preference;
  if (text.empty()) return preference;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() > 3 || parts[0].empty() ||
      (parts.size() > 1 && (!absl::SimpleAtoi(parts[1], &preference.port) ||
                            preference.port < 1 || preference.port > 255)) ||
      (parts.size() > 2 &&
       (!absl::SimpleAtoi(parts[2], &preference.gid_index) ||
        preference.gid_index < 0))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not DEVICE, DEVICE:PORT or DEVICE:PORT:GID"));
  }
  preference.device = std::string(parts[0]);
  return preference;
}

double PortRate(const ibv_port_attr& attributes) {
  // Codes of the InfiniBand specification's PortInfo (LinkWidthActive), as
  // ibv_query_port returns them.
  double lanes = 0;
  switch (attributes.active_width) {
    case 1:
      lanes = 1;
      break;
    case 2:
      lanes = 4;
      break;
    case 4:
      lanes = 8;
      break;
    case 8:
      lanes = 12;
      break;
    case 16:
      lanes = 2;
      break;
  }
  // Gb/s of a lane: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR.
  double lane = 0;
  switch (attributes.active_speed) {
    case 1:
      lane = 2.5;
      break;
    case 2:
      lane = 5;
      break;
    case 4:
    case 8:
      lane = 10;
      break;
    case 16:
      lane = 14;
      break;
    case 32:
      lane = 25;
      break;
    case 64:
      lane = 50;
      break;
    case 128:
      lane = 100;
      break;
  }
  return lanes * lane * 1e9;
}

absl::StatusOr<std::vector<LocalAddress>> RankAddresses(
    const std::vector<DevicePorts>& devices,
    const AddressPreference& preference,
    const std::optional<EndpointDescription>& peer) {
  std::vector<Candidate> candidates;
  std::vector<std::string> refused;
  for (const DevicePorts& device : devices) {
    if (!preference.device.empty() && device.device != preference.device) {
      continue;
    }
    for (const PortInfo& port : device.ports) {
      if (preference.port != 0 && port.number != preference.port) continue;
      const std::string name =
          absl::StrCat(device.device, " port ", port.number);
      if (port.attributes.state != IBV_PORT_ACTIVE) {
        refused.push_back(absl::StrCat(
            name, " is ", ibv_port_state_str(port.attributes.state)));
        continue;
      }
      // Rule 1; a port without a usable address is named in the error.
      size_t usable = 0;
      for (const GidEntry& gid : port.gids) {
        if (preference.gid_index >= 0 && gid.index != preference.gid_index) {
          continue;
        }
        const Reach reach = ReachOf(gid);
        if (reach == Reach::kNone ||
            (!gid.network_device.empty() && !gid.network_device_up) ||
            (peer.has_value() && !CanReach(gid, *peer))) {
          continue;
        }
        ++usable;
        candidates.push_back(
            {{device.device, port.number, port.attributes, gid},
             {gid.type != GidType::kRoceV1, reach,
              !IsOverlay(gid.network_device),
              peer.has_value() ? CommonBits(gid, *peer) : 0,
              ExpectedRate(port.attributes,
                           preference.locality.Find(device.device))}});
      }
      if (usable == 0) {
        refused.push_back(absl::StrCat(
            name, " has no address",
            peer.has_value() ? " of the peer's kind" : " on a link that is up",
            preference.gid_index >= 0
                ? absl::StrCat(" with GID index ", preference.gid_index)
                : ""));
      }
    }
  }
  if (candidates.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no usable RDMA port",
        preference.device.empty() ? ""
                                  : absl::StrCat(" on ", preference.device),
        refused.empty() ? "" : ": ", absl::StrJoin(refused, "; ")));
  }
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& x, const Candidate& y) { return x.rank > y.rank; });
  std::vector<LocalAddress> ranked;
  for (Candidate& candidate : candidates) {
    ranked.push_back(std::move(candidate.address));
  }
  return ranked;
}

std::string RailOf(absl::string_view device, uint8_t port) {
  return absl::StrCat(device, ":", port);
}

std::string Describe(const LocalAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET6, address.gid.gid.raw, text.data(), text.size());
  const absl::string_view type =
      address.gid.type == GidType::kRoceV2   ? "RoCE v2"
      : address.gid.type == GidType::kRoceV1 ? "RoCE v1"
                                             : "InfiniBand";
  return absl::StrCat(address.device, " port ", address.port, " GID ",
                      address.gid.index, " (", text.data(), ", ", type, ")");
}

}  // namespace refract::transport::verbs
