#ifndef REFRACT_PLACEMENT_CLUSTER_INSTANCE_H_
#define REFRACT_PLACEMENT_CLUSTER_INSTANCE_H_

// Instances, which are placed on nodes. An instance is one container of a
// service (an app): a CN instance, an HN instance, or the whole model in one
// container as before disaggregation. Units as in cluster/cluster.h.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "placement/cluster/mig.h"

namespace refract::placement {

enum class Role : uint8_t { kWhole, kCn, kHn };
absl::string_view Name(Role role);  // "whole", "CN", "HN"

// Resources of one instance. Either whole GPUs (gpus ≥ 1, gpu_milli = 1000), or
// a fraction of one GPU (gpus = 1, gpu_milli < 1000), or a MIG slice of one GPU
// (gpus = 1, mig set, gpu_milli = its share of the GPU's memory).
struct Demand {
  int64_t cpu_milli = 0;
  int64_t memory_mib = 0;
  int64_t disk_mib = 0;
  int32_t gpus = 0;
  int32_t gpu_milli = 0;  // of each of the `gpus`
  MigProfile mig = MigProfile::kNone;
  int32_t nic_percent = 0;  // of one NIC; 0 = needs no NIC
  uint64_t gpu_models = 0;  // bit per Cluster::gpu_models; 0 = any model

  int64_t TotalGpuMilli() const { return int64_t{gpus} * gpu_milli; }
  friend bool operator==(const Demand&, const Demand&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Demand& d) {
    return H::combine(std::move(h), d.cpu_milli, d.memory_mib, d.disk_mib,
                      d.gpus, d.gpu_milli, d.mig, d.nic_percent, d.gpu_models);
  }
};

// Times are seconds since the start of the trace.
inline constexpr double kBeforeStart = -1;
inline constexpr double kNeverDeleted = std::numeric_limits<double>::infinity();

struct Instance {
  std::string name;
  int app = -1;  // index in InstanceList::apps; -1 = belongs to no app
  Role role = Role::kWhole;
  Demand demand;
  int max_per_node = -1;  // of this app and role; -1 = no limit
  double created = kBeforeStart;
  double deleted = kNeverDeleted;
};

struct InstanceList {
  std::vector<Instance> instances;
  std::vector<std::string> apps;
};

// InvalidArgument names the field whose value is negative, absurd or
// contradicts another.
absl::Status Check(const Demand& demand);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_CLUSTER_INSTANCE_H_
