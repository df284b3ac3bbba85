#include "transport/verbs/device/wc_status.h"

#include "absl/strings/str_cat.h"

namespace refract::transport::verbs {
namespace {

absl::StatusCode CodeOf(ibv_wc_status status, bool port_active) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_FATAL_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return absl::StatusCode::kUnavailable;
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_BAD_RESP_ERR:
      return absl::StatusCode::kInvalidArgument;
    case IBV_WC_LOC_QP_OP_ERR:
      return port_active ? absl::StatusCode::kInternal
                         : absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status StatusOfCompletion(ibv_wc_status status, absl::string_view where,
                                bool port_active) {
  return absl::Status(
      CodeOf(status, port_active),
      absl::StrCat("verbs ", where, " queue pair: ", ibv_wc_status_str(status),
                   " (", static_cast<int>(status), ")",
                   port_active ? "" : "; the local port is down"));
}

}  // namespace refract::transport::verbs
