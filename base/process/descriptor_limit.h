#ifndef REFRACT_BASE_PROCESS_DESCRIPTOR_LIMIT_H_
#define REFRACT_BASE_PROCESS_DESCRIPTOR_LIMIT_H_

#include <cstdint>

namespace refract::base {

// Raises the limit of open file descriptors (RLIMIT_NOFILE) from its soft to
// its hard value, and returns the limit in force. The soft value is often 1024,
// for programs that use select(2); a node has several descriptors per
// connection. Call at the start of main().
uint64_t RaiseDescriptorLimit();

// The limit in force.
uint64_t DescriptorLimit();

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_DESCRIPTOR_LIMIT_H_
