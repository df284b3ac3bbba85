#ifndef REFRACT_CPU_NODE_FRONTEND_CALL_H_
#define REFRACT_CPU_NODE_FRONTEND_CALL_H_

// Helpers of the gRPC services' calls.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cpu_node/frontend/status.h"
#include "cpu_node/security/access.h"
#include "grpcpp/support/server_callback.h"

namespace refract::cpu_node {

// Ends the call with `status`.
inline grpc::ServerUnaryReactor* FinishCall(
    grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// The first value of the client's metadata `name`; empty: none.
inline absl::string_view Metadata(const grpc::CallbackServerContext& context,
                                  const char* name) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(name);
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

// AccessControl::Check(); `control` may be null.
inline absl::Status CheckAccess(const AccessControl* control, Access access,
                                const grpc::CallbackServerContext& context) {
  if (control == nullptr) return absl::OkStatus();
  return control->Check(access, Metadata(context, "authorization"));
}

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_CALL_H_
