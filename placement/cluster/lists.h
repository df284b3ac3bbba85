#ifndef REFRACT_PLACEMENT_CLUSTER_LISTS_H_
#define REFRACT_PLACEMENT_CLUSTER_LISTS_H_

// Readers of node and instance lists. The header line of a file tells its
// format:
//
// nodes      refract             name,cpu_milli,memory_mib,gpus,gpu_model and
//                                optionally disk_mib, sockets, nics, nic_gbps,
//                                leaf, pod
//            Alibaba gpu-v2023   sn,cpu_milli,memory_mib,gpu,model
//            Alibaba v2026-spot  gpu_model,gpu_capacity_num,cpu_num,node_name
// instances  refract             name,cpu_milli,memory_mib,gpus and optionally
//                                gpu_milli, mig, gpu_models, nic_percent,
//                                disk_mib, app, role, max_per_node, created,
//                                deleted
//            Alibaba gpu-v2023   name,…,num_gpu,gpu_milli,gpu_spec,…
//            Alibaba gpu-v2025   instance_sn,role,app_name,…
//
// docs/reference/planning_files.md describes the columns. All errors are
// InvalidArgument and name file, line and column.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "placement/cluster/cluster.h"
#include "placement/cluster/csv.h"
#include "placement/cluster/instance.h"
#include "placement/fabric/fabric.h"

namespace refract::placement {

// Figures that node lists omit.
struct NodeDefaults {
  double memory_gib_per_core = 0;  // 0 = memory never binds
  int sockets = 2;
  int nics = -1;  // -1 = one for every two GPUs, at least one
  double nic_gbps = 200;
};

// A list without leaf switches gives one leaf in one pod; BuildFabric() changes
// that.
absl::StatusOr<Cluster> ReadNodes(const std::string& path,
                                  const NodeDefaults& defaults);
absl::StatusOr<Cluster> NodesFromTable(const CsvTable& table,
                                       const NodeDefaults& defaults);

// Models that instances name and no node has are added to `cluster`'s models.
absl::StatusOr<InstanceList> ReadInstances(const std::string& path,
                                           Cluster& cluster);
absl::StatusOr<InstanceList> InstancesFromTable(const CsvTable& table,
                                                Cluster& cluster);

// A made-up fabric for nodes with unknown place: nodes in an order drawn from
// `seed`, `nodes_per_leaf` to a leaf switch, leaves divided evenly among the
// pods.
struct FabricShape {
  int nodes_per_leaf = 32;
  int pods = 1;
  // Sum of a leaf's NIC rates ÷ its uplink; 0 = uplinks never bind.
  double oversubscription = 0;
  uint64_t seed = 0;
};
void BuildFabric(const FabricShape& shape, Cluster& cluster);

// The leaves and pods of a label file (fabric/fabric_file.h), found by the
// names of nodes, in place of a made-up fabric; a leaf without a pod is a pod
// by itself. InvalidArgument: the file lacks a node or its leaf; or the node
// list has leaves itself.
absl::Status TakeFabric(const Fabric& fabric, double oversubscription,
                        Cluster& cluster);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_CLUSTER_LISTS_H_
