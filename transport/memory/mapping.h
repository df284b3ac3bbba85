#ifndef REFRACT_TRANSPORT_MEMORY_MAPPING_H_
#define REFRACT_TRANSPORT_MEMORY_MAPPING_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace refract::transport {

// Owns an mmap. Its size and place never change; its bytes do.
class Mapping {
 public:
  // Private zeroed pages, committed on first touch. ResourceExhausted when
  // there is no address space.
  static absl::StatusOr<std::shared_ptr<const Mapping>> Anonymous(size_t bytes);
  // Memory that devices will pin: on 2 MiB pages if the system has reserved
  // such pages, else if it can make them, else on small pages; not inherited by
  // forked children, which could otherwise take over the pages that a device
  // writes to. Zeroed. Pages come from NUMA node `numa_node` while it has free
  // pages, if the kernel allows it; negative: from any node. ResourceExhausted
  // as above.
  static absl::StatusOr<std::shared_ptr<const Mapping>> ForDevices(
      size_t bytes, int numa_node = -1);
  // The first `bytes` of `fd`, shared. The caller must ensure that the file is
  // that long and stays so (an access past its end would kill the process).
  static absl::StatusOr<std::shared_ptr<const Mapping>> Shared(int fd,
                                                               size_t bytes,
                                                               bool writable);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool Contains(const std::byte* begin, size_t bytes) const {
    return begin >= data_ && bytes <= size_ &&
           static_cast<size_t>(begin - data_) <= size_ - bytes;
  }

 private:
  Mapping(std::byte* data, size_t size, size_t mapped)
      : data_(data), size_(size), mapped_(mapped) {}
  static absl::StatusOr<std::shared_ptr<const Mapping>> Map(size_t bytes,
                                                            int protection,
                                                            int flags, int fd);
  std::byte* const data_;
  const size_t size_;
  const size_t mapped_;  // size_ rounded up to whole pages
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MEMORY_MAPPING_H_
