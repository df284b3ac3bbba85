// hwloc as an oracle: it reads the same machines from trees of files, and has
// to find the same paths.

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/process/files.h"
#include "gtest/gtest.h"
#include "placement/topology/hwloc_source.h"
#include "tests/placement/topology/machine.h"

namespace refract::placement {
namespace {

namespace fs = std::filesystem;

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
      DiscoverWithHwloc((root_ / "sys").string());
  if (absl::IsUnimplemented(hwloc.status())) {
    GTEST_SKIP() << hwloc.status().message();
  }
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

TEST(HwlocRootTest, CopiesHaveToBeNamedSys) {
  const absl::Status status = DiscoverWithHwloc("/tmp").status();
  if (absl::IsUnimplemented(status)) GTEST_SKIP() << status.message();
  EXPECT_EQ(status, absl::InvalidArgumentError(
                        "/tmp: hwloc reads a copy of sysfs only when it is "
                        "named sys"));
}

}  // namespace
}  // namespace refract::placement
