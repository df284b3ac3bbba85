#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_DMABUF_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_DMABUF_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace refract::transport::verbs {

// What the errno of registering DMA-BUF -1 with `device` says about the call:
// who gets as far as looking at the descriptor (EBADF) has it. OK;
// Unimplemented: the provider (EOPNOTSUPP) or the kernel (EPROTONOSUPPORT, or
// ENOTTY from before that interface) has not; Internal: nothing known.
// NCCL and UCX ask in the same way.
absl::Status DmabufProbeStatus(absl::string_view device, int error);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_DMABUF_H_
