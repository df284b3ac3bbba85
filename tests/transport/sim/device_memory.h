#ifndef REFRACT_TESTS_TRANSPORT_SIM_DEVICE_MEMORY_H_
#define REFRACT_TESTS_TRANSPORT_SIM_DEVICE_MEMORY_H_

// Memory of a device that is not there: bytes in a file, which RDMA devices are
// given as DMA-BUF, at an address where this process has nothing, so that a
// processor that touches it dies.

#include <glog/logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/memory/device_memory.h"
#include "transport/loop/fd.h"

namespace refract::transport::sim {

class FileDeviceMemory final : public DeviceMemory {
 public:
  static constexpr uintptr_t kAddress = uintptr_t{1} << 46;

  // `offset` of the memory in the buffer.
  explicit FileDeviceMemory(size_t bytes, uint64_t offset = 0)
      : bytes_(bytes),
        offset_(offset),
        fd_(memfd_create("device memory", MFD_CLOEXEC)) {
    PCHECK(fd_.valid());
    PCHECK(ftruncate(fd_.get(), static_cast<off_t>(offset + bytes)) == 0);
  }

  std::byte* data() const override {
    return reinterpret_cast<std::byte*>(kAddress + offset_ % 4096 + misplaced);
  }
  size_t size() const override { return bytes_; }
  int dmabuf_fd() const override { return fd_.get(); }
  uint64_t dmabuf_offset() const override { return offset_; }
  RemoteWrites remote_writes() const override { return writes; }
  absl::Status Flush() override {
    ++flushes;
    return flush_status;
  }

  // What the device sees from `begin` on, a place in data().
  std::string Read(const std::byte* begin, size_t bytes) const {
    std::string out(bytes, '\0');
    const auto at = static_cast<off_t>(offset_) + (begin - data());
    PCHECK(pread(fd_.get(), out.data(), bytes, at) ==
           static_cast<ssize_t>(bytes));
    return out;
  }

  RemoteWrites writes{.ordering = RemoteWriteOrdering::kOwner};
  absl::Status flush_status;
  std::atomic<int> flushes = 0;
  uintptr_t misplaced = 0;

 private:
  const size_t bytes_;
  const uint64_t offset_;
  const UniqueFd fd_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_SIM_DEVICE_MEMORY_H_
