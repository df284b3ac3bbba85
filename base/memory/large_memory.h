#ifndef REFRACT_BASE_MEMORY_LARGE_MEMORY_H_
#define REFRACT_BASE_MEMORY_LARGE_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace refract::base {

// Anonymous memory for gigabytes that are read at random places. Huge pages
// (2 MiB) save most of the address translations of such reads. They come from
// the pool that the administrator reserved (vm.nr_hugepages) where it has
// enough, else from the kernel's transparent huge pages, which it gives as far
// as it has them.
//
// Thread-safe once made. Pages are taken from the system on their first write.
class LargeMemory {
 public:
  enum class Pages { kHuge, kSmall };

  // Zeros. The address is a multiple of 2 MiB; the memory taken is `bytes`
  // rounded up to a page (to 2 MiB from the reserved pool, which is used from
  // 64 MiB on). ResourceExhausted: the system refuses.
  static absl::StatusOr<std::unique_ptr<LargeMemory>> Allocate(
      size_t bytes, Pages pages = Pages::kHuge);
  ~LargeMemory();
  LargeMemory(const LargeMemory&) = delete;
  LargeMemory& operator=(const LargeMemory&) = delete;

  absl::Span<std::byte> bytes() const { return {data_, bytes_}; }
  // Writes end the process from here on.
  void MakeReadOnly();
  // Bytes that lie in huge pages now. Reads /proc/self/smaps, which takes
  // milliseconds.
  size_t HugeBytes() const;

 private:
  LargeMemory() = default;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t mapped_ = 0;
  bool reserved_ = false;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_MEMORY_LARGE_MEMORY_H_
