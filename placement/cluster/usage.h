#ifndef REFRACT_PLACEMENT_CLUSTER_USAGE_H_
#define REFRACT_PLACEMENT_CLUSTER_USAGE_H_

// Free resources of a node, and the choice of an instance's devices among them.
// Plain values: a tentative placement is a copy.

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "placement/cluster/cluster.h"
#include "placement/cluster/instance.h"

namespace refract::placement {

struct NodeFree {
  int64_t cpu_milli = 0;  // the sum of `socket_cpu_milli`
  int64_t memory_mib = 0;
  int64_t disk_mib = 0;
  std::array<int32_t, kMaxSockets> socket_cpu_milli{};
  std::array<int16_t, kMaxGpus> gpu_milli{};
  // Memory slices in use; not 0 = the GPU is in MIG mode, and its `gpu_milli`
  // counts the free slices.
  std::array<uint8_t, kMaxGpus> mig_used{};
  std::array<int16_t, kMaxNics> nic_percent{};

  friend bool operator==(const NodeFree&, const NodeFree&) = default;
};

NodeFree AllFree(const Node& node);

// The devices and cores of an instance on its node.
struct Devices {
  uint16_t gpus = 0;       // bit per GPU
  uint8_t mig_slices = 0;  // bit per memory slice of the one GPU
  int8_t nic = -1;         // -1 = none
  std::array<int32_t, kMaxSockets> socket_cpu_milli{};
};

// Why an instance cannot run on a node: the first resource that is too scarce,
// or the rule that forbids it.
enum class Obstacle : uint8_t {
  kNothing,
  kGpuModel,  // GPUs of another model, or no GPUs for a demand that names a
              // model
  kGpu,
  kCpu,
  kMemory,
  kDisk,
  kNic,
  kPod,        // the app runs in another pod
  kDensity,    // the node has max_per_node instances of the app and role
  kLeafQuota,  // NIC shares under the leaf switch would pass its quota
};
inline constexpr int kObstacles = 10;
absl::string_view Name(Obstacle obstacle);  // "CPU", "GPU", …

// Considers only resources.
Obstacle ObstacleOf(const Node& node, const NodeFree& free,
                    const Demand& demand);

// Whether `gpu` of the node has room for one GPU's worth of `demand`.
inline bool GpuHasRoom(const Node& node, const NodeFree& free, int gpu,
                       const Demand& demand) {
  if (demand.mig != MigProfile::kNone) {
    return node.mig_capable &&
           (free.mig_used[gpu] != 0 || free.gpu_milli[gpu] == kWholeGpu) &&
           ChooseMigSlices(demand.mig, free.mig_used[gpu]) != 0;
  }
  return free.mig_used[gpu] == 0 && free.gpu_milli[gpu] >= demand.gpu_milli;
}

// Fills `devices.socket_cpu_milli`: cores of socket `first`, then of the
// following sockets.
void TakeCores(const Node& node, const NodeFree& free, int64_t cpu_milli,
               int first, Devices& devices);

// Takes `demand` with `devices` out of `free`, or returns it. The caller must
// have checked that they fit.
void Take(const Demand& demand, const Devices& devices, NodeFree& free);
void GiveBack(const Demand& demand, const Devices& devices, NodeFree& free);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_CLUSTER_USAGE_H_
