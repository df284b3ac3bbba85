#ifndef REFRACT_CPU_NODE_FRONTEND_NODE_STATUS_H_
#define REFRACT_CPU_NODE_FRONTEND_NODE_STATUS_H_

#include "cpu_node/engine.h"
#include "proto/node_status.grpc.pb.h"

namespace refract::cpu_node {

// proto/node_status.proto on top of an Engine. Thread-safe.
class NodeStatusService final
    : public proto::NodeStatus::WithRawCallbackMethod_GpuNodes<
          proto::NodeStatus::Service> {
 public:
  // `engine` must outlive every call.
  explicit NodeStatusService(const Engine* engine) : engine_(*engine) {}

  grpc::ServerUnaryReactor* GpuNodes(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* answer) override;

 private:
  const Engine& engine_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_NODE_STATUS_H_
