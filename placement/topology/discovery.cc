#include "placement/topology/discovery.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace refract::placement {
namespace {

// Mb/s of a network device are the largest numbers here.
constexpr double kMaxNumber = 1e9;

absl::Status BadFile(absl::string_view path, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": \"", text, "\" is not a value that the kernel writes there"));
}

bool IsHex(absl::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
}

// "0000:3b:00.0"; domains of Intel VMD have five digits.
bool IsPciAddress(absl::string_view text) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(text, absl::ByAnyChar(":."));
  return parts.size() == 4 && parts[0].size() >= 4 && parts[1].size() == 2 &&
         parts[2].size() == 2 && parts[3].size() == 1 &&
         std::all_of(parts.begin(), parts.end(), IsHex);
}

// "pci0000:3a".
bool IsPciRoot(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "pci")) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  return parts.size() == 2 && IsHex(parts[0]) && IsHex(parts[1]);
}

// The root and the addresses below it of a path in devices/: more than a PCI
// device may follow ("…/0000:00:03.0/virtio0"). Empty: no PCI device.
std::vector<std::string> PciChain(absl::string_view path) {
  std::vector<std::string> chain;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (chain.empty()) {
      if (IsPciRoot(part)) chain.emplace_back(part);
    } else if (IsPciAddress(part)) {
      chain.push_back(absl::AsciiStrToLower(part));
    } else {
      break;
    }
  }
  if (chain.size() < 2) chain.clear();
  return chain;
}

class Discovery {
 public:
  explicit Discovery(SysfsTree& tree) : tree_(tree) {}

  // RDMA devices come before network devices, because a network device of an
  // RDMA device is no NIC of its own.
  absl::StatusOr<NodeTopology> Run() {
    REFRACT_RETURN_IF_ERROR(ReadNumaNodes());
    REFRACT_RETURN_IF_ERROR(ReadRdmaNics());
    REFRACT_RETURN_IF_ERROR(ReadNetworkNics());
    REFRACT_RETURN_IF_ERROR(ReadGpus());
    REFRACT_RETURN_IF_ERROR(Check(topology_));
    return std::move(topology_);
  }

 private:
  absl::StatusOr<std::string> Text(absl::string_view path) {
    REFRACT_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                             tree_.Read(path));
    return text.value_or("");
  }
  // The number at the start of a file; nullopt: no file, or no number there
  // ("Unknown" as the speed of a link).
  absl::StatusOr<std::optional<double>> Number(absl::string_view path) {
    REFRACT_ASSIGN_OR_RETURN(const std::string text, Text(path));
    const std::vector<absl::string_view> words =
        absl::StrSplit(text, absl::ByAnyChar(" \t"));
    double value = 0;
    if (!absl::SimpleAtod(words.front(), &value) || !(value <= kMaxNumber)) {
      return std::nullopt;
    }
    return value;
  }
  // As Number(), but a file without a whole number is an error.
  absl::StatusOr<std::optional<int>> WholeNumber(absl::string_view path) {
    REFRACT_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                             tree_.Read(path));
    if (!text.has_value()) return std::nullopt;
    int value = 0;
    if (!absl::SimpleAtoi(*text, &value)) return BadFile(path, *text);
    return value;
  }

  absl::Status ReadNumaNodes();
  // Adds the function at the end of `path`, and the bridges above. -1: `path`
  // leads to no PCI device.
  absl::StatusOr<int> AddPci(absl::string_view path);
  absl::StatusOr<PciFunction> ReadFunction(const std::string& address);
  absl::Status ReadLinkOf(const std::string& address, PciFunction* function);
  absl::Status ReadRdmaNics();
  absl::StatusOr<NicPort> ReadRdmaPort(const std::string& folder, int number);
  absl::Status ReadBond(Nic* nic);
  absl::Status ReadNetworkNics();
  absl::Status ReadGpus();

  SysfsTree& tree_;
  NodeTopology topology_;
  std::map<std::string, int> functions_;  // by address
};

