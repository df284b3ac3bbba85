#include "placement/topology/hwloc_source.h"

#include <hwloc.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "placement/topology/sysfs_tree.h"

namespace refract::placement {
namespace {

using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const {
    hwloc_topology_destroy(topology);
  }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, DestroyTopology>;

absl::StatusOr<HwlocTopology> Load() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return absl::UnavailableError("hwloc_topology_init fails");
  }
  HwlocTopology topology(raw);
  // Without this filter hwloc leaves out PCI functions; other filters merge
  // bridges.
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(raw) != 0) {
    return absl::UnavailableError("hwloc_topology_load fails");
  }
  return topology;
}

// Makes hwloc read a copied tree for the life of the object.
class OtherRoot {
 public:
  explicit OtherRoot(const std::string& root) {
    if (root.empty()) return;
    set_ = true;
    setenv("HWLOC_FSROOT", root.c_str(), 1);
    // The tree may be of another machine: hwloc must not ask this machine's
    // processor and devices.
    setenv("HWLOC_THISSYSTEM", "0", 1);
    setenv("HWLOC_COMPONENTS", "linux,stop", 1);
  }
  ~OtherRoot() {
    if (!set_) return;
    for (const char* name :
         {"HWLOC_FSROOT", "HWLOC_THISSYSTEM", "HWLOC_COMPONENTS"}) {
      unsetenv(name);
    }
  }

 private:
  bool set_ = false;
};

class Reader {
 public:
  explicit Reader(hwloc_topology_t source) : source_(source) {}

  absl::StatusOr<NodeTopology> Read() {
    ReadNumaNodes();
    ReadOsDevices();
    ReadGpus();
    std::sort(topology_.nics.begin(), topology_.nics.end(),
              [](const Nic& a, const Nic& b) {
                if (a.rdma != b.rdma) return a.rdma;
                return NaturallyLess(a.name, b.name);
              });
    REFRACT_RETURN_IF_ERROR(Check(topology_));
    return std::move(topology_);
  }

