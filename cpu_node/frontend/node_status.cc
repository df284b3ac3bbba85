#include "cpu_node/frontend/node_status.h"

#include "cpu_node/frontend/call.h"
#include "cpu_node/frontend/message.h"

namespace refract::cpu_node {

grpc::ServerUnaryReactor* NodeStatusService::GpuNodes(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer*,  // the request has no fields
    grpc::ByteBuffer* answer) {
  const absl::Status allowed = CheckAccess(access_, Access::kClient, *context);
  if (!allowed.ok()) return FinishCall(context, allowed);
  proto::GpuNodesResponse response;
  const NodePool& nodes = engine_.nodes();
  const auto offers = nodes.offers();
  for (const NodePool::Member& member : nodes.Members()) {
    const transport::ClientState& state = member.state;
    proto::GpuNodeLink& link = *response.add_nodes();
    link.set_address(member.address);
    link.set_leaving(member.leaving);
    link.set_connected(state.connected);
    link.set_path(state.path);
    link.set_requests_sent(state.messages_sent);
    link.set_bytes_sent(state.bytes_sent);
    link.set_bytes_received(state.bytes_received);
    for (size_t m = 0; m < offers.size(); ++m) {
      if (!offers[m].has_value()) continue;
      const absl::Status status =
          m < state.models.size()
              ? state.models[m]
              : absl::UnavailableError("the CPU node is stopping");
      proto::GpuNodeModel& model = *link.add_models();
      model.set_name(offers[m]->name);
      model.set_version(offers[m]->version);
      model.set_ready(state.connected && status.ok());
      if (!model.ready()) model.set_why(std::string(status.message()));
    }
  }
  WriteMessage(response, *answer);
  return FinishCall(context, absl::OkStatus());
}

}  // namespace refract::cpu_node
