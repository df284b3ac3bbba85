#include "base/process/affinity.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace refract::base {
namespace {

// The kernel's limit: CONFIG_NODES_SHIFT is 10 at most.
constexpr int kMaxNumaNodes = 1024;
constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

struct NodeMask {
  explicit NodeMask(int numa_node) {
    words[numa_node / kBitsPerWord] |= 1UL << (numa_node % kBitsPerWord);
  }
  std::array<unsigned long, kMaxNumaNodes / kBitsPerWord> words = {};
  // The kernel reads one bit less than it is told.
  static constexpr unsigned long kBits = kMaxNumaNodes + 1;
};

absl::Status PolicyStatus(long result, const char* call, int numa_node) {
  if (result == 0) return absl::OkStatus();
  const int error = errno;
  return absl::FailedPreconditionError(absl::StrCat(
      call, " for NUMA node ", numa_node, ": ", std::strerror(error),
      error == EPERM ? " (containers need CAP_SYS_NICE)" : ""));
}

absl::Status CheckNode(int numa_node) {
  if (numa_node >= 0 && numa_node < kMaxNumaNodes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("there is no NUMA node ", numa_node));
}

}  // namespace

std::vector<int> UsableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int NumUsableCpus() {
  return std::max(1, static_cast<int>(UsableCpus().size()));
}

absl::Status RunOn(absl::Span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  // The kernel ignores CPUs that do not exist, unless none is left.
  if (sched_setaffinity(0, sizeof(set), &set) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sched_setaffinity: ", std::strerror(errno)));
}

absl::Status PreferMemoryOf(int numa_node) {
  if (const absl::Status status = CheckNode(numa_node); !status.ok()) {
    return status;
  }
  const NodeMask mask(numa_node);
  return PolicyStatus(syscall(SYS_set_mempolicy, MPOL_PREFERRED,
                              mask.words.data(), NodeMask::kBits),
                      "set_mempolicy", numa_node);
}

absl::Status PreferMemoryOf(int numa_node, void* begin, size_t bytes) {
  if (const absl::Status status = CheckNode(numa_node); !status.ok()) {
    return status;
  }
  const NodeMask mask(numa_node);
  return PolicyStatus(syscall(SYS_mbind, begin, bytes, MPOL_PREFERRED,
                              mask.words.data(), NodeMask::kBits, 0),
                      "mbind", numa_node);
}

}  // namespace refract::base
