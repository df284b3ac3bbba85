#include "placement/topology/topology_file.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/topology/json_fields.h"
#include "placement/topology/json_text.h"

namespace refract::placement {
namespace {

using Fields = JsonFields;
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

std::string AddressOf(const NodeTopology& topology, int pci) {
  return pci < 0 ? "" : topology.pci[pci].address;
}

// Two decimals: the figures are not more precise.
double Rounded(double gbps) { return std::round(gbps * 100) / 100; }

OrderedJson PortJson(const NicPort& port) {
  OrderedJson gids = OrderedJson::array();
  for (const Gid& gid : port.gids) {
    gids.push_back({{"index", gid.index},
                    {"address", gid.address},
                    {"type", gid.type},
                    {"netdev", gid.netdev}});
  }
  return {{"port", port.number},
          {"state", port.state},
          {"gbps", Rounded(port.gbps)},
          {"link_layer", port.link_layer},
          {"gids", gids}};
}

OrderedJson PathJson(const NodeTopology& topology, const Endpoint& from,
                     const Endpoint& to) {
  const Path path = PathBetween(topology, from, to);
  return {{"from", from.name},
          {"to", to.name},
          {"class", std::string(Name(path.path_class))},
          {"gbps", Rounded(path.gbps)}};
}

// Applies the entries of an override file, part by part; the first error ends
// the rest. The changed topology is checked at the end as a whole, because an
// entry may be right only together with a later entry.
class Override {
 public:
  Override(NodeTopology* topology) : topology_(*topology) {}

  absl::Status Apply(absl::string_view text) {
    REFRACT_ASSIGN_OR_RETURN(const Json json, ParseJsonText(text));
    Fields root(json, "", &status_);
    if (!status_.ok()) return status_;
    root.Each("numa_nodes", [this](Fields& fields) { NumaNodeEntry(fields); });
    // Functions first, so that bridges may be named before they appear.
    root.Each("pci", [this](Fields& fields) { PciEntry(fields); });
    for (auto& [function, parent] : parents_) SetParent(function, parent);
    root.Each("nics", [this](Fields& fields) { NicEntry(fields); });
    root.Each("gpus", [this](Fields& fields) { GpuEntry(fields); });
    // The file from `refract topology --json` lists all paths; a list in the
    // override replaces earlier ones.
    topology_.given_paths.clear();
    root.Each("paths", [this](Fields& fields) { PathEntry(fields); });
    root.RefuseOthers();
    std::sort(topology_.numa_nodes.begin(), topology_.numa_nodes.end(),
              [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
    REFRACT_RETURN_IF_ERROR(status_);
    REFRACT_RETURN_IF_ERROR(Check(topology_));
    return CheckPaths();
  }

 private:
  // Refuses a second entry with the same key.
  bool IsNew(Fields& fields, const char* field, const std::string& key) {
    if (keys_.insert(key).second) return true;
    fields.Fail(field, absl::StrCat(key, " is there twice"));
    return false;
  }

  void NumaNodeEntry(Fields& fields) {
    const std::optional<int64_t> id = fields.Whole("id", 0, 1023);
    if (!id.has_value()) {
      fields.Fail("id", "is missing");
      return;
    }
    if (!IsNew(fields, "id", absl::StrCat("node", *id))) return;
    auto node = std::find_if(
        topology_.numa_nodes.begin(), topology_.numa_nodes.end(),
        [&](const NumaNode& candidate) { return candidate.id == *id; });
    if (node == topology_.numa_nodes.end()) {
      // At the end; Apply() sorts by id when all entries are read.
      node = topology_.numa_nodes.insert(node, NumaNode());
      node->id = static_cast<int>(*id);
    }
    if (const auto cpus = fields.Text("cpus"); cpus.has_value()) {
      absl::StatusOr<std::vector<int>> parsed = ParseCpuList(*cpus);
      if (!parsed.ok()) {
        fields.Fail("cpus", parsed.status().message());
        return;
      }
      node->cpus = *std::move(parsed);
    }
    Assign(fields.Whole("memory_bytes", 0, int64_t{1} << 60),
           &node->memory_bytes);
    // For readers only; nothing is computed from distances.
    fields.Skip("distance");
  }

  void PciEntry(Fields& fields) {
    const std::optional<std::string> address = fields.Text("address");
    if (!address.has_value()) {
      fields.Fail("address", "is missing");
      return;
    }
    if (!IsNew(fields, "address", *address)) return;
    int index = topology_.FindPci(*address);
    if (index < 0) {
      index = static_cast<int>(topology_.pci.size());
      topology_.pci.emplace_back().address = *address;
    }
    PciFunction& function = topology_.pci[index];
    Assign(fields.Text("root"), &function.root);
    if (auto parent = fields.Text("parent"); parent.has_value()) {
      // Resolved after all functions of the file are known.
      parents_.emplace_back(index, *std::move(parent));
    }
    const auto lanes = fields.Whole("lanes", 0, 32);
    const auto speed = fields.Rate("gigatransfers");
    Assign(lanes, &function.lanes);
    Assign(speed, &function.gigatransfers);
    Assign(fields.Whole("max_lanes", 0, 32), &function.max_lanes);
    // The rate follows from lanes and speed, unless the file gives "gbps"
    // itself.
    if (lanes.has_value() || speed.has_value()) {
      function.gbps = PcieGbps(function.gigatransfers, function.lanes);
    }
    Assign(fields.Rate("gbps"), &function.gbps);
    Assign(fields.Text("physical_function"), &function.physical_function);
    const auto numa_node = fields.Whole("numa_node", -1, 1023);
    if (!numa_node.has_value()) return;
    function.numa_node = static_cast<int>(*numa_node);
    // Devices are where their function is. Entries of NICs and GPUs are read
    // later and may say otherwise.
    for (Nic& nic : topology_.nics) {
      if (nic.pci == index) nic.numa_node = function.numa_node;
    }
    for (Gpu& gpu : topology_.gpus) {
      if (gpu.pci == index) gpu.numa_node = function.numa_node;
    }
  }

  void SetParent(int function, const std::string& parent) {
    if (!status_.ok()) return;
    PciFunction& child = topology_.pci[function];
    child.parent = parent.empty() ? -1 : topology_.FindPci(parent);
    if (!parent.empty() && child.parent < 0) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          "pci[", child.address, "].parent: there is no bridge ", parent));
    }
  }

