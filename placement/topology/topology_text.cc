#include "placement/topology/topology_text.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace refract::placement {
namespace {

std::string RateText(double gbps) {
  return gbps > 0 ? absl::StrFormat("%.4g Gb/s", gbps) : "unknown speed";
}

// The link of a function: transfers, lanes, and the rate that follows; a link
// with fewer lanes than its function supports is marked.
std::string LinkText(const PciFunction& function) {
  if (function.gbps <= 0) return "";
  std::string text;
  if (function.gigatransfers > 0 && function.lanes > 0) {
    absl::StrAppend(&text, ", ", function.gigatransfers, " GT/s x",
                    function.lanes);
    if (function.max_lanes > function.lanes) {
      absl::StrAppend(&text, " of x", function.max_lanes, " (degraded)");
    }
  }
  return absl::StrCat(text, ", ", RateText(function.gbps));
}

std::string PortText(const NicPort& port) {
  return absl::StrCat("port ", port.number, " ",
                      port.state.empty() ? "UNKNOWN" : port.state, " ",
                      port.link_layer.empty() ? "" : port.link_layer + " ",
                      RateText(port.gbps));
}

std::string GidText(const Gid& gid) {
  std::vector<std::string> facts;
  if (!gid.type.empty()) facts.push_back(gid.type);
  if (!gid.netdev.empty()) facts.push_back("on " + gid.netdev);
  return absl::StrCat("GID ", gid.index, " ", gid.address,
                      facts.empty() ? "" : ", ", absl::StrJoin(facts, " "));
}

// The PCI tree below each NUMA node, reduced to functions with a NIC or GPU and
// the bridges above them.
class TreeWriter {
 public:
  explicit TreeWriter(const NodeTopology& topology) : topology_(topology) {
    for (const Nic& nic : topology.nics) MarkShown(nic.pci);
    for (const Gpu& gpu : topology.gpus) MarkShown(gpu.pci);
  }

  std::string Write() {
    std::set<int> ids;
    for (const NumaNode& node : topology_.numa_nodes) {
      ids.insert(node.id);
      Line(0, absl::StrCat(
                  "NUMA node ", node.id, ": CPUs ",
                  node.cpus.empty() ? "none" : CpuListText(node.cpus),
                  node.memory_bytes > 0
                      ? absl::StrFormat(
                            ", %.4g GiB",
                            static_cast<double>(node.memory_bytes) / (1 << 30))
                      : std::string()));
      WriteRoots([&](int numa_node) { return numa_node == node.id; });
    }
    // Functions on no NUMA node that the machine reports.
    const auto elsewhere = [&](int numa_node) {
      return !ids.contains(numa_node);
    };
    if (std::any_of(shown_.begin(), shown_.end(), [&](int index) {
          return topology_.pci[index].parent < 0 &&
                 elsewhere(topology_.pci[index].numa_node);
        })) {
      Line(0, "NUMA node unknown:");
      WriteRoots(elsewhere);
    }
    if (AnyWithoutPci()) {
      Line(0, "without PCI data:");
      WriteDevices(-1, 1);
    }
    return text_;
  }

 private:
  // A function and all bridges above it.
  void MarkShown(int pci) {
    for (; pci >= 0; pci = topology_.pci[pci].parent) shown_.insert(pci);
  }
  void Line(int depth, absl::string_view text) {
    absl::StrAppend(&text_, std::string(2 * depth, ' '), text, "\n");
  }
  template <typename Matches>
  void WriteRoots(const Matches& matches) {
    // The host bridge is written once, above the first of its functions.
    std::string root;
    for (const int index : shown_) {
      const PciFunction& function = topology_.pci[index];
      if (function.parent >= 0 || !matches(function.numa_node)) continue;
      if (function.root != root) Line(1, function.root);
      root = function.root;
      WriteFunction(index, 2);
    }
  }
  void WriteFunction(int index, int depth) {
    const PciFunction& function = topology_.pci[index];
    if (!WriteDevices(index, depth)) {
      Line(depth,
           absl::StrCat(function.address, " bridge", LinkText(function)));
    }
    for (const int child : shown_) {
      if (topology_.pci[child].parent == index) WriteFunction(child, depth + 1);
    }
  }
  // Writes a function's devices; false: it has none.
  bool WriteDevices(int pci, int depth) {
    bool any = false;
    const std::string place =
        pci < 0 ? ""
                : absl::StrCat(" ", topology_.pci[pci].address,
                               LinkText(topology_.pci[pci]));
    for (const Nic& nic : topology_.nics) {
      if (nic.pci != pci) continue;
      any = true;
      std::string text = absl::StrCat(nic.name, place);
      if (pci >= 0 && !topology_.pci[pci].physical_function.empty()) {
        absl::StrAppend(&text, ", virtual function of ",
                        topology_.pci[pci].physical_function);
      }
      if (!nic.netdevs.empty() && nic.netdevs.front() != nic.name) {
        absl::StrAppend(&text, ", ", absl::StrJoin(nic.netdevs, " "));
      }
      if (!nic.bond_members.empty()) {
        absl::StrAppend(&text, ", bond of ",
                        absl::StrJoin(nic.bond_members, " "));
      }
      Line(depth, text);
      for (const NicPort& port : nic.ports) {
        Line(depth + 1, PortText(port));
        for (const Gid& gid : port.gids) Line(depth + 2, GidText(gid));
      }
    }
    for (const Gpu& gpu : topology_.gpus) {
      if (gpu.pci != pci) continue;
      any = true;
      Line(depth, absl::StrCat(gpu.name, place, gpu.model.empty() ? "" : ", ",
                               gpu.model));
    }
    return any;
  }
  bool AnyWithoutPci() const {
    const auto lacks = [](const auto& device) { return device.pci < 0; };
    return std::any_of(topology_.nics.begin(), topology_.nics.end(), lacks) ||
           std::any_of(topology_.gpus.begin(), topology_.gpus.end(), lacks);
  }

  const NodeTopology& topology_;
  std::set<int> shown_;  // functions of devices, and the bridges above
  std::string text_;
};

}  // namespace

std::string TreeText(const NodeTopology& topology) {
  return TreeWriter(topology).Write();
}

std::string MatrixText(const NodeTopology& topology) {
  if (topology.nics.empty()) return "";
  // Rows are NICs; columns are the memory of NUMA nodes, then GPUs.
  std::vector<Endpoint> columns(topology.numa_nodes.begin(),
                                topology.numa_nodes.end());
  columns.insert(columns.end(), topology.gpus.begin(), topology.gpus.end());
  std::vector<std::vector<std::string>> rows = {{"class Gb/s"}};
  for (const Endpoint& column : columns) rows[0].push_back(column.name);
  for (const Nic& nic : topology.nics) {
    std::vector<std::string>& row = rows.emplace_back();
    // hwloc knows no ports of network devices.
    const bool down = !nic.active() && !nic.ports.empty();
    row.push_back(nic.name + (down ? " (down)" : ""));
    for (const Endpoint& column : columns) {
      const Path path = PathBetween(topology, nic, column);
      row.push_back(absl::StrCat(
          Name(path.path_class), " ",
          path.gbps > 0 ? absl::StrFormat("%.4g", path.gbps) : "-"));
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[i].size());
      absl::StrAppendFormat(&line, "%-*s", static_cast<int>(width + 2), row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace refract::placement
