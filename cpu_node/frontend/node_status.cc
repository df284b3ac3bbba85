#include "cpu_node/frontend/node_status.h"

namespace refract::cpu_node {

grpc::ServerUnaryReactor* NodeStatusService::GpuNodes(
    grpc::CallbackServerContext* context, const proto::GpuNodesRequest*,
    proto::GpuNodesResponse* response) {
  const NodePool& nodes = engine_.nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const transport::ClientState state = nodes.StateOf(i);
    proto::GpuNodeLink& link = *response->add_nodes();
    link.set_address(nodes.AddressOf(i));
    link.set_connected(state.connected);
    link.set_path(state.path);
    link.set_requests_sent(state.messages_sent);
    link.set_bytes_sent(state.bytes_sent);
    link.set_bytes_received(state.bytes_received);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace refract::cpu_node
