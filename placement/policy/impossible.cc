// Names the resource that makes a demand impossible.

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/cluster/usage.h"
#include "placement/policy/placer.h"

namespace refract::placement {
namespace {

// The demand for one resource alone.
Demand Only(Obstacle resource, const Demand& demand) {
  Demand only;
  switch (resource) {
    case Obstacle::kGpuModel:
    case Obstacle::kGpu:
      only.gpus = demand.gpus;
      only.gpu_milli = demand.gpu_milli;
      only.mig = demand.mig;
      only.gpu_models = demand.gpu_models;
      break;
    case Obstacle::kCpu:
      only.cpu_milli = demand.cpu_milli;
      break;
    case Obstacle::kMemory:
      only.memory_mib = demand.memory_mib;
      break;
    case Obstacle::kDisk:
      only.disk_mib = demand.disk_mib;
      break;
    case Obstacle::kNic:
      only.nic_percent = demand.nic_percent;
      break;
    default:
      break;
  }
  return only;
}

bool AnyNodeFits(const Cluster& cluster, const Demand& demand) {
  return std::any_of(
      cluster.nodes.begin(), cluster.nodes.end(), [&](const Node& node) {
        return ObstacleOf(node, AllFree(node), demand) == Obstacle::kNothing;
      });
}

std::string Largest(const Cluster& cluster, auto amount) {
  decltype(amount(cluster.nodes[0])) largest = 0;
  for (const Node& node : cluster.nodes) {
    largest = std::max(largest, amount(node));
  }
  return absl::StrCat(" (the largest has ", largest, ")");
}

// " of model A100 or H100"; "" if any model will do.
std::string OfModels(const Cluster& cluster, const Demand& demand) {
  std::string text;
  for (size_t i = 0; i < cluster.gpu_models.size(); ++i) {
    if ((demand.gpu_models >> i & 1) == 0) continue;
    absl::StrAppend(&text, text.empty() ? " of model " : " or ",
                    cluster.gpu_models[i]);
  }
  return text;
}

// " (the nodes have T4, V100)"
std::string ModelsThere(const Cluster& cluster) {
  std::set<std::string> models;
  for (const Node& node : cluster.nodes) {
    if (node.gpus > 0) models.insert(cluster.gpu_models[node.gpu_model]);
  }
  if (models.empty()) return " (no node has GPUs)";
  return absl::StrCat(" (the nodes have ", absl::StrJoin(models, ", "), ")");
}

std::string Amount(Obstacle resource, const Cluster& cluster,
                   const Demand& demand) {
  switch (resource) {
    case Obstacle::kGpu:
      if (demand.mig != MigProfile::kNone) {
        return absl::StrCat("a GPU with MIG for a ", Name(demand.mig),
                            " slice");
      }
      return absl::StrCat(demand.gpus, " GPU", demand.gpus == 1 ? "" : "s",
                          OfModels(cluster, demand));
    case Obstacle::kCpu:
      return absl::StrCat(demand.cpu_milli / 1000.0, " cores");
    case Obstacle::kMemory:
      return absl::StrCat(demand.memory_mib, " MiB of memory");
    case Obstacle::kDisk:
      return absl::StrCat(demand.disk_mib, " MiB of disk");
    case Obstacle::kNic:
      return absl::StrCat(demand.nic_percent, " % of a NIC");
    default:
      return "";
  }
}

}  // namespace

std::string WhyImpossible(const Cluster& cluster, const Instance& instance) {
  const Demand& demand = instance.demand;
  if (instance.max_per_node == 0) return "max_per_node is 0";
  if (AnyNodeFits(cluster, demand)) return "";
  constexpr Obstacle kResources[] = {Obstacle::kGpu, Obstacle::kCpu,
                                     Obstacle::kMemory, Obstacle::kDisk,
                                     Obstacle::kNic};
  for (const Obstacle resource : kResources) {
    // One resource alone that no node has: the clearest reason.
    if (AnyNodeFits(cluster, Only(resource, demand))) continue;
    std::string text =
        absl::StrCat("no node has ", Amount(resource, cluster, demand));
    if (resource == Obstacle::kCpu) {
      absl::StrAppend(&text, Largest(cluster, [](const Node& node) {
        return node.cpu_milli / 1000.0;
      }));
    } else if (resource == Obstacle::kMemory) {
      absl::StrAppend(&text, Largest(cluster, [](const Node& node) {
        return node.memory_mib;
      }));
    } else if (resource == Obstacle::kDisk) {
      absl::StrAppend(&text, Largest(cluster, [](const Node& node) {
        return node.disk_mib;
      }));
    } else if (resource == Obstacle::kGpu && demand.mig == MigProfile::kNone) {
      absl::StrAppend(&text, demand.gpu_models != 0
                                 ? ModelsThere(cluster)
                                 : Largest(cluster, [](const Node& node) {
                                     return node.gpus;
                                   }));
    }
    return text;
  }
  // Each resource is there, but not on one node: the pair that no node has.
  for (const Obstacle a : kResources) {
    for (const Obstacle b : kResources) {
      // Each pair once; the demands of a pair ask for different resources, so
      // their fields add up.
      if (a >= b) continue;
      Demand both = Only(a, demand);
      const Demand other = Only(b, demand);
      both.cpu_milli += other.cpu_milli;
      both.memory_mib += other.memory_mib;
      both.disk_mib += other.disk_mib;
      both.nic_percent += other.nic_percent;
      if (!AnyNodeFits(cluster, both)) {
        return absl::StrCat("no node has ", Amount(a, cluster, demand), " and ",
                            Amount(b, cluster, demand), " together");
      }
    }
  }
  return "no single node has all resources of the demand";
}

}  // namespace refract::placement
