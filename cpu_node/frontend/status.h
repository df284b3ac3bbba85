#ifndef REFRACT_CPU_NODE_FRONTEND_STATUS_H_
#define REFRACT_CPU_NODE_FRONTEND_STATUS_H_

#include "absl/status/status.h"
#include "base/shorten.h"
#include "grpcpp/support/status.h"

namespace refract::cpu_node {

// Both types have the same codes with the same numbers (google.rpc.Code). The
// text is cut to a length that clients take as metadata, whatever it quotes.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(
      static_cast<grpc::StatusCode>(status.code()),
      base::Shorten(status.message(), base::kMaxStatusTextBytes));
}

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_STATUS_H_
