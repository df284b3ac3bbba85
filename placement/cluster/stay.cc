#include "placement/cluster/stay.h"

#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace refract::placement {
namespace {

std::string ModelsToText(const Cluster& cluster, uint64_t models) {
  std::string text;
  for (size_t i = 0; i < cluster.gpu_models.size(); ++i) {
    if ((models >> i & 1) == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : "|", cluster.gpu_models[i]);
  }
  return text;
}

std::string TimeToText(double time) {
  // An empty field reads back as the default: before the start, or never.
  // Seconds since 1970 have ten digits, of which absl::StrCat() keeps six.
  return time < 0 || time == kNeverDeleted ? ""
                                           : absl::StrFormat("%.15g", time);
}

// "0|3" → bits, each below `count`.
absl::StatusOr<uint32_t> BitsFromText(const CsvTable& table, int row,
                                      int column, int count) {
  uint32_t bits = 0;
  for (const absl::string_view part :
       absl::StrSplit(table.Text(row, column), '|', absl::SkipEmpty())) {
    int bit = 0;
    if (!absl::SimpleAtoi(part, &bit) || bit < 0 || bit >= count) {
      return table.Wrong(
          row, column,
          absl::StrCat(part, " is no number from 0 to ", count - 1));
    }
    bits |= 1u << bit;
  }
  return bits;
}

// Whether `devices` match the demand and are free.
bool AreFree(const Node& node, const NodeFree& free, const Demand& demand,
             const Devices& devices) {
  if (__builtin_popcount(devices.gpus) != demand.gpus ||
      __builtin_popcount(devices.mig_slices) != MemorySlices(demand.mig) ||
      (devices.nic >= 0) != (demand.nic_percent > 0)) {
    return false;
  }
  for (unsigned left = devices.gpus; left != 0; left &= left - 1) {
    const int gpu = __builtin_ctz(left);
    if (!GpuHasRoom(node, free, gpu, demand) ||
        (free.mig_used[gpu] & devices.mig_slices) != 0) {
      return false;
    }
  }
  int64_t cores = 0;
  for (int socket = 0; socket < kMaxSockets; ++socket) {
    cores += devices.socket_cpu_milli[socket];
    if (devices.socket_cpu_milli[socket] > free.socket_cpu_milli[socket]) {
      return false;
    }
  }
  return cores == demand.cpu_milli &&
         (devices.nic < 0 ||
          free.nic_percent[devices.nic] >= demand.nic_percent);
}

}  // namespace

std::string BitsToText(uint32_t bits) {
  std::string text;
  for (; bits != 0; bits &= bits - 1) {
    absl::StrAppend(&text, text.empty() ? "" : "|", __builtin_ctz(bits));
  }
  return text;
}

std::string PlacementsToCsv(const Cluster& cluster, const InstanceList& list,
                            const std::vector<Stay>& stays) {
  std::string text =
      "name,app,role,cpu_milli,memory_mib,disk_mib,gpus,gpu_milli,mig,"
      "gpu_models,nic_percent,max_per_node,created,deleted,node,gpu_ids,"
      "mig_slices,nic_id,socket_cpu_milli,from,to\n";
  for (const Stay& stay : stays) {
    const Instance& instance = list.instances[stay.instance];
    const Demand& demand = instance.demand;
    const Node& node = cluster.nodes[stay.node];
    // Lists within a field are joined by '|', since ',' ends the field.
    std::string sockets;
    for (int socket = 0; socket < node.sockets; ++socket) {
      absl::StrAppend(&sockets, socket == 0 ? "" : "|",
                      stay.devices.socket_cpu_milli[socket]);
    }
    absl::StrAppend(&text, instance.name, ",",
                    instance.app < 0 ? "" : list.apps[instance.app], ",",
                    Name(instance.role), ",", demand.cpu_milli, ",",
                    demand.memory_mib, ",", demand.disk_mib, ",", demand.gpus,
                    ",", demand.gpu_milli, ",");
    absl::StrAppend(
        &text, demand.mig == MigProfile::kNone ? "" : Name(demand.mig), ",",
        ModelsToText(cluster, demand.gpu_models), ",", demand.nic_percent, ",",
        instance.max_per_node, ",", TimeToText(instance.created), ",",
        TimeToText(instance.deleted), ",");
    absl::StrAppend(&text, node.name, ",", BitsToText(stay.devices.gpus), ",",
                    BitsToText(stay.devices.mig_slices), ",",
                    stay.devices.nic < 0 ? "" : absl::StrCat(stay.devices.nic),
                    ",", sockets, ",", TimeToText(stay.from), ",",
                    TimeToText(stay.to), "\n");
  }
  return text;
}

