#ifndef REFRACT_TOOLS_DOCTOR_MACHINE_H_
#define REFRACT_TOOLS_DOCTOR_MACHINE_H_

// The parts of a machine, read from its file tree.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace refract::tools {

struct RdmaPort {
  std::string name;  // "mlx5_0"
  int port = 1;
  // Empty if unreadable.
  std::string state;       // "4: ACTIVE"
  std::string rate;        // "200 Gb/sec (4X HDR)"
  std::string link_layer;  // "Ethernet" (RoCE) or "InfiniBand"
  bool active() const;
};

struct Machine {
  std::string kernel;  // "6.1.0-18-amd64"; empty when unknown
  std::string cpu;     // "Intel(R) Xeon(R) …"
  int cpus = 0;        // online logical processors that the tree shows
  std::vector<std::string> vector_sets;  // of "avx2", "avx512f", "amx_tile"
  // Size of the largest data cache of the first processor, which other
  // processors may share; 0 when unknown.
  uint64_t cache_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t available_bytes = 0;
  uint64_t huge_pages = 0;  // reserved
  uint64_t huge_page_bytes = 0;
  std::string transparent_huge_pages;  // "always", "madvise" or "never"
  int numa_nodes = 0;
  std::vector<RdmaPort> rdma;  // one per port
  // Programs reach RDMA devices through /dev/infiniband/uverbs*.
  int rdma_device_files = 0;
  std::vector<std::string> gpus;  // model names, or device files
};

// `root` is "/" for this machine, or the top of a dumped tree (proc/, sys/,
// dev/). Missing files leave defaults; nothing fails.
Machine ReadMachine(absl::string_view root);

// A finding for the reader: a fact, and the cost of a missing part.
struct Finding {
  std::string topic;  // "memlock"
  std::string fact;   // "8 MiB"
  bool ok = true;
  std::string cost;  // empty when ok
};

// Optional parts that this program was built with.
struct Build {
  bool verbs = false;
  bool cuda = false;  // GPU nodes execute on CUDA
};

// `memlock_bytes`: RLIMIT_MEMLOCK of this process, nullopt = unlimited.
// `shm_bytes`: free space of /dev/shm. Policy only: reads nothing.
std::vector<Finding> Judge(const Machine& machine, const Build& build,
                           std::optional<uint64_t> memlock_bytes,
                           uint64_t shm_bytes);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_DOCTOR_MACHINE_H_
