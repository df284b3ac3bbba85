#include "tools/transport_bench/message_flow.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/transport_bench/connect.h"
#include "tools/transport_bench/message_limits.h"
#include "tools/transport_bench/pattern.h"
#include "transport/paths/path_setup.h"

namespace refract::transport_bench {
namespace {

using transport::MessageHeader;
using transport::MessageKind;

constexpr absl::string_view kProbe[] = {"bench initiator", "bench responder"};
constexpr uint64_t kEpoch = 1;

absl::StatusOr<transport::Established> Establish(
    proto::TransportPath path, const transport::Limits& limits,
    const Setup& setup, Connection& connection,
    transport::PathResources* resources) {
  REFRACT_RETURN_IF_ERROR(transport::CheckLimits(limits));
  const proto::ReceiveLimits announced =
      transport::AnnouncedLimits(limits, limits.max_in_flight);
  REFRACT_ASSIGN_OR_RETURN(
      const std::unique_ptr<transport::PathSetup> paths,
      transport::PathSetup::Create(path, std::move(connection.socket),
                                   /*peer=*/"", limits, announced,
                                   connection.waker, resources));
  REFRACT_ASSIGN_OR_RETURN(const std::string slots,
                           setup.control->Exchange(paths->slots_descriptor()));
  REFRACT_ASSIGN_OR_RETURN(const std::string source,
                           setup.control->Exchange(paths->source_descriptor()));
  // Both sides announce the same.
  REFRACT_RETURN_IF_ERROR(paths->ImportPeer(slots, source, announced));
  // Neither may post before the other has imported.
  REFRACT_RETURN_IF_ERROR(setup.control->Exchange("imported").status());
  const bool initiator = setup.side == Side::kInitiator;
  REFRACT_RETURN_IF_ERROR(paths->PostProbe(kProbe[initiator ? 0 : 1]));
  base::Clock& clock = base::Clock::Real();
  const transport::Wait wait{*connection.waker, clock,
                             [] { return absl::OkStatus(); }};
  REFRACT_RETURN_IF_ERROR(paths->AwaitProbe(kProbe[initiator ? 1 : 0], wait,
                                            clock.Now() + absl::Seconds(10)));
  transport::Established established;
  paths->Finish(kEpoch,
                initiator ? MessageKind::kResponse : MessageKind::kRequest,
                &established);
  // Neither may send a message while the other still waits for its probe.
  REFRACT_RETURN_IF_ERROR(setup.control->Exchange("ready").status());
  return established;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MessageFlow>> MessageFlow::Open(
    proto::TransportPath path, const std::string& rdma_device,
    size_t eager_bytes, const Setup& setup, const Work& work,
    std::shared_ptr<transport::PathResources> shared) {
  REFRACT_ASSIGN_OR_RETURN(Connection connection,
                           ConnectPath(setup, path, rdma_device));
  if (shared == nullptr) shared = std::move(connection.resources);
  REFRACT_ASSIGN_OR_RETURN(transport::Established established,
                           Establish(path, LimitsFor(work, eager_bytes), setup,
                                     connection, shared.get()));
  return std::unique_ptr<MessageFlow>(
      new MessageFlow(std::move(shared), std::move(established), setup.side));
}

MessageFlow::MessageFlow(std::shared_ptr<transport::PathResources> resources,
                         transport::Established established, Side side)
    : resources_(std::move(resources)),
      side_(side),
      peer_(side == Side::kInitiator ? Side::kResponder : Side::kInitiator),
      memory_(established.setup.memory),
      endpoint_(established.path.get(), std::move(established.setup), this),
      path_(std::move(established.path)) {}

void MessageFlow::Begin(const Work& work) {
  work_ = work;
  received_ = 0;
}

absl::Status MessageFlow::Step(int* worked) {
  int heard = 0;
  return endpoint_.Progress(clock_.Now(), worked, &heard);
}

absl::Status MessageFlow::LastCredits() {
  // One round posts them and the next hands them to the path's system call.
  for (int round = 0; round < 2; ++round) {
    int worked = 0;
    REFRACT_RETURN_IF_ERROR(Step(&worked));
  }
  return absl::OkStatus();
}

absl::Status MessageFlow::OnMessage(
    const MessageHeader& header, absl::string_view,
    transport::IncomingMessage::ImplPtr message) {
  ++received_;
  const bool request = side_ == Side::kResponder;
  const size_t answer_bytes =
      work_.point.op == Op::kPingPong ? work_.point.bytes : 0;
  REFRACT_RETURN_IF_ERROR(
      Check(*message, header.id, request ? work_.point.bytes : answer_bytes));
  if (!request) return absl::OkStatus();
  // Its slot goes back with the response.
  message.reset();
  return SendOne(MessageKind::kResponse, static_cast<int>(header.id),
                 answer_bytes);
}

absl::Status MessageFlow::OnRefused(const MessageHeader&,
                                    const absl::Status& why) {
  return why;  // nothing here has a deadline
}

absl::Status MessageFlow::SendOne(MessageKind kind, int i, size_t bytes) {
  REFRACT_ASSIGN_OR_RETURN(
      transport::OutgoingMessage::ImplPtr message,
      transport::NewMessage(memory_, kind, MessageSpecs(bytes)));
  if (work_.verify && bytes > 0) {
    std::byte* payload = message->block.data() + message->layout.payload_begin;
    FillPattern({payload, bytes}, work_.seed, side_, i);
  }
  endpoint_.Send(std::move(message), static_cast<uint64_t>(i),
                 absl::InfiniteFuture());
  return absl::OkStatus();
}

absl::Status MessageFlow::Check(const transport::IncomingMessage::Impl& message,
                                uint64_t id, size_t bytes) {
  const size_t got =
      message.tensors.empty() ? 0 : message.tensors.front().bytes;
  if (got != bytes) {
    return absl::DataLossError(
        absl::StrCat("message ", id, " has ", got, " B instead of ", bytes));
  }
  if (!work_.verify || bytes == 0) return absl::OkStatus();
  return CheckPattern(
      {static_cast<const std::byte*>(message.tensors.front().data), bytes},
      work_.seed, peer_, id);
}

}  // namespace refract::transport_bench
