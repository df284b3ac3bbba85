#include "placement/topology/node_binding.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace refract::placement {
namespace {

// The NUMA node that has all of `cpus`; -1: there is none.
int NodeOfAll(const NodeTopology& topology, absl::Span<const int> cpus) {
  for (const NumaNode& node : topology.numa_nodes) {
    if (!cpus.empty() &&
        std::all_of(cpus.begin(), cpus.end(), [&node](int cpu) {
          return std::binary_search(node.cpus.begin(), node.cpus.end(), cpu);
        })) {
      return node.id;
    }
  }
  return -1;
}

// Used before the NUMA node is known: looks at properties of every node.
const Nic* FastestNic(const NodeTopology& topology) {
  const auto rank = [](const Nic& nic) {
    return std::tuple(nic.active(), nic.rdma, nic.port_gbps());
  };
  const auto best = std::max_element(
      topology.nics.begin(), topology.nics.end(),
      [&](const Nic& a, const Nic& b) { return rank(a) < rank(b); });
  return best == topology.nics.end() ? nullptr : &*best;
}

}  // namespace

double ClassFactor(PathClass path_class) {
  switch (path_class) {
    case PathClass::kPix:
      return 1;
    case PathClass::kPxb:
      return 0.9;
    case PathClass::kPhb:
    case PathClass::kNode:
      return 0.8;
    case PathClass::kSys:
      return 0.63;
    case PathClass::kUnknown:
      break;
  }
  return 0.715;
}

NodeBinding Bind(const NodeTopology& topology,
                 absl::Span<const int> usable_cpus, const Gpu* gpu,
                 absl::string_view nic) {
  NodeBinding binding;
  // The first source that knows: the GPU, the CPUs that the process may use,
  // the NIC.
  if (gpu != nullptr) binding.numa_node = gpu->numa_node;
  if (binding.numa_node < 0) {
    binding.numa_node = NodeOfAll(topology, usable_cpus);
  }
  if (binding.numa_node < 0) {
    const Nic* const chosen =
        nic.empty() ? FastestNic(topology) : topology.FindNic(nic);
    if (chosen != nullptr) binding.numa_node = chosen->numa_node;
  }
  const NumaNode* const node = topology.FindNode(binding.numa_node);
  if (node != nullptr) {
    std::set_intersection(node->cpus.begin(), node->cpus.end(),
                          usable_cpus.begin(), usable_cpus.end(),
                          std::back_inserter(binding.cpus));
    if (binding.cpus.size() == usable_cpus.size()) binding.cpus.clear();
  }
  // Sorted by: active, RDMA, rate × factor, then the order of the machine. The
  // values are negated so that the best comes first.
  std::vector<std::tuple<bool, bool, double, size_t>> order;
  for (const Nic& candidate : topology.nics) {
    NicChoice choice;
    choice.name = candidate.name;
    choice.rdma = candidate.rdma;
    choice.numa_node = candidate.numa_node;
    if (gpu != nullptr) {
      choice.path = PathBetween(topology, candidate, *gpu);
    } else if (node != nullptr) {
      choice.path = PathBetween(topology, candidate, *node);
    }
    choice.factor = ClassFactor(choice.path.path_class);
    order.emplace_back(!candidate.active(), !candidate.rdma,
                       -choice.path.gbps * choice.factor, order.size());
    binding.nics.push_back(std::move(choice));
  }
  std::sort(order.begin(), order.end());
  std::vector<NicChoice> sorted;
  for (const auto& entry : order) {
    sorted.push_back(std::move(binding.nics[std::get<3>(entry)]));
  }
  binding.nics = std::move(sorted);
  return binding;
}

std::string BindingText(const NodeBinding& binding) {
  std::string text =
      binding.numa_node < 0
          ? std::string("NUMA node unknown")
          : absl::StrCat(
                "NUMA node ", binding.numa_node,
                binding.cpus.empty()
                    ? std::string()
                    : absl::StrCat(" (CPUs ", CpuListText(binding.cpus), ")"));
  for (size_t i = 0; i < binding.nics.size(); ++i) {
    const NicChoice& nic = binding.nics[i];
    absl::StrAppend(&text, i == 0 ? ", NICs " : ", ", nic.name, " ",
                    Name(nic.path.path_class));
    if (nic.path.gbps > 0) {
      absl::StrAppendFormat(&text, " %.4g Gb/s", nic.path.gbps);
    }
  }
  return text;
}

}  // namespace refract::placement
