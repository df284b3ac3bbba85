#include "transport/memory/device_memory.h"

#include "absl/strings/str_cat.h"

namespace refract::transport {

absl::Status CheckDeviceMemory(const DeviceMemory& memory) {
  constexpr uint64_t kPageBytes = 4096;
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  if (memory.size() == 0 || memory.dmabuf_fd() < 0 ||
      address % kPageBytes != memory.dmabuf_offset() % kPageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("device memory of ", memory.size(), " B at offset ",
                     memory.dmabuf_offset(), " of DMA-BUF ", memory.dmabuf_fd(),
                     ", address ", absl::Hex(address, absl::kZeroPad16)));
  }
  const RemoteWrites writes = memory.remote_writes();
  if (NeedsFlush(writes) && !writes.can_flush) {
    return absl::FailedPreconditionError(
        "the device neither orders the writes of RDMA devices nor can flush "
        "them: what lands in its memory could stay unseen");
  }
  return absl::OkStatus();
}

}  // namespace refract::transport
