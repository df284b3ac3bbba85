// hwloc as an oracle: it reads the same machines from trees of files, and has
// to find the same paths.

#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "placement/topology/node_topology.h"
#include "placement/topology/sysfs_tree.h"
#include "tests/placement/topology/machine.h"

namespace refract::placement {
namespace {

namespace fs = std::filesystem;

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

// Makes hwloc read the tree below `root` for the life of the object.
class OtherRoot {
 public:
  explicit OtherRoot(const std::string& root) {
    setenv("HWLOC_FSROOT", root.c_str(), 1);
    // The tree may be of another machine: hwloc must not ask this machine's
    // processor and devices.
    setenv("HWLOC_THISSYSTEM", "0", 1);
    setenv("HWLOC_COMPONENTS", "linux,stop", 1);
  }
  ~OtherRoot() {
    for (const char* name :
         {"HWLOC_FSROOT", "HWLOC_THISSYSTEM", "HWLOC_COMPONENTS"}) {
      unsetenv(name);
    }
  }
};

// The machine as hwloc sees it. hwloc has no rates of ports, and rates of PCIe
// links only where it may read configuration space (as root).
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

// `root`: the folder of a copy of sysfs, "sys". Not thread-safe: hwloc learns it
// from the environment.
absl::StatusOr<NodeTopology> DiscoverWithHwloc(const std::string& root) {
  const OtherRoot other(root);
  REFRACT_ASSIGN_OR_RETURN(const HwlocTopology topology, Load());
  return Reader(topology.get()).Read();
}

// The first 64 bytes of the configuration space of a PCI function (PCI Local
// Bus Specification 3.0, 6.1): hwloc reads the buses of bridges there. `bus`,
// `last_bus`: below a bridge; 0: no bridge.
std::string ConfigurationSpace(unsigned vendor, unsigned device,
                               unsigned pci_class, int bus, int last_bus,
                               int own_bus) {
  std::string bytes(64, '\0');
  const auto put = [&bytes](size_t at, unsigned value, int count) {
    for (int i = 0; i < count; ++i) {
      bytes[at + i] = static_cast<char>(value >> (8 * i));
    }
  };
  put(0x00, vendor, 2);
  put(0x02, device, 2);
  put(0x09, pci_class, 3);
  put(0x0e, bus > 0 ? 1 : 0, 1);  // header type: a bridge to PCI
  if (bus > 0) {
    put(0x18, own_bus, 1);
    put(0x19, bus, 1);
    put(0x1a, last_bus, 1);
  }
  return bytes;
}

// CPUs as the kernel writes masks: groups of 32 bits, the highest first.
std::string Mask(const std::vector<int>& cpus) {
  std::string mask;
  for (int group = 7; group >= 0; --group) {
    unsigned bits = 0;
    for (const int cpu : cpus) {
      if (cpu / 32 == group) bits |= 1u << (cpu % 32);
    }
    mask += absl::StrFormat("%08x%s", bits, group > 0 ? "," : "\n");
  }
  return mask;
}

class HwlocTest : public testing::TestWithParam<const char*> {
 protected:
  HwlocTest() {
    std::string pattern = testing::TempDir() + "/hwloc_XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~HwlocTest() override { fs::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / "sys" / path).parent_path());
    std::ofstream(root_ / "sys" / path, std::ios::binary) << text;
  }

  // A dump as sysfs, with the other files that hwloc needs.
  void Unpack(const SysfsDump& dump) {
    const fs::path sys = root_ / "sys";
    for (const auto& [path, target] : dump.links) {
      fs::create_directories(sys / target);
      fs::create_directories((sys / path).parent_path());
      // hwloc looks at what follows the last address of a link: in sysfs the
      // class of the device, here a dot.
      fs::create_symlink(
          fs::relative(sys / target, (sys / path).parent_path()) / ".",
          sys / path);
    }
    for (const auto& [path, text] : dump.files) Put(path, text + "\n");
    for (const auto& [path, names] : dump.folders) {
      for (const std::string& name : names) {
        if (!fs::exists(sys / path / name)) {
          fs::create_directories(sys / path / name);
        }
      }
    }
    // A package per NUMA node, a core per CPU.
    std::set<int> all;
    for (const auto& [path, text] : dump.files) {
      if (!path.ends_with("/cpulist")) continue;
      const std::vector<int> cpus = *ParseCpuList(text);
      all.insert(cpus.begin(), cpus.end());
      Put(path.substr(0, path.rfind('/')) + "/cpumap", Mask(cpus));
      for (const int cpu : cpus) {
        const std::string at =
            "devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        Put(at + "core_id", std::to_string(cpu) + "\n");
        Put(at + "physical_package_id", std::to_string(cpus[0]) + "\n");
        Put(at + "core_cpus", Mask({cpu}));
        Put(at + "package_cpus", Mask(cpus));
      }
    }
    const std::string list = CpuListText({all.begin(), all.end()});
    for (const char* name : {"online", "possible", "present"}) {
      Put(std::string("devices/system/cpu/") + name, list + "\n");
    }
    WriteConfigurationSpaces(dump);
  }