  // The device that the entry names; nullptr after an error. Devices are not
  // added: a name that the machine lacks is most likely misspelt.
  template <typename Device>
  Device* FindDevice(Fields& fields, std::vector<Device>& devices,
                     const char* what) {
    const std::optional<std::string> name = fields.Text("name");
    if (!name.has_value()) {
      fields.Fail("name", "is missing");
      return nullptr;
    }
    if (!IsNew(fields, "name", *name)) return nullptr;
    for (Device& device : devices) {
      if (device.name == *name) return &device;
    }
    fields.Fail("name", absl::StrCat("the machine has no ", what, " ", *name));
    return nullptr;
  }

  // "pci" and "numa_node" of a NIC or GPU. A new function brings its NUMA node,
  // unless the entry has its own.
  template <typename Device>
  void Place(Fields& fields, Device* device) {
    if (const auto pci = fields.Text("pci"); pci.has_value()) {
      device->pci = pci->empty() ? -1 : topology_.FindPci(*pci);
      if (!pci->empty() && device->pci < 0) {
        fields.Fail("pci", absl::StrCat("there is no PCI function ", *pci));
        return;
      }
      if (device->pci >= 0) {
        device->numa_node = topology_.pci[device->pci].numa_node;
      }
    }
    Assign(fields.Whole("numa_node", -1, 1023), &device->numa_node);
  }

  void NicEntry(Fields& fields) {
    Nic* const nic = FindDevice(fields, topology_.nics, "NIC");
    if (nic == nullptr) return;
    Assign(fields.Bool("rdma"), &nic->rdma);
    Place(fields, nic);
    fields.Each("ports", [this, nic](Fields& port) { PortEntry(port, nic); });
    Assign(fields.Texts("netdevs"), &nic->netdevs);
    Assign(fields.Texts("bond_members"), &nic->bond_members);
  }

  void PortEntry(Fields& fields, Nic* nic) {
    const auto number = fields.Whole("port", 1, 255);
    if (!number.has_value()) {
      fields.Fail("port", "is missing");
      return;
    }
    if (!IsNew(fields, "port", absl::StrCat(nic->name, " port ", *number))) {
      return;
    }
    const auto port = std::find_if(
        nic->ports.begin(), nic->ports.end(),
        [&](const NicPort& candidate) { return candidate.number == *number; });
    if (port == nic->ports.end()) {
      fields.Fail("port", absl::StrCat(nic->name, " has no port ", *number));
      return;
    }
    Assign(fields.Text("state"), &port->state);
    Assign(fields.Rate("gbps"), &port->gbps);
    Assign(fields.Text("link_layer"), &port->link_layer);
    // Addresses change: the transport asks the device.
    fields.Skip("gids");
  }

  void GpuEntry(Fields& fields) {
    Gpu* const gpu = FindDevice(fields, topology_.gpus, "GPU");
    if (gpu == nullptr) return;
    Assign(fields.Text("model"), &gpu->model);
    Place(fields, gpu);
  }

