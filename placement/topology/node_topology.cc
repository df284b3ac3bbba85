#include "placement/topology/node_topology.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace refract::placement {
namespace {

constexpr std::array<absl::string_view, kNumPathClasses> kNames = {
    "PIX", "PXB", "PHB", "NODE", "SYS", "UNKNOWN"};

// The kernel's own limit on x86 (CONFIG_NR_CPUS with MAXSMP).
constexpr int kMaxCpus = 8192;

// The bridges above a function, the function first. Empty for -1.
std::vector<int> ChainOf(const NodeTopology& topology, int pci) {
  std::vector<int> chain;
  for (; pci >= 0; pci = topology.pci[pci].parent) chain.push_back(pci);
  return chain;
}

// The smaller of two rates, of which 0 means unknown.
double MinKnown(double a, double b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

// The slowest known link of the first `count` functions of the chain: links
// below the common bridge.
double SlowestLink(const NodeTopology& topology, const std::vector<int>& chain,
                   size_t count) {
  double gbps = 0;
  for (size_t i = 0; i < count; ++i) {
    gbps = MinKnown(gbps, topology.pci[chain[i]].gbps);
  }
  return gbps;
}

PathClass AcrossHostBridges(const Endpoint& a, const Endpoint& b) {
  if (a.numa_node < 0 || b.numa_node < 0) return PathClass::kUnknown;
  if (a.numa_node != b.numa_node) return PathClass::kSys;
  // Memory hangs on the host bridges of its node.
  return a.is_memory || b.is_memory ? PathClass::kPhb : PathClass::kNode;
}

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status CheckNumaNodes(const NodeTopology& topology) {
  std::set<int> ids;
  std::set<int> cpus;
  for (size_t i = 0; i < topology.numa_nodes.size(); ++i) {
    const NumaNode& node = topology.numa_nodes[i];
    const std::string field = absl::StrCat("numa_nodes[", i, "]");
    if (node.id < 0 || !ids.insert(node.id).second) {
      return Bad(field, absl::StrCat(
                            "id ", node.id,
                            node.id < 0 ? " is negative" : " is there twice"));
    }
    for (const int cpu : node.cpus) {
      if (!cpus.insert(cpu).second) {
        return Bad(absl::StrCat(field, ".cpus"),
                   absl::StrCat("CPU ", cpu, " is in two NUMA nodes"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNumaNode(const NodeTopology& topology, int numa_node,
                           const std::string& field) {
  // Without any NUMA node the machine did not report its NUMA nodes.
  if (numa_node < 0 || topology.numa_nodes.empty() ||
      topology.FindNode(numa_node) != nullptr) {
    return absl::OkStatus();
  }
  return Bad(absl::StrCat(field, ".numa_node"),
             absl::StrCat("the machine has no NUMA node ", numa_node));
}

absl::Status CheckPci(const NodeTopology& topology) {
  std::set<std::string> addresses;
  const int count = static_cast<int>(topology.pci.size());
  for (int i = 0; i < count; ++i) {
    const PciFunction& function = topology.pci[i];
    const std::string field = absl::StrCat("pci[", function.address, "]");
    if (!addresses.insert(function.address).second) {
      return Bad(field, "the address is there twice");
    }
    if (function.parent < -1 || function.parent >= count) {
      return Bad(absl::StrCat(field, ".parent"), "no such bridge");
    }
    // A walk with more steps than functions has met a function twice.
    int steps = 0;
    for (int at = i; at >= 0; at = topology.pci[at].parent) {
      if (++steps > count) {
        return Bad(absl::StrCat(field, ".parent"), "the bridges form a cycle");
      }
    }
    if (function.parent >= 0 &&
        topology.pci[function.parent].root != function.root) {
      return Bad(absl::StrCat(field, ".root"),
                 absl::StrCat(function.root, " is not the root ",
                              topology.pci[function.parent].root,
                              " of the bridge above"));
    }
    const absl::Status numa =
        CheckNumaNode(topology, function.numa_node, field);
    if (!numa.ok()) return numa;
  }
  return absl::OkStatus();
}

absl::Status CheckDevices(const NodeTopology& topology) {
  std::set<std::string> names;
  // NICs and GPUs share one space of names, because paths name either.
  const auto check = [&](const auto& device, absl::string_view list) {
    const std::string field = absl::StrCat(list, "[", device.name, "]");
    if (!names.insert(device.name).second) {
      return Bad(field, "the name is there twice");
    }
    return CheckNumaNode(topology, device.numa_node, field);
  };
  for (const Nic& nic : topology.nics) {
    const absl::Status status = check(nic, "nics");
    if (!status.ok()) return status;
  }
  for (const Gpu& gpu : topology.gpus) {
    const absl::Status status = check(gpu, "gpus");
    if (!status.ok()) return status;
  }
  // A NIC, a GPU, or "nodeN" for the memory of a NUMA node.
  const auto known = [&](const std::string& name) {
    if (names.contains(name)) return true;
    int id = 0;
    return absl::StartsWith(name, "node") &&
           absl::SimpleAtoi(name.substr(4), &id) &&
           topology.FindNode(id) != nullptr;
  };
  for (size_t i = 0; i < topology.given_paths.size(); ++i) {
    const GivenPath& path = topology.given_paths[i];
    for (const std::string* end : {&path.from, &path.to}) {
      if (!known(*end)) {
        return Bad(absl::StrCat("paths[", i, "]"),
                   absl::StrCat("the machine has no device ", *end));
      }
    }
  }
  return absl::OkStatus();
}

template <typename T>
const T* FindNamed(const std::vector<T>& devices, absl::string_view name) {
  const auto found =
      std::find_if(devices.begin(), devices.end(),
                   [name](const T& device) { return device.name == name; });
  return found == devices.end() ? nullptr : &*found;
}

}  // namespace

absl::string_view Name(PathClass path_class) {
  return kNames[static_cast<size_t>(path_class)];
}

std::optional<PathClass> PathClassNamed(absl::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<PathClass>(found - kNames.begin());
}

bool Nic::active() const {
  return std::any_of(ports.begin(), ports.end(),
                     [](const NicPort& port) { return port.active(); });
}

double Nic::port_gbps() const {
  double fastest = 0;
  for (const NicPort& port : ports) {
    if (port.active() || !active()) fastest = std::max(fastest, port.gbps);
  }
  return fastest;
}

const NumaNode* NodeTopology::FindNode(int id) const {
  for (const NumaNode& node : numa_nodes) {
    if (node.id == id) return &node;
  }
  return nullptr;
}

const Nic* NodeTopology::FindNic(absl::string_view name) const {
  return FindNamed(nics, name);
}

const Gpu* NodeTopology::FindGpu(absl::string_view name) const {
  return FindNamed(gpus, name);
}

int NodeTopology::FindPci(absl::string_view address) const {
  for (size_t i = 0; i < pci.size(); ++i) {
    if (pci[i].address == address) return static_cast<int>(i);
  }
  return -1;
}

Endpoint::Endpoint(const Nic& nic)
    : name(nic.name),
      pci(nic.pci),
      numa_node(nic.numa_node),
      gbps(nic.port_gbps()) {}

Endpoint::Endpoint(const Gpu& gpu)
    : name(gpu.name), pci(gpu.pci), numa_node(gpu.numa_node) {}

Endpoint::Endpoint(const NumaNode& node)
    : name(absl::StrCat("node", node.id)),
      numa_node(node.id),
      is_memory(true) {}

Path PathBetween(const NodeTopology& topology, const Endpoint& a,
                 const Endpoint& b) {
  // From each device up to its host bridge. Memory has no chain: its path
  // follows from NUMA nodes.
  const std::vector<int> above_a = ChainOf(topology, a.pci);
  const std::vector<int> above_b = ChainOf(topology, b.pci);
  // Both chains end at the host bridge, so their common part is at their ends.
  size_t shared = 0;
  while (shared < above_a.size() && shared < above_b.size() &&
         above_a[above_a.size() - 1 - shared] ==
             above_b[above_b.size() - 1 - shared]) {
    ++shared;
  }
  const size_t own_a = above_a.size() - shared;
  const size_t own_b = above_b.size() - shared;
  Path path;
  path.gbps = MinKnown(MinKnown(SlowestLink(topology, above_a, own_a),
                                SlowestLink(topology, above_b, own_b)),
                       MinKnown(a.gbps, b.gbps));
  if (shared > 0) {
    // The devices themselves are not bridges.
    path.path_class =
        std::max(own_a, own_b) <= 2 ? PathClass::kPix : PathClass::kPxb;
  } else if (!above_a.empty() && !above_b.empty() &&
             topology.pci[a.pci].root == topology.pci[b.pci].root) {
    path.path_class = PathClass::kPhb;
  } else {
    path.path_class = AcrossHostBridges(a, b);
  }
  // The operator's paths beat everything that was computed, in either
  // direction.
  for (const GivenPath& given : topology.given_paths) {
    if ((given.from == a.name && given.to == b.name) ||
        (given.from == b.name && given.to == a.name)) {
      path.path_class = given.path_class;
      if (given.gbps > 0) path.gbps = given.gbps;
    }
  }
  return path;
}

double PcieGbps(double gigatransfers, int lanes) {
  // Generations by transfers per second: 1 and 2 up to 5 GT/s (8b/10b), 3 to 5
  // up to 32 (128b/130b), 6 at 64 (flits).
  double payload = 128.0 / 130;
  if (gigatransfers <= 5) {
    payload = 8.0 / 10;
  } else if (gigatransfers > 32) {
    payload = 236.0 / 256;
  }
  return gigatransfers * lanes * payload;
}

absl::Status Check(const NodeTopology& topology) {
  absl::Status status = CheckNumaNodes(topology);
  if (status.ok()) status = CheckPci(topology);
  if (status.ok()) status = CheckDevices(topology);
  return status;
}

std::string CpuListText(const std::vector<int>& cpus) {
  std::string text;
  // Runs of consecutive CPUs become ranges.
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (end - i > 1) absl::StrAppend(&text, "-", cpus[end - 1]);
    i = end;
  }
  return text;
}

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text) {
  std::set<int> cpus;
  for (const absl::string_view part :
       absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first ||
        last >= kMaxCpus) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is not a list of CPUs such as 0-3,8"));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return std::vector<int>(cpus.begin(), cpus.end());
}

}  // namespace refract::placement
