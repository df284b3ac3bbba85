#ifndef REFRACT_CPU_NODE_FRONTEND_NODE_STATUS_H_
#define REFRACT_CPU_NODE_FRONTEND_NODE_STATUS_H_

#include "cpu_node/engine.h"
#include "cpu_node/security/access.h"
#include "proto/node_status.grpc.pb.h"

namespace refract::cpu_node {

// Serves proto/node_status.proto from an Engine. Thread-safe.
class NodeStatusService final
    : public proto::NodeStatus::WithRawCallbackMethod_GpuNodes<
          proto::NodeStatus::Service> {
 public:
  // `engine` and `access`, which may be null, must outlive every call.
  NodeStatusService(const Engine* engine, const AccessControl* access)
      : engine_(*engine), access_(access) {}

  grpc::ServerUnaryReactor* GpuNodes(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* answer) override;

 private:
  const Engine& engine_;
  const AccessControl* const access_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_NODE_STATUS_H_
