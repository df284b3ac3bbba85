#include "base/memory/large_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace refract::base {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// Rounding up to reserved pages then costs at most 3 %.
constexpr size_t kMinReserved = size_t{64} << 20;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

void* Map(size_t bytes, int flags) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LargeMemory>> LargeMemory::Allocate(
    size_t bytes, Pages pages) {
  std::unique_ptr<LargeMemory> memory(new LargeMemory);
  memory->bytes_ = bytes;
  if (bytes == 0) return memory;
  if (pages == Pages::kHuge && bytes >= kMinReserved) {
    // Fails where the pool has too few pages: mmap() reserves all of them.
    const size_t mapped = RoundUp(bytes, kHugePage);
    // 21: log2 of 2 MiB.
    void* const data = Map(mapped, MAP_HUGETLB | (21 << MAP_HUGE_SHIFT));
    if (data != MAP_FAILED) {
      memory->data_ = static_cast<std::byte*>(data);
      memory->mapped_ = mapped;
      memory->reserved_ = true;
      return memory;
    }
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = RoundUp(bytes, page);
  // Room for the alignment; what lies before and behind is given back below.
  void* const room = Map(mapped + kHugePage, 0);
  if (room == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "mmap of ", bytes, " bytes of memory: ", std::strerror(errno)));
  }
  // Transparent huge pages need addresses that are multiples of their size.
  auto* const begin = static_cast<std::byte*>(room);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t before = RoundUp(address, kHugePage) - address;
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) {
    munmap(begin + before + mapped, kHugePage - before);
  }
  memory->data_ = begin + before;
  memory->mapped_ = mapped;
  madvise(memory->data_, mapped,
          pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return memory;
}

LargeMemory::~LargeMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

void LargeMemory::MakeReadOnly() {
  if (data_ != nullptr) mprotect(data_, mapped_, PROT_READ);
}

size_t LargeMemory::HugeBytes() const {
  if (reserved_) return mapped_;
  const auto first = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t last = first + mapped_;
  // An area begins with a line "7f12…-7f13… r--p …"; its fields follow as
  // "Name:  N kB".
  std::ifstream file("/proc/self/smaps");
  bool within = false;
  size_t huge = 0;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin,
                    &end) == 2) {
      within = begin < last && end > first;
    } else if (within && std::sscanf(line.c_str(), "AnonHugePages: %zu kB",
                                     &kib) == 1) {
      huge += kib * 1024;
    }
  }
  // The kernel may have joined the area with a neighbour.
  return std::min(huge, mapped_);
}

}  // namespace refract::base
