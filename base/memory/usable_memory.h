#ifndef REFRACT_BASE_MEMORY_USABLE_MEMORY_H_
#define REFRACT_BASE_MEMORY_USABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace refract::base {

// Bytes of memory that this process may use: the machine's, or the smallest
// limit of its control groups (v2 memory.max, v1 memory.limit_in_bytes) if that
// is less, as in a container. `root` stands for "/" and contains proc/meminfo,
// proc/self/cgroup and sys/fs/cgroup. 0: unknown.
uint64_t UsableMemory(const std::string& root = "/");

// Bytes that this process may allocate beyond its present memory: the machine's
// MemAvailable, or less where a control group's limit leaves less; at least 1.
// 0: unknown.
uint64_t AvailableMemory(const std::string& root = "/");

// Bytes of files that this process has mapped and that are in memory (RssFile of
// proc/self/status). AvailableMemory() counts them as available, because the
// kernel can drop them. 0: unknown.
uint64_t MappedFileMemory(const std::string& root = "/");

}  // namespace refract::base

#endif  // REFRACT_BASE_MEMORY_USABLE_MEMORY_H_
