#ifndef REFRACT_CPU_NODE_FRONTEND_STATUS_H_
#define REFRACT_CPU_NODE_FRONTEND_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace refract::cpu_node {

// Both types have the same codes with the same numbers (google.rpc.Code).
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_STATUS_H_