absl::Status Discovery::ReadNumaNodes() {
  const std::string folder = "devices/system/node";
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           tree_.List(folder));
  for (const std::string& name : names) {
    // The folder has other entries beside the nodes ("online", "possible").
    absl::string_view digits = name;
    NumaNode node;
    if (!absl::ConsumePrefix(&digits, "node") ||
        !absl::SimpleAtoi(digits, &node.id)) {
      continue;
    }
    const std::string at = absl::StrCat(folder, "/", name);
    REFRACT_ASSIGN_OR_RETURN(const std::string cpus, Text(at + "/cpulist"));
    absl::StatusOr<std::vector<int>> parsed = ParseCpuList(cpus);
    if (!parsed.ok()) return BadFile(at + "/cpulist", cpus);
    node.cpus = *std::move(parsed);
    REFRACT_ASSIGN_OR_RETURN(const std::string memory, Text(at + "/meminfo"));
    for (const absl::string_view line : absl::StrSplit(memory, '\n')) {
      // "Node 0 MemTotal:       263982160 kB"
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, ' ', absl::SkipEmpty());
      int64_t kib = 0;
      if (words.size() >= 4 && words[2] == "MemTotal:" &&
          absl::SimpleAtoi(words[3], &kib)) {
        node.memory_bytes = kib << 10;
      }
    }
    REFRACT_ASSIGN_OR_RETURN(const std::string distances,
                             Text(at + "/distance"));
    for (const absl::string_view word :
         absl::StrSplit(distances, ' ', absl::SkipEmpty())) {
      int distance = 0;
      if (!absl::SimpleAtoi(word, &distance)) {
        return BadFile(at + "/distance", distances);
      }
      node.distance.push_back(distance);
    }
    topology_.numa_nodes.push_back(std::move(node));
  }
  return absl::OkStatus();
}

absl::Status Discovery::ReadLinkOf(const std::string& address,
                                   PciFunction* function) {
  const std::string at = absl::StrCat("bus/pci/devices/", address, "/");
  // The highest speed, because idle devices lower the current one; the current
  // width, because a link keeps it. Each falls back on the other.
  REFRACT_ASSIGN_OR_RETURN(std::optional<double> speed,
                           Number(at + "max_link_speed"));
  if (!speed.has_value()) {
    REFRACT_ASSIGN_OR_RETURN(speed, Number(at + "current_link_speed"));
  }
  REFRACT_ASSIGN_OR_RETURN(const std::optional<double> most,
                           Number(at + "max_link_width"));
  REFRACT_ASSIGN_OR_RETURN(const std::optional<double> width,
                           Number(at + "current_link_width"));
  // A function that does not know its width answers 255.
  const auto lanes = [](std::optional<double> value) {
    return value.has_value() && *value > 0 && *value <= 32
               ? static_cast<int>(*value)
               : 0;
  };
  function->gigatransfers = speed.value_or(0);
  function->max_lanes = lanes(most);
  function->lanes = lanes(width) > 0 ? lanes(width) : lanes(most);
  function->gbps = PcieGbps(function->gigatransfers, function->lanes);
  return absl::OkStatus();
}

absl::StatusOr<PciFunction> Discovery::ReadFunction(
    const std::string& address) {
  PciFunction function;
  function.address = address;
  const std::string at = absl::StrCat("bus/pci/devices/", address, "/");
  REFRACT_ASSIGN_OR_RETURN(const std::optional<int> numa_node,
                           WholeNumber(at + "numa_node"));
  function.numa_node = numa_node.value_or(-1);
  REFRACT_RETURN_IF_ERROR(ReadLinkOf(address, &function));
  REFRACT_ASSIGN_OR_RETURN(const std::optional<std::string> physical,
                           tree_.Link(at + "physfn"));
  if (physical.has_value()) {
    const std::vector<std::string> chain = PciChain(*physical);
    if (!chain.empty()) function.physical_function = chain.back();
  }
  // A virtual function has no link of its own.
  if (function.gbps == 0 && !function.physical_function.empty()) {
    REFRACT_RETURN_IF_ERROR(ReadLinkOf(function.physical_function, &function));
  }
  return function;
}