  void PathEntry(Fields& fields) {
    GivenPath path;
    const auto from = fields.Text("from");
    const auto to = fields.Text("to");
    const auto name = fields.Text("class");
    if (!from.has_value() || !to.has_value() || !name.has_value()) {
      fields.Fail(!from.has_value() ? "from"
                  : !to.has_value() ? "to"
                                    : "class",
                  "is missing");
      return;
    }
    path.from = *from;
    path.to = *to;
    if (!IsNew(fields, "to",
               absl::StrCat("the path ", std::min(path.from, path.to), " – ",
                            std::max(path.from, path.to)))) {
      return;
    }
    const std::optional<PathClass> path_class = PathClassNamed(*name);
    if (!path_class.has_value()) {
      fields.Fail("class", absl::StrCat("\"", *name,
                                        "\" is none of PIX, PXB, PHB, NODE, "
                                        "SYS, UNKNOWN"));
      return;
    }
    path.path_class = *path_class;
    Assign(fields.Rate("gbps"), &path.gbps);
    topology_.given_paths.push_back(std::move(path));
  }

  // NUMA node of a NIC, a GPU or "node1"; -1: unknown.
  int NumaNodeOf(const std::string& name) const {
    if (const Nic* nic = topology_.FindNic(name)) return nic->numa_node;
    if (const Gpu* gpu = topology_.FindGpu(name)) return gpu->numa_node;
    for (const NumaNode& node : topology_.numa_nodes) {
      if (Endpoint(node).name == name) return node.id;
    }
    return -1;
  }

  absl::Status CheckPaths() const {
    for (size_t i = 0; i < topology_.given_paths.size(); ++i) {
      const GivenPath& path = topology_.given_paths[i];
      const int from = NumaNodeOf(path.from);
      const int to = NumaNodeOf(path.to);
      // SYS is the class between NUMA nodes, all other known classes lie within
      // a node.
      const bool crosses = path.path_class == PathClass::kSys;
      if (path.path_class == PathClass::kUnknown || from < 0 || to < 0 ||
          crosses == (from != to)) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "paths[", i, "].class: ", Name(path.path_class), " contradicts ",
          path.from, " on NUMA node ", from, " and ", path.to, " on ", to));
    }
    return absl::OkStatus();
  }

  NodeTopology& topology_;
  absl::Status status_;
  std::set<std::string> keys_;
  std::vector<std::pair<int, std::string>> parents_;
};

}  // namespace

std::string TopologyJson(const NodeTopology& topology) {
  OrderedJson json;
  json["numa_nodes"] = OrderedJson::array();
  for (const NumaNode& node : topology.numa_nodes) {
    json["numa_nodes"].push_back({{"id", node.id},
                                  {"cpus", CpuListText(node.cpus)},
                                  {"memory_bytes", node.memory_bytes},
                                  {"distance", node.distance}});
  }
  json["pci"] = OrderedJson::array();
  for (const PciFunction& function : topology.pci) {
    // Functions refer to each other by address, which an editor can read.
    json["pci"].push_back({{"address", function.address},
                           {"root", function.root},
                           {"parent", AddressOf(topology, function.parent)},
                           {"numa_node", function.numa_node},
                           {"gigatransfers", function.gigatransfers},
                           {"lanes", function.lanes},
                           {"max_lanes", function.max_lanes},
                           {"gbps", Rounded(function.gbps)},
                           {"physical_function", function.physical_function}});
  }
  json["nics"] = OrderedJson::array();
  json["gpus"] = OrderedJson::array();
  json["paths"] = OrderedJson::array();
  for (const Nic& nic : topology.nics) {
    OrderedJson ports = OrderedJson::array();
    for (const NicPort& port : nic.ports) ports.push_back(PortJson(port));
    json["nics"].push_back({{"name", nic.name},
                            {"rdma", nic.rdma},
                            {"pci", AddressOf(topology, nic.pci)},
                            {"numa_node", nic.numa_node},
                            {"netdevs", nic.netdevs},
                            {"bond_members", nic.bond_members},
                            {"ports", ports}});
    for (const NumaNode& node : topology.numa_nodes) {
      json["paths"].push_back(PathJson(topology, nic, node));
    }
    for (const Gpu& gpu : topology.gpus) {
      json["paths"].push_back(PathJson(topology, nic, gpu));
    }
  }
  for (const Gpu& gpu : topology.gpus) {
    json["gpus"].push_back({{"name", gpu.name},
                            {"model", gpu.model},
                            {"pci", AddressOf(topology, gpu.pci)},
                            {"numa_node", gpu.numa_node}});
  }
  return base::FormatJson(json, 2) + "\n";
}

absl::Status ApplyOverride(absl::string_view text, NodeTopology* topology) {
  return Override(topology).Apply(text);
}

}  // namespace refract::placement
