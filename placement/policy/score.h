#ifndef REFRACT_PLACEMENT_POLICY_SCORE_H_
#define REFRACT_PLACEMENT_POLICY_SCORE_H_

// Scores nodes for an instance: pure functions of one node's state.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "placement/cluster/cluster.h"
#include "placement/cluster/usage.h"
#include "placement/fragmentation/fragmentation.h"
#include "placement/policy/state.h"

namespace refract::placement {

enum class Policy : uint8_t {
  kRandom,
  // Least of ½ (free CPU left ÷ 128 cores) + ½ (free GPU left ÷ 8 GPUs).
  kBestFit,
  // Least dot product of free and asked (CPU ÷ 128 cores, GPU ÷ 8 GPUs).
  kDotProd,
  // A GPU in use before a free GPU of a node in use before an idle node.
  kPacking,
  // Nodes with the same kind of GPU request first, other kinds last.
  kClustering,
  // Fragmentation gradient descent: least growth of the GPU fragment, in
  // buckets; equal buckets by best fit.
  kFgd,
  // Shortest path between GPU (or CPU) and NIC first, FGD among equals.
  kCombined,
};
inline constexpr int kPolicies = 7;
absl::string_view Name(Policy policy);  // "random", "best-fit", …
std::optional<Policy> PolicyFromName(absl::string_view name);
std::string PolicyNames();  // "random, best-fit, …"

// Throughput over a path ÷ throughput within one PCIe switch: Prism (NSDI '25),
// figure 11, messages of 8 KiB and more: 172.7, 137.6 and 109.4 Gbit/s.
inline constexpr double kSameSwitch = 1.0;
inline constexpr double kSameSocket = 0.80;
inline constexpr double kOtherSocket = 0.63;
// Of a CN's cores and its NIC. The paper has no figure for another socket.
inline constexpr double kCoresAtNic = 1.0;
inline constexpr double kCoresElsewhere = 0.80;

// Better scores are larger; `topology` counts first, then `primary`, then
// `secondary`. All values are finite.
struct Score {
  double topology = 1;
  double primary = 0;
  double secondary = 0;

  friend bool operator==(const Score&, const Score&) = default;
  bool BetterThan(const Score& other) const {
    if (topology != other.topology) return topology > other.topology;
    if (primary != other.primary) return primary > other.primary;
    return secondary > other.secondary;
  }
};

struct Choice {
  Score score;
  Devices devices;
};

// How a policy that ignores topology chooses a NIC.
enum class NicRule : uint8_t {
  kFirst,   // the first with room, as GPUs are picked by index
  kNearest  // the nearest to the GPUs already picked
};

struct ScoreInputs {
  const Node& node;
  const NodeFree& free;
  const std::array<int32_t, kGpuKinds>& kinds;
  const Demand& demand;
  // For kFgd and kCombined; not null there.
  const FragmentMeter* meter = nullptr;
  double gpu_fragment = 0;  // of the node before, thousandths of a GPU
  NicRule nic_rule = NicRule::kFirst;
};

// The score of a node and the devices that give it. `demand` fits on the node.
// kRandom scores all nodes alike.
Choice ScoreNode(Policy policy, const ScoreInputs& in);

// 0..99: ⌊100 · sigmoid((before − after) ÷ 1 GPU)⌋, as the published FGD
// scheduler rounds; 50 = no change. Near 50 a bucket is about 0.04 GPU wide.
// Without buckets, FGD never packs (docs/design/placement.md).
int FgdBucket(double before_milli, double after_milli);

// The score of the path between the NIC and the farthest of `devices`' GPUs;
// without GPUs, between the NIC and the cores; 1 without a NIC.
double TopologyScore(const Node& node, const Devices& devices);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_POLICY_SCORE_H_
