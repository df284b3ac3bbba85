// Node lists, and the fabric of lists that have none.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "placement/cluster/lists.h"
#include "placement/cluster/random.h"

namespace refract::placement {
namespace {

// Columns of one format; an empty name: the format does not have the column.
struct NodeColumns {
  absl::string_view name, cpu, memory, gpus, model;
  int64_t cpu_factor;  // to thousandths of a core
};
constexpr NodeColumns kRefract = {"name", "cpu_milli", "memory_mib",
                                  "gpus", "gpu_model", 1};
constexpr NodeColumns kV2023 = {"sn",  "cpu_milli", "memory_mib",
                                "gpu", "model",     1};
constexpr NodeColumns kV2026 = {"node_name",        "cpu_num",   "",
                                "gpu_capacity_num", "gpu_model", 1000};

std::optional<NodeColumns> NodeFormatOf(const CsvTable& table) {
  for (const NodeColumns& c : {kRefract, kV2023, kV2026}) {
    if (table.HasColumns({c.name, c.cpu, c.gpus, c.model}) &&
        (c.memory.empty() || table.Column(c.memory))) {
      return c;
    }
  }
  return std::nullopt;
}

// Leaf switches and pods by name; checks that a leaf stays in its pod.
class FabricNames {
 public:
  explicit FabricNames(Cluster& cluster) : cluster_(cluster) {}

  absl::StatusOr<int> Leaf(const CsvTable& table, int row, int column,
                           absl::string_view leaf, absl::string_view pod) {
    const auto [pod_at, new_pod] =
        pods_.try_emplace(pod, static_cast<int>(cluster_.pods.size()));
    if (new_pod) cluster_.pods.emplace_back(pod);
    const auto [leaf_at, new_leaf] =
        leaves_.try_emplace(leaf, static_cast<int>(cluster_.leaves.size()));
    if (new_leaf) {
      cluster_.leaves.push_back(
          {.name = std::string(leaf), .pod = pod_at->second});
    } else if (cluster_.leaves[leaf_at->second].pod != pod_at->second) {
      return table.Wrong(
          row, column,
          absl::StrCat("leaf switch ", leaf, " is in pod ",
                       cluster_.pods[cluster_.leaves[leaf_at->second].pod],
                       " above and in pod ", pod, " here"));
    }
    return leaf_at->second;
  }

