#ifndef REFRACT_TRANSPORT_MEMORY_DEVICE_MEMORY_H_
#define REFRACT_TRANSPORT_MEMORY_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace refract::transport {

// For whom writes that come from other devices over the bus are ordered, so
// that who learns of a later one sees the earlier ones. CUDA's
// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING has these values.
enum class RemoteWriteOrdering { kNone, kOwner, kAllDevices };

// How memory of a device takes what RDMA devices write to it.
struct RemoteWrites {
  RemoteWriteOrdering ordering = RemoteWriteOrdering::kNone;
  // The bytes take another way to the device than completions take to host
  // memory (C2C links, Data Direct), so no ordering holds between the two.
  bool split_ways = false;
  // DeviceMemory::Flush works. CUDA: the host bit of
  // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS.
  bool can_flush = false;
};

// Whether the bytes of a transfer that completed may still be on their way to
// the device, unseen by what it runs from then on, until Flush. The completion
// lies in host memory and says nothing about other memory: NVIDIA devices order
// such writes for themselves from compute capability 9.0 on.
inline bool NeedsFlush(const RemoteWrites& writes) {
  return writes.ordering == RemoteWriteOrdering::kNone || writes.split_ways;
}

// Memory of another device, such as a GPU, that is exported as a DMA-BUF, so
// that RDMA devices can transfer to it directly. Implemented with the device's
// own runtime, which nothing here needs. Its destructor frees the memory.
// Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Where the device's programs find it. The processor must not touch it.
  virtual std::byte* data() const = 0;
  virtual size_t size() const = 0;  // bytes, above 0
  // The buffer that it lies in, open as long as this lives, and the place of
  // data() in it: both have the same offset in a page of 4 KiB.
  virtual int dmabuf_fd() const = 0;
  virtual uint64_t dmabuf_offset() const = 0;

  virtual RemoteWrites remote_writes() const = 0;
  // When it returns, the device sees all bytes of transfers that completed
  // before. Called on polling threads, once per message, where NeedsFlush;
  // CUDA: cuFlushGPUDirectRDMAWrites, some microseconds.
  virtual absl::Status Flush() = 0;
};

// Whether transfers may end in it. InvalidArgument: it is not as above says.
// FailedPrecondition: what lands there could stay unseen. (A read back through
// the RDMA device would help as well. It is not done: drivers that export
// DMA-BUFs, from R515 on, all have the flush, which is older.)
absl::Status CheckDeviceMemory(const DeviceMemory& memory);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MEMORY_DEVICE_MEMORY_H_
