#ifndef REFRACT_BASE_PROCESS_AFFINITY_H_
#define REFRACT_BASE_PROCESS_AFFINITY_H_

// CPUs of threads and NUMA nodes of memory, by system calls, without
// libnuma.

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace refract::base {

// CPUs that the calling thread may use, ascending: in a container fewer than
// the machine has. Empty when the kernel does not say.
std::vector<int> UsableCpus();
// Their number, at least 1.
int NumUsableCpus();

// Binds the calling thread, and threads that it starts later, to `cpus`.
// InvalidArgument: none of them exists or is allowed.
absl::Status RunOn(absl::Span<const int> cpus);

// Pages first touched by the calling thread, or by threads that it starts
// later, come from NUMA node `numa_node` while that node has free pages.
// FailedPrecondition: the kernel has no such node, or forbids the call
// (containers without CAP_SYS_NICE).
absl::Status PreferMemoryOf(int numa_node);

// As above, for the pages of [begin, begin + bytes), whichever thread touches
// them. `begin` must be the start of a page.
absl::Status PreferMemoryOf(int numa_node, void* begin, size_t bytes);

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_AFFINITY_H_