 private:
  Cluster& cluster_;
  absl::flat_hash_map<std::string, int> pods_;
  absl::flat_hash_map<std::string, int> leaves_;
};

// The number in an optional column, or `otherwise`.
absl::StatusOr<double> OptionalNumber(const CsvTable& table, int row,
                                      absl::string_view name, double least,
                                      double most, double otherwise) {
  const std::optional<int> column = table.Column(name);
  if (!column || table.Text(row, *column).empty()) return otherwise;
  return table.Number(row, *column, least, most);
}

absl::StatusOr<int> OptionalInt(const CsvTable& table, int row,
                                absl::string_view name, int least, int most,
                                int otherwise) {
  const std::optional<int> column = table.Column(name);
  if (!column || table.Text(row, *column).empty()) return otherwise;
  REFRACT_ASSIGN_OR_RETURN(const int64_t number,
                           table.Int(row, *column, least, most));
  return static_cast<int>(number);
}

}  // namespace

absl::StatusOr<Cluster> ReadNodes(const std::string& path,
                                  const NodeDefaults& defaults) {
  REFRACT_ASSIGN_OR_RETURN(const CsvTable table, CsvTable::Read(path));
  return NodesFromTable(table, defaults);
}

absl::StatusOr<Cluster> NodesFromTable(const CsvTable& table,
                                       const NodeDefaults& defaults) {
  const std::optional<NodeColumns> format = NodeFormatOf(table);
  if (!format) {
    return absl::InvalidArgumentError(absl::StrCat(
        table.path(),
        ":1: no node list: the header needs the columns name, cpu_milli, "
        "memory_mib, gpus, gpu_model, or those of an Alibaba trace"));
  }
  // These columns exist, or NodeFormatOf() would not have chosen the format.
  const int name = *table.Column(format->name);
  const int cpu = *table.Column(format->cpu);
  const int gpus = *table.Column(format->gpus);
  const int model = *table.Column(format->model);
  const std::optional<int> memory = table.Column(format->memory);
  const std::optional<int> leaf = table.Column("leaf");
  const std::optional<int> pod = table.Column("pod");
  Cluster cluster;
  cluster.fabric_known = leaf.has_value();
  FabricNames fabric(cluster);
  absl::flat_hash_map<absl::string_view, int> rows;  // of names
  for (int row = 0; row < table.rows(); ++row) {
    Node node;
    node.name = std::string(table.Text(row, name));
    if (node.name.empty()) return table.Wrong(row, name, "is empty");
    if (!rows.try_emplace(table.Text(row, name), row).second) {
      return table.Wrong(row, name,
                         absl::StrCat("node ", node.name, " is listed twice"));
    }
    REFRACT_ASSIGN_OR_RETURN(
        const double cores,
        table.Number(row, cpu, 0,
                     static_cast<double>(kMostCpuMilli / format->cpu_factor)));
    node.cpu_milli =
        std::llround(cores * static_cast<double>(format->cpu_factor));
    // A list without memory: so much per core, or without limit.
    if (memory) {
      REFRACT_ASSIGN_OR_RETURN(node.memory_mib,
                               table.Int(row, *memory, 0, kMostMib));
    } else if (defaults.memory_gib_per_core > 0) {
      node.memory_mib =
          std::llround(static_cast<double>(node.cpu_milli) / 1000 *
                       defaults.memory_gib_per_core * 1024);
    }
    REFRACT_ASSIGN_OR_RETURN(const int64_t count,
                             table.Int(row, gpus, 0, kMaxGpus));
    node.gpus = static_cast<int>(count);
    if (node.gpus > 0) {
      const absl::string_view text = table.Text(row, model);
      if (text.empty()) {
        return table.Wrong(
            row, model,
            absl::StrCat("is empty, but the node has ", count, " GPUs"));
      }
      node.gpu_model = GpuModelIndex(cluster, text);
      if (node.gpu_model < 0) {
        return table.Wrong(
            row, model,
            absl::StrCat("more than ", kMaxGpuModels, " GPU models"));
      }
      node.mig_capable = IsMigCapable(text);
    }
    REFRACT_ASSIGN_OR_RETURN(const double disk,
                             OptionalNumber(table, row, "disk_mib", 0,
                                            static_cast<double>(kMostMib), -1));
    if (disk >= 0) node.disk_mib = std::llround(disk);
    const int default_nics =
        defaults.nics >= 0 ? defaults.nics : std::max(1, node.gpus / 2);
    REFRACT_ASSIGN_OR_RETURN(
        node.nics, OptionalInt(table, row, "nics", 0, kMaxNics, default_nics));
    REFRACT_ASSIGN_OR_RETURN(
        node.nic_gbps,
        OptionalNumber(table, row, "nic_gbps", 1e-3, 1e5, defaults.nic_gbps));
    REFRACT_ASSIGN_OR_RETURN(
        const int sockets,
        OptionalInt(table, row, "sockets", 1, kMaxSockets, defaults.sockets));
    // Lists do not say which devices share a PCIe switch.
    AttachEvenly(node, sockets);
    if (leaf) {
      REFRACT_ASSIGN_OR_RETURN(
          node.leaf, fabric.Leaf(table, row, *leaf, table.Text(row, *leaf),
                                 pod ? table.Text(row, *pod) : "pod-0"));
    }
    cluster.nodes.push_back(std::move(node));
  }
  // One leaf in one pod, until TakeFabric() or BuildFabric() replaces them.
  if (!leaf) {
    cluster.pods = {"pod-0"};
    cluster.leaves = {{.name = "leaf-0"}};
  }
  REFRACT_RETURN_IF_ERROR(base::Annotate(Check(cluster), table.path()));
  return cluster;
}

namespace {

// Sets each uplink's rate to the sum of the NICs below it ÷ `oversubscription`.
void SetUplinks(double oversubscription, Cluster& cluster) {
  if (oversubscription <= 0) return;
  std::vector<double> gbps(cluster.leaves.size(), 0);
  for (const Node& node : cluster.nodes) {
    // Bandwidth of all NICs below the leaf, Gbit/s.
    gbps[node.leaf] += node.nics * node.nic_gbps;
  }
  for (size_t leaf = 0; leaf < gbps.size(); ++leaf) {
    // A leaf without NICs has no traffic, either.
    if (gbps[leaf] > 0) {
      cluster.leaves[leaf].uplink_gbps = gbps[leaf] / oversubscription;
    }
  }
}

// The number of `name`; `add` is called where it is new.
template <typename Add>
int IndexOf(const std::string& name, std::map<std::string, int>& known,
            const Add& add) {
  const auto [at, is_new] =
      known.try_emplace(name, static_cast<int>(known.size()));
  if (is_new) add();
  return at->second;
}

}  // namespace

absl::Status TakeFabric(const Fabric& fabric, double oversubscription,
                        Cluster& cluster) {
  if (cluster.fabric_known) {
    return absl::InvalidArgumentError(
        "the node list has leaves of its own (column leaf); give one of both");
  }
  cluster.leaves.clear();
  cluster.pods.clear();
  std::map<std::string, int> leaves;
  std::map<std::string, int> pods;
  for (Node& node : cluster.nodes) {
    const FabricHost* const host = fabric.Find(node.name);
    if (host == nullptr || host->leaf.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node.name,
                       host == nullptr ? " is not in it" : " has no leaf"));
    }
    // A leaf without a pod is a pod by itself.
    const std::string& pod_name = host->pod.empty() ? host->leaf : host->pod;
    const int pod =
        IndexOf(pod_name, pods, [&] { cluster.pods.push_back(pod_name); });
    node.leaf = IndexOf(host->leaf, leaves, [&] {
      cluster.leaves.push_back({.name = host->leaf, .pod = pod});
    });
  }
  cluster.fabric_known = true;
  SetUplinks(oversubscription, cluster);
  return absl::OkStatus();
}

void BuildFabric(const FabricShape& shape, Cluster& cluster) {
  std::vector<int> order(cluster.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  // Lists often group nodes by kind: in their order a leaf would get one kind.
  Random(shape.seed).Shuffle(order);
  const int leaves =
      (static_cast<int>(order.size()) + shape.nodes_per_leaf - 1) /
      shape.nodes_per_leaf;
  cluster.leaves.clear();
  cluster.pods.clear();
  for (int pod = 0; pod < shape.pods; ++pod) {
    cluster.pods.push_back(absl::StrCat("pod-", pod));
  }
  for (int leaf = 0; leaf < leaves; ++leaf) {
    cluster.leaves.push_back(
        {.name = absl::StrCat("leaf-", leaf),
         .pod = static_cast<int>(int64_t{leaf} * shape.pods / leaves)});
  }
  for (size_t i = 0; i < order.size(); ++i) {
    cluster.nodes[order[i]].leaf = static_cast<int>(i) / shape.nodes_per_leaf;
  }
  SetUplinks(shape.oversubscription, cluster);
}

}  // namespace refract::placement