absl::StatusOr<int> Discovery::AddPci(absl::string_view path) {
  // chain[0] is the root; the bridges follow from the top down, the function is
  // last. Bridges that devices share are added once.
  const std::vector<std::string> chain = PciChain(path);
  int parent = -1;
  std::set<std::string> above;
  for (size_t i = 1; i < chain.size(); ++i) {
    const std::string& address = chain[i];
    if (!above.insert(address).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the bridges form a cycle at ", address));
    }
    // A bridge that an earlier device has added must be at the same place, or
    // the tree contradicts itself.
    const auto known = functions_.find(address);
    if (known != functions_.end()) {
      const PciFunction& function = topology_.pci[known->second];
      if (function.parent != parent || function.root != chain[0]) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": ", address, " has two places in the tree"));
      }
      parent = known->second;
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(PciFunction function, ReadFunction(address));
    function.root = chain[0];
    function.parent = parent;
    parent = static_cast<int>(topology_.pci.size());
    functions_[address] = parent;
    topology_.pci.push_back(std::move(function));
  }
  return parent;
}

absl::StatusOr<NicPort> Discovery::ReadRdmaPort(const std::string& folder,
                                                int number) {
  NicPort port;
  port.number = number;
  REFRACT_ASSIGN_OR_RETURN(const std::string state, Text(folder + "/state"));
  // "4: ACTIVE"
  const std::vector<absl::string_view> words = absl::StrSplit(state, ": ");
  port.state = std::string(words.back());
  REFRACT_ASSIGN_OR_RETURN(const std::optional<double> rate,
                           Number(folder + "/rate"));
  port.gbps = std::max(0.0, rate.value_or(0));
  REFRACT_ASSIGN_OR_RETURN(port.link_layer, Text(folder + "/link_layer"));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> indices,
                           tree_.List(folder + "/gids"));
  for (const std::string& index : indices) {
    Gid gid;
    REFRACT_ASSIGN_OR_RETURN(gid.address, Text(folder + "/gids/" + index));
    if (!absl::SimpleAtoi(index, &gid.index) || gid.address.empty() ||
        IsUnsetGid(gid.address)) {
      continue;
    }
    const std::string attributes = folder + "/gid_attrs/";
    REFRACT_ASSIGN_OR_RETURN(gid.type, Text(attributes + "types/" + index));
    REFRACT_ASSIGN_OR_RETURN(gid.netdev, Text(attributes + "ndevs/" + index));
    port.gids.push_back(std::move(gid));
  }
  return port;
}

absl::Status Discovery::ReadBond(Nic* nic) {
  for (const std::string& netdev : nic->netdevs) {
    REFRACT_ASSIGN_OR_RETURN(
        const std::string members,
        Text(absl::StrCat("class/net/", netdev, "/bonding/slaves")));
    for (const absl::string_view member :
         absl::StrSplit(members, ' ', absl::SkipEmpty())) {
      nic->bond_members.emplace_back(member);
    }
  }
  return absl::OkStatus();
}

absl::Status Discovery::ReadRdmaNics() {
  const std::string devices = "class/infiniband";
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           tree_.List(devices));
  for (const std::string& name : names) {
    const std::string at = absl::StrCat(devices, "/", name);
    Nic nic;
    nic.name = name;
    nic.rdma = true;
    REFRACT_ASSIGN_OR_RETURN(const std::optional<std::string> device,
                             tree_.Link(at + "/device"));
    // Soft-RoCE has no PCI device.
    if (device.has_value()) {
      REFRACT_ASSIGN_OR_RETURN(nic.pci, AddPci(*device));
    }
    if (nic.pci >= 0) nic.numa_node = topology_.pci[nic.pci].numa_node;
    REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                             tree_.List(at + "/ports"));
    // Network devices of the RDMA device come from three places: its GIDs, its
    // PCI function, and the parent of soft-RoCE.
    std::set<std::string> netdevs;
    for (const std::string& text : numbers) {
      int number = 0;
      if (!absl::SimpleAtoi(text, &number)) continue;
      REFRACT_ASSIGN_OR_RETURN(
          NicPort port,
          ReadRdmaPort(absl::StrCat(at, "/ports/", text), number));
      for (const Gid& gid : port.gids) netdevs.insert(gid.netdev);
      nic.ports.push_back(std::move(port));
    }
    REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> functions,
                             tree_.List(at + "/device/net"));
    netdevs.insert(functions.begin(), functions.end());
    // `parent` names the network device of soft-RoCE, whose port may not have
    // an address yet.
    REFRACT_ASSIGN_OR_RETURN(const std::string parent, Text(at + "/parent"));
    netdevs.insert(parent);
    netdevs.erase("");
    nic.netdevs.assign(netdevs.begin(), netdevs.end());
    REFRACT_RETURN_IF_ERROR(ReadBond(&nic));
    topology_.nics.push_back(std::move(nic));
  }
  return absl::OkStatus();
}

