#ifndef REFRACT_BASE_PROCESS_AFFINITY_H_
#define REFRACT_BASE_PROCESS_AFFINITY_H_

// CPUs that threads run on, and NUMA nodes that memory comes from. By system
// calls, without libnuma.

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace refract::base {

// CPUs that the calling thread may use, ascending: in a container fewer than
// the machine has. Empty when the kernel does not say.
std::vector<int> UsableCpus();

// Has the calling thread, and threads that it starts later, run on `cpus`.
// InvalidArgument: none of them is there or allowed.
absl::Status RunOn(absl::Span<const int> cpus);

// Has pages that the calling thread, and threads that it starts later, touch
// first come from NUMA node `numa_node` while that has free pages.
// FailedPrecondition: the kernel has no such node, or forbids the call
// (containers without CAP_SYS_NICE).
absl::Status PreferMemoryOf(int numa_node);

// The same for the pages of [begin, begin + bytes), whichever thread touches
// them. `begin` is at the start of a page.
absl::Status PreferMemoryOf(int numa_node, void* begin, size_t bytes);

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_AFFINITY_H_
