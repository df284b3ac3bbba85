#ifndef REFRACT_PLACEMENT_FABRIC_FABRIC_H_
#define REFRACT_PLACEMENT_FABRIC_FABRIC_H_

// Places of hosts in the network, from labels: each host is in a leaf (the
// hosts below one access switch), a pod (the leaves below one layer of spine
// switches), a zone and a region. The nearer the smallest domain that two hosts
// share, the fewer and the less shared the links between them.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::placement {

// The smallest domain that two hosts share, nearest first: the distance.
enum class Tier { kHost, kLeaf, kPod, kZone, kRegion, kFar };
inline constexpr int kNumTiers = 6;
// "host", "leaf", …; kFar is "far": none is shared, or labels are missing.
absl::string_view Name(Tier tier);

struct FabricHost {
  std::string name;
  std::vector<std::string> addresses;  // other names: IP addresses, host names
  // Names of domains; empty: unknown, shared with no host.
  std::string leaf;
  std::string pod;
  std::string zone;
  std::string region;
};

Tier TierBetween(const FabricHost& a, const FabricHost& b);

// The hosts of a label file. Values only; reading is thread-safe.
class Fabric {
 public:
  // Adds a host. InvalidArgument: its name or an address belongs to another
  // host, or its labels contradict those of another host (one leaf in two pods,
  // one pod in two zones, one zone in two regions).
  absl::Status Add(FabricHost host);

  const std::vector<FabricHost>& hosts() const { return hosts_; }
  // By name or address; a name with dots also by its part before the first dot.
  // Null: unknown.
  const FabricHost* Find(absl::string_view name) const;
  // Distance of `self` and the host of "HOST:PORT". kFar: that host is unknown;
  // kHost for the loopback interface.
  Tier TierTo(const FabricHost& self, absl::string_view address) const;

 private:
  std::vector<FabricHost> hosts_;
  std::map<std::string, size_t> by_name_;  // names and addresses
  // Domain -> the host that named it first, per kind of domain.
  std::map<std::string, size_t> leaves_, pods_, zones_;
};

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_FABRIC_FABRIC_H_
