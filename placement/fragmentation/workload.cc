#include "placement/fragmentation/workload.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "absl/container/flat_hash_map.h"

namespace refract::placement {

TargetWorkload WorkloadOf(absl::Span<const Instance> instances,
                          const WorkloadOptions& options) {
  absl::flat_hash_map<Demand, int64_t> counts;
  for (const Instance& instance : instances) {
    Demand shape = instance.demand;
    if (!options.with_memory) shape.memory_mib = 0;
    shape.disk_mib = 0;
    shape.nic_percent = 0;
    ++counts[shape];
  }
  std::vector<std::pair<Demand, int64_t>> sorted(counts.begin(), counts.end());
  // Most frequent first; the other fields make the order independent of the
  // hash table.
  const auto key = [](const std::pair<Demand, int64_t>& entry) {
    const Demand& d = entry.first;
    return std::make_tuple(-entry.second, d.gpus, d.gpu_milli, d.mig,
                           d.cpu_milli, d.memory_mib, d.gpu_models);
  };
  std::sort(sorted.begin(), sorted.end(),
            [&](const auto& a, const auto& b) { return key(a) < key(b); });
  TargetWorkload workload;
  int64_t covered = 0;
  const double enough =
      options.coverage * static_cast<double>(instances.size());
  for (const auto& [demand, count] : sorted) {
    if (static_cast<double>(covered) >= enough) break;
    workload.shapes.push_back({demand, static_cast<double>(count)});
    covered += count;
  }
  for (Shape& shape : workload.shapes) {
    // Popularities of the kept shapes add up to 1.
    shape.popularity /= static_cast<double>(covered);
  }
  return workload;
}

}  // namespace refract::placement