  void WriteConfigurationSpaces(const SysfsDump& dump) {
    const auto bus_of = [](const std::string& address) {
      return std::stoi(address.substr(5, 2), nullptr, 16);
    };
    // First and last bus below each bridge.
    std::map<std::string, std::pair<int, int>> below;
    std::vector<std::string> functions;
    for (const auto& [path, target] : dump.links) {
      if (!path.starts_with("bus/pci/devices/") || path.ends_with("/physfn")) {
        continue;
      }
      const std::string address = path.substr(path.rfind('/') + 1);
      functions.push_back(address);
      const fs::path parts(target);
      for (const fs::path& part : parts) {
        const std::string above = part.string();
        if (above == address || above.size() != address.size()) continue;
        const auto [at, is_new] =
            below.try_emplace(above, bus_of(address), bus_of(address));
        at->second.first = std::min(at->second.first, bus_of(address));
        at->second.second = std::max(at->second.second, bus_of(address));
      }
    }
    for (const std::string& address : functions) {
      const std::string at = "bus/pci/devices/" + address;
      const auto number = [&](const char* name) {
        const auto found = dump.files.find(at + "/" + name);
        return found == dump.files.end() ? 0u
                                         : static_cast<unsigned>(std::stoul(
                                               found->second, nullptr, 16));
      };
      const int numa_node = std::stoi(dump.files.at(at + "/numa_node"));
      if (numa_node >= 0) {
        Put(at + "/local_cpus", Mask(*ParseCpuList(dump.files.at(
                                    "devices/system/node/node" +
                                    std::to_string(numa_node) + "/cpulist"))));
      }
      const auto bridge = below.find(address);
      Put(at + "/device", "0x1234\n");
      Put(at + "/config",
          ConfigurationSpace(number("vendor"), 0x1234, number("class"),
                             bridge == below.end() ? 0 : bridge->second.first,
                             bridge == below.end() ? 0 : bridge->second.second,
                             bus_of(address)));
    }
  }

  fs::path root_;
};

TEST_P(HwlocTest, FindsTheSamePaths) {
  Unpack(*SysfsDump::FromJson(*base::ReadText(MachineFile(GetParam()))));
  const absl::StatusOr<NodeTopology> hwloc =
      DiscoverWithHwloc(root_.string());
  ASSERT_TRUE(hwloc.ok()) << hwloc.status();
  const NodeTopology sysfs = Machine(GetParam());
  ASSERT_EQ(hwloc->numa_nodes.size(), sysfs.numa_nodes.size());
  for (size_t i = 0; i < sysfs.numa_nodes.size(); ++i) {
    EXPECT_EQ(hwloc->numa_nodes[i].cpus, sysfs.numa_nodes[i].cpus);
    EXPECT_EQ(hwloc->numa_nodes[i].memory_bytes,
              sysfs.numa_nodes[i].memory_bytes);
  }
  ASSERT_EQ(hwloc->gpus.size(), sysfs.gpus.size());
  int compared = 0;
  for (const Nic& nic : sysfs.nics) {
    const Nic* const other = hwloc->FindNic(nic.name);
    // hwloc leaves out devices without PCI data.
    if (nic.pci < 0 && other == nullptr) continue;
    ASSERT_NE(other, nullptr) << nic.name;
    ASSERT_EQ(nic.pci < 0, other->pci < 0) << nic.name;
    if (nic.pci >= 0) {
      EXPECT_EQ(hwloc->pci[other->pci].address, sysfs.pci[nic.pci].address);
    }
    for (size_t i = 0; i < sysfs.numa_nodes.size(); ++i) {
      // hwloc knows the only NUMA node of a machine whose sysfs says -1.
      if (nic.numa_node < 0) continue;
      EXPECT_EQ(PathBetween(*hwloc, *other, hwloc->numa_nodes[i]).path_class,
                PathBetween(sysfs, nic, sysfs.numa_nodes[i]).path_class)
          << nic.name << " node " << i;
      ++compared;
    }
    for (size_t i = 0; i < sysfs.gpus.size(); ++i) {
      EXPECT_EQ(Name(PathBetween(*hwloc, *other, hwloc->gpus[i]).path_class),
                Name(PathBetween(sysfs, nic, sysfs.gpus[i]).path_class))
          << nic.name << " " << sysfs.gpus[i].name;
      ++compared;
    }
  }
  RecordProperty("paths", compared);
  std::printf("%d paths compared\n", compared);
}

INSTANTIATE_TEST_SUITE_P(Machines, HwlocTest,
                         testing::Values("two_socket_8gpu", "hgx_h200", "vm",
                                         "soft_roce", "sriov_vf", "bonded",
                                         "down_first_port"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace refract::placement