absl::StatusOr<std::vector<Stay>> StaysFromTable(const CsvTable& table,
                                                 const Cluster& cluster,
                                                 const InstanceList& list) {
  if (!table.HasColumns(
          {"node", "gpu_ids", "mig_slices", "nic_id", "socket_cpu_milli"})) {
    return absl::InvalidArgumentError(absl::StrCat(
        table.path(),
        ":1: no list of placements: the header needs the columns node, "
        "gpu_ids, mig_slices, nic_id, socket_cpu_milli"));
  }
  // Instances are put on their nodes one after the other, as if they arrived
  // now: a resource that the file gives twice shows as not free.
  absl::flat_hash_map<absl::string_view, int> nodes;
  std::vector<NodeFree> free;
  for (const Node& node : cluster.nodes) {
    nodes.emplace(node.name, static_cast<int>(free.size()));
    free.push_back(AllFree(node));
  }
  const int node_column = *table.Column("node");
  const int sockets_column = *table.Column("socket_cpu_milli");
  std::vector<Stay> stays;
  for (int row = 0; row < table.rows(); ++row) {
    // The table is the instance list itself: row r is instance r.
    const Demand& demand = list.instances[row].demand;
    const auto found = nodes.find(table.Text(row, node_column));
    if (found == nodes.end()) {
      return table.Wrong(
          row, node_column,
          absl::StrCat("there is no node ", table.Text(row, node_column)));
    }
    Stay stay{.instance = row, .node = found->second};
    const Node& node = cluster.nodes[stay.node];
    REFRACT_ASSIGN_OR_RETURN(
        const uint32_t gpus,
        BitsFromText(table, row, *table.Column("gpu_ids"), node.gpus));
    stay.devices.gpus = static_cast<uint16_t>(gpus);
    REFRACT_ASSIGN_OR_RETURN(
        const uint32_t slices,
        BitsFromText(table, row, *table.Column("mig_slices"), kMemorySlices));
    stay.devices.mig_slices = static_cast<uint8_t>(slices);
    const int nic_column = *table.Column("nic_id");
    if (!table.Text(row, nic_column).empty()) {
      REFRACT_ASSIGN_OR_RETURN(const int64_t nic,
                               table.Int(row, nic_column, 0, node.nics - 1));
      stay.devices.nic = static_cast<int8_t>(nic);
    }
    const std::vector<absl::string_view> sockets =
        absl::StrSplit(table.Text(row, sockets_column), '|');
    if (static_cast<int>(sockets.size()) != node.sockets) {
      return table.Wrong(
          row, sockets_column,
          absl::StrCat("needs ", node.sockets, " numbers joined by |"));
    }
    for (int socket = 0; socket < node.sockets; ++socket) {
      if (!absl::SimpleAtoi(sockets[socket],
                            &stay.devices.socket_cpu_milli[socket]) ||
          stay.devices.socket_cpu_milli[socket] < 0) {
        return table.Wrong(
            row, sockets_column,
            absl::StrCat(sockets[socket], " is not a number of milli-CPUs"));
      }
    }
    // Amounts first, so that the message can name the resource; then devices.
    const Obstacle obstacle = ObstacleOf(node, free[stay.node], demand);
    if (obstacle != Obstacle::kNothing) {
      return table.Wrong(
          row, node_column,
          absl::StrCat(
              "node ", node.name,
              " does not have enough free for the instance: ", Name(obstacle)));
    }
    if (!AreFree(node, free[stay.node], demand, stay.devices)) {
      return table.Wrong(row, node_column,
                         absl::StrCat("the devices of node ", node.name,
                                      " are taken, or differ from the demand"));
    }
    Take(demand, stay.devices, free[stay.node]);
    stays.push_back(stay);
  }
  return stays;
}

}  // namespace refract::placement