 private:
  void ReadNumaNodes() {
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(source_, HWLOC_OBJ_NUMANODE,
                                                object)) != nullptr) {
      NumaNode node;
      node.id = static_cast<int>(object->os_index);
      node.memory_bytes =
          static_cast<int64_t>(object->attr->numanode.local_memory);
      unsigned cpu = 0;
      hwloc_bitmap_foreach_begin(cpu, object->cpuset)
          node.cpus.push_back(static_cast<int>(cpu));
      hwloc_bitmap_foreach_end();
      topology_.numa_nodes.push_back(std::move(node));
    }
  }

  // The NUMA node that a device is near; -1: several nodes, or unknown.
  int NumaNodeOf(hwloc_obj_t object) const {
    const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(source_, object);
    if (near == nullptr || near->nodeset == nullptr ||
        hwloc_bitmap_weight(near->nodeset) != 1) {
      return -1;
    }
    return hwloc_bitmap_first(near->nodeset);
  }

  // Adds a PCI function and the bridges above; -1: `object` is no function.
  int AddPci(hwloc_obj_t object) {
    const bool is_bridge = object->type == HWLOC_OBJ_BRIDGE;
    if (is_bridge &&
        object->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_PCI) {
      return -1;  // the host bridge
    }
    if (!is_bridge && object->type != HWLOC_OBJ_PCI_DEVICE) return -1;
    const PciAttributes& pci =
        is_bridge ? object->attr->bridge.upstream.pci : object->attr->pcidev;
    PciFunction function;
    function.address = absl::StrFormat("%04x:%02x:%02x.%x", pci.domain, pci.bus,
                                       pci.dev, pci.func);
    const auto known = added_.find(function.address);
    if (known != added_.end()) return known->second;
    // Bridges first, from the host bridge down: a parent has its index before
    // its children.
    function.parent = AddPci(object->parent);
    // The host bridge above names the root as sysfs does: domain and first bus.
    hwloc_obj_t host = object->parent;
    while (host != nullptr && host->type == HWLOC_OBJ_BRIDGE &&
           host->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
      host = host->parent;
    }
    if (host != nullptr && host->type == HWLOC_OBJ_BRIDGE) {
      const auto& bus = host->attr->bridge.downstream.pci;
      function.root =
          absl::StrFormat("pci%04x:%02x", bus.domain, bus.secondary_bus);
    }
    function.numa_node = NumaNodeOf(object);
    function.gbps = pci.linkspeed * 8;  // hwloc has GB/s
    const int index = static_cast<int>(topology_.pci.size());
    added_[function.address] = index;
    topology_.pci.push_back(std::move(function));
    return index;
  }

  static std::string Info(hwloc_obj_t object, const std::string& name) {
    const char* const value = hwloc_obj_get_info_by_name(object, name.c_str());
    return value == nullptr ? "" : value;
  }

  void ReadOsDevices() {
    std::vector<int> used;
    // RDMA devices first: their network devices are no NICs of their own.
    for (const hwloc_obj_osdev_type_t type :
         {HWLOC_OBJ_OSDEV_OPENFABRICS, HWLOC_OBJ_OSDEV_NETWORK}) {
      hwloc_obj_t object = nullptr;
      while ((object = hwloc_get_next_osdev(source_, object)) != nullptr) {
        if (object->attr->osdev.type != type) continue;
        Nic nic;
        nic.name = object->name;
        nic.rdma = type == HWLOC_OBJ_OSDEV_OPENFABRICS;
        nic.pci = AddPci(object->parent);
        nic.numa_node = NumaNodeOf(object);
        // A network device on the function of an RDMA device is part of it.
        if (!nic.rdma && nic.pci >= 0 &&
            std::find(used.begin(), used.end(), nic.pci) != used.end()) {
          continue;
        }
        if (nic.rdma) used.push_back(nic.pci);
        for (int number = 1; number < 256; ++number) {
          const std::string state =
              Info(object, absl::StrCat("Port", number, "State"));
          if (state.empty()) break;
          NicPort& port = nic.ports.emplace_back();
          port.number = number;
          // hwloc has the number alone: 4 is IBV_PORT_ACTIVE (verbs.h).
          port.state = state == "4" ? "ACTIVE" : "DOWN";
        }
        topology_.nics.push_back(std::move(nic));
      }
    }
  }

  void ReadGpus() {
    std::vector<std::pair<std::string, hwloc_obj_t>> found;
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_pcidev(source_, object)) != nullptr) {
      const PciAttributes& pci = object->attr->pcidev;
      // NVIDIA's VGA and 3D controllers, by the PCI IDs of vendors and classes.
      if (pci.vendor_id != 0x10de ||
          (pci.class_id != 0x0300 && pci.class_id != 0x0302)) {
        continue;
      }
      // Addresses of fixed width sort as CUDA counts (CUDA_DEVICE_ORDER =
      // PCI_BUS_ID).
      found.emplace_back(absl::StrFormat("%08x:%02x:%02x.%x", pci.domain,
                                         pci.bus, pci.dev, pci.func),
                         object);
    }
    std::sort(found.begin(), found.end());
    for (const auto& [address, device] : found) {
      Gpu gpu;
      gpu.name = absl::StrCat("gpu", topology_.gpus.size());
      gpu.pci = AddPci(device);
      gpu.numa_node = NumaNodeOf(device);
      topology_.gpus.push_back(std::move(gpu));
    }
  }

  const hwloc_topology_t source_;
  NodeTopology topology_;
  std::map<std::string, int> added_;
};

}  // namespace

absl::StatusOr<NodeTopology> DiscoverWithHwloc(absl::string_view sysfs_root) {
  std::string root;
  if (sysfs_root != "/sys") {
    const std::filesystem::path folder =
        std::filesystem::absolute(std::string(sysfs_root)).lexically_normal();
    if (folder.filename() != "sys") {
      return absl::InvalidArgumentError(
          absl::StrCat(sysfs_root,
                       ": hwloc reads a copy of sysfs only when it is named "
                       "sys"));
    }
    root = folder.parent_path().string();
  }
  const OtherRoot other(root);
  REFRACT_ASSIGN_OR_RETURN(const HwlocTopology topology, Load());
  return Reader(topology.get()).Read();
}

}  // namespace refract::placement
