#include "transport/verbs/device/dmabuf.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace refract::transport::verbs {

absl::Status DmabufProbeStatus(absl::string_view device, int error) {
  switch (error) {
    case EBADF:
      return absl::OkStatus();
    case EOPNOTSUPP:
      return absl::UnimplementedError(
          absl::StrCat("the driver of ", device, " takes no DMA-BUFs"));
    case EPROTONOSUPPORT:
    case ENOTTY:
      return absl::UnimplementedError(absl::StrCat(
          "this kernel passes no DMA-BUFs to RDMA devices (", device, ")"));
    default:
      return absl::InternalError(absl::StrCat(
          "asking ", device, " for DMA-BUFs: ",
          error == 0 ? "descriptor -1 was taken" : std::strerror(error)));
  }
}

}  // namespace refract::transport::verbs