absl::Status Discovery::ReadNetworkNics() {
  std::set<std::string> used;
  std::set<int> used_functions;
  for (const Nic& nic : topology_.nics) {
    used.insert(nic.netdevs.begin(), nic.netdevs.end());
    used.insert(nic.bond_members.begin(), nic.bond_members.end());
    if (nic.pci >= 0) used_functions.insert(nic.pci);
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           tree_.List("class/net"));
  for (const std::string& name : names) {
    const std::string at = absl::StrCat("class/net/", name);
    REFRACT_ASSIGN_OR_RETURN(const std::optional<std::string> device,
                             tree_.Link(at + "/device"));
    // Software devices (lo, bridges) have no `device`.
    if (!device.has_value() || used.contains(name)) continue;
    Nic nic;
    nic.name = name;
    REFRACT_ASSIGN_OR_RETURN(nic.pci, AddPci(*device));
    if (nic.pci >= 0) {
      if (used_functions.contains(nic.pci)) continue;
      nic.numa_node = topology_.pci[nic.pci].numa_node;
    }
    nic.netdevs.push_back(name);
    NicPort port;
    REFRACT_ASSIGN_OR_RETURN(port.state, Text(at + "/operstate"));
    port.state =
        port.state == "up" ? "ACTIVE" : absl::AsciiStrToUpper(port.state);
    // -1 while the link is down.
    REFRACT_ASSIGN_OR_RETURN(const std::optional<double> mbps,
                             Number(at + "/speed"));
    port.gbps = std::max(0.0, mbps.value_or(0) / 1000);
    port.link_layer = "Ethernet";
    nic.ports.push_back(std::move(port));
    topology_.nics.push_back(std::move(nic));
  }
  return absl::OkStatus();
}

absl::Status Discovery::ReadGpus() {
  REFRACT_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                           tree_.List("bus/pci/devices"));
  // In hexadecimal order, as CUDA counts with CUDA_DEVICE_ORDER=PCI_BUS_ID.
  std::sort(addresses.begin(), addresses.end(),
            [](const std::string& a, const std::string& b) {
              return std::pair(a.size(), a) < std::pair(b.size(), b);
            });
  for (const std::string& address : addresses) {
    const std::string at = absl::StrCat("bus/pci/devices/", address);
    REFRACT_ASSIGN_OR_RETURN(const std::string pci_class, Text(at + "/class"));
    // VGA controllers and 3D controllers, with any programming interface.
    if (!absl::StartsWith(pci_class, "0x0300") &&
        !absl::StartsWith(pci_class, "0x0302")) {
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(const std::string vendor, Text(at + "/vendor"));
    if (vendor != "0x10de") continue;
    REFRACT_ASSIGN_OR_RETURN(const std::optional<std::string> path,
                             tree_.Link(at));
    Gpu gpu;
    gpu.name = absl::StrCat("gpu", topology_.gpus.size());
    if (path.has_value()) {
      REFRACT_ASSIGN_OR_RETURN(gpu.pci, AddPci(*path));
    }
    if (gpu.pci >= 0) gpu.numa_node = topology_.pci[gpu.pci].numa_node;
    REFRACT_ASSIGN_OR_RETURN(
        gpu.model,
        Text(absl::StrCat("refract.nvml/", absl::AsciiStrToLower(address))));
    topology_.gpus.push_back(std::move(gpu));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NodeTopology> Discover(SysfsTree& tree) {
  return Discovery(tree).Run();
}

}  // namespace refract::placement
