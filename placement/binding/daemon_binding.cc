#include "placement/binding/daemon_binding.h"

#include <glog/logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/process/affinity.h"
#include "placement/topology/node_binding.h"
#include "placement/topology/read_topology.h"
#include "placement/topology/topology_text.h"

namespace refract::placement {
namespace {

// Whether the kernel lets this process bind memory; tried on a page.
absl::Status CanBindMemory(int numa_node) {
  const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return absl::ResourceExhaustedError("mmap of a page");
  const absl::Status status = base::PreferMemoryOf(numa_node, page, bytes);
  munmap(page, bytes);
  return status;
}

// Binds the calling thread and the threads that it starts.
void BindProcess(const NodeBinding& binding) {
  if (!binding.cpus.empty()) {
    const absl::Status status = base::RunOn(binding.cpus);
    LOG_IF(WARNING, !status.ok())
        << "topology: threads run on any CPU: " << status.message();
  }
  if (binding.numa_node < 0) return;
  const absl::Status status = base::PreferMemoryOf(binding.numa_node);
  LOG_IF(WARNING, !status.ok())
      << "topology: memory comes from any NUMA node: " << status.message();
}

transport::Locality LocalityOf(const NodeTopology& topology,
                               const NodeBinding& binding) {
  transport::Locality locality;
  locality.cpus = binding.cpus;
  for (const NicChoice& nic : binding.nics) {
    if (!nic.rdma) continue;
    locality.devices.push_back(
        {.name = nic.name,
         .path_gbps = nic.path.gbps,
         .factor = nic.factor,
         .numa_node = topology.is_uniform() ? -1 : nic.numa_node});
  }
  return locality;
}

void LogBinding(const NodeTopology& topology, const NodeBinding& binding) {
  for (const absl::string_view line :
       absl::StrSplit(MatrixText(topology), '\n', absl::SkipEmpty())) {
    LOG(INFO) << "topology: " << line;
  }
  LOG(INFO) << "topology: chosen " << BindingText(binding);
}

}  // namespace

absl::StatusOr<transport::Locality> BindDaemon(
    const DaemonBindingOptions& options) {
  if (options.topology == "off") {
    LOG(INFO) << "topology: off, nothing is bound";
    return transport::Locality();
  }
  TopologySources sources;
  const bool has_override = options.topology != "auto";
  if (has_override) sources.override_file = options.topology;
  const absl::StatusOr<NodeTopology> topology = ReadTopology(sources);
  if (!topology.ok()) {
    // The operator's file must hold; sysfs of a strange machine need not.
    if (has_override) return topology.status();
    LOG(WARNING) << "topology: nothing is bound: "
                 << topology.status().message();
    return transport::Locality();
  }
  const Gpu* gpu = nullptr;
  for (const Gpu& candidate : topology->gpus) {
    if (candidate.pci >= 0 &&
        topology->pci[candidate.pci].address == options.gpu) {
      gpu = &candidate;
    }
  }
  LOG_IF(WARNING, gpu == nullptr && !options.gpu.empty())
      << "topology: sysfs shows no GPU " << options.gpu;
  const auto num_rdma =
      std::count_if(topology->nics.begin(), topology->nics.end(),
                    [](const Nic& nic) { return nic.rdma; });
  // One NUMA node: the only decision left is which of several NICs is nearest
  // to the GPU.
  if (topology->is_uniform() && (gpu == nullptr || num_rdma < 2)) {
    LOG(INFO) << "topology: " << topology->numa_nodes.size()
              << " NUMA node(s), nothing is bound";
    return transport::Locality();
  }
  const std::vector<absl::string_view> rdma_device =
      absl::StrSplit(options.rdma_device, ':');
  const NodeBinding binding =
      Bind(*topology, base::UsableCpus(), gpu, rdma_device.front());
  LogBinding(*topology, binding);
  // A daemon without a GPU keeps all CPUs for its workers: tables lie in the
  // memory of all NUMA nodes.
  if (gpu != nullptr && !topology->is_uniform()) BindProcess(binding);
  // Arenas bind their memory themselves, later. Binding a page now gives a single
  // warning where the kernel forbids it.
  if (const int numa_node = binding.numa_node;
      numa_node >= 0 && !topology->is_uniform()) {
    const absl::Status status = CanBindMemory(numa_node);
    LOG_IF(WARNING, !status.ok())
        << "topology: arenas come from any NUMA node: "
        << status.message();
  }
  return LocalityOf(*topology, binding);
}

}  // namespace refract::placement
