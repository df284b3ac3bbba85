#include "tools/transport_bench/message_subject.h"

#include <poll.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "tools/transport_bench/connect.h"
#include "tools/transport_bench/message_limits.h"
#include "tools/transport_bench/pattern.h"
#include "tools/transport_bench/waiter.h"
#include "transport/endpoint.h"
#include "transport/path_setup.h"
#include "transport/paths.h"

namespace refract::transport_bench {
namespace {

using transport::MessageHeader;
using transport::MessageKind;

constexpr absl::string_view kProbe[] = {"bench initiator", "bench responder"};
constexpr uint64_t kEpoch = 1;

class MessageSession : public Session, public transport::MessageSink {
 public:
  MessageSession(std::unique_ptr<transport::PathResources> resources,
                 transport::Established established, Side side)
      : resources_(std::move(resources)),
        side_(side),
        peer_(side == Side::kInitiator ? Side::kResponder : Side::kInitiator),
        memory_(established.setup.memory),
        endpoint_(established.path.get(), std::move(established.setup), this),
        path_(std::move(established.path)) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    received_ = 0;
    if (side_ == Side::kResponder) {
      REFRACT_RETURN_IF_ERROR(
          Until([this] { return received_ == work_.iterations; }));
    } else {
      REFRACT_RETURN_IF_ERROR(Initiate(recorder));
    }
    REFRACT_RETURN_IF_ERROR(Until([this] { return endpoint_.all_sent(); }));
    return LastCredits();
  }

  absl::Status OnMessage(const MessageHeader& header, absl::string_view,
                         transport::IncomingMessage::ImplPtr message) override {
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
  absl::Status OnRefused(const MessageHeader&,
                         const absl::Status& why) override {
    return why;  // nothing here has a deadline
  }

 private:
  // The peer may still wait for credits of what it had pulled here: one round
  // posts them and the next hands them to the path's system call.
  absl::Status LastCredits() {
    for (int round = 0; round < 2; ++round) {
      int worked = 0;
      int heard = 0;
      REFRACT_RETURN_IF_ERROR(
          endpoint_.Progress(clock_.Now(), &worked, &heard));
    }
    return absl::OkStatus();
  }

  absl::Status Initiate(Recorder& recorder) {
    const bool stream = work_.point.op == Op::kStream;
    const int window = stream ? work_.outstanding : 1;
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      REFRACT_RETURN_IF_ERROR(
          SendOne(MessageKind::kRequest, i, work_.point.bytes));
      REFRACT_RETURN_IF_ERROR(
          Until([&] { return i + 1 - received_ < window; }));
      if (!stream) recorder.Lap();
    }
    REFRACT_RETURN_IF_ERROR(
        Until([this] { return received_ == work_.iterations; }));
    recorder.Stop();
    return absl::OkStatus();
  }

  absl::Status SendOne(MessageKind kind, int i, size_t bytes) {
    REFRACT_ASSIGN_OR_RETURN(
        transport::OutgoingMessage::ImplPtr message,
        transport::NewMessage(memory_, kind, MessageSpecs(bytes)));
    if (work_.verify && bytes > 0) {
      std::byte* payload =
          message->block.data() + message->layout.payload_begin;
      FillPattern({payload, bytes}, work_.seed, side_, i);
    }
    endpoint_.Send(std::move(message), static_cast<uint64_t>(i),
                   absl::InfiniteFuture());
    return absl::OkStatus();
  }

  absl::Status Check(const transport::IncomingMessage::Impl& message,
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

  template <typename Condition>
  absl::Status Until(Condition done) {
    while (!done()) {
      int worked = 0;
      int heard = 0;
      REFRACT_RETURN_IF_ERROR(
          endpoint_.Progress(clock_.Now(), &worked, &heard));
      if (worked > 0) {
        waiter_.Worked();
        continue;
      }
      if (work_.point.mode != Mode::kEvent) {
        REFRACT_RETURN_IF_ERROR(waiter_.Idle());
        continue;
      }
      if (!path_->Arm()) continue;
      pollfd fd = {path_->fd(), POLLIN, 0};
      if (poll(&fd, 1, Waiter::kPatienceSeconds * 1000) == 0) {
        return absl::DeadlineExceededError("the peer does not answer");
      }
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<transport::PathResources> resources_;
  const Side side_;
  const Side peer_;
  const std::shared_ptr<transport::LinkMemory> memory_;
  base::Clock& clock_ = base::Clock::Real();
  Work work_;
  Waiter waiter_;
  int received_ = 0;
  transport::Endpoint endpoint_;
  const std::unique_ptr<transport::DataPath> path_;  // goes before endpoint_
};

// What the handshake does, without its socket.
absl::StatusOr<transport::Established> Establish(
    proto::TransportPath path, const transport::Limits& limits,
    const Setup& setup, Connection& connection) {
  REFRACT_RETURN_IF_ERROR(transport::CheckLimits(limits));
  const proto::ReceiveLimits announced =
      transport::AnnouncedLimits(limits, limits.max_in_flight);
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<transport::PathSetup> paths,
                           transport::PathSetup::Create(
                               path, std::move(connection.socket),
                               /*peer=*/"", limits, announced, connection.waker,
                               connection.resources.get()));
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

class MessageLevel : public Subject {
 public:
  MessageLevel(proto::TransportPath path, std::string rdma_device,
               size_t eager_bytes)
      : path_(path),
        rdma_device_(std::move(rdma_device)),
        eager_bytes_(eager_bytes) {}

  bool Supports(const Point& point) const override {
    return point.mode != Mode::kAdaptive && point.op != Op::kGet &&
           point.op != Op::kGetStream;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    REFRACT_ASSIGN_OR_RETURN(Connection connection,
                             ConnectPath(setup, path_, rdma_device_));
    REFRACT_ASSIGN_OR_RETURN(
        transport::Established established,
        Establish(path_, LimitsFor(setup.work, eager_bytes_), setup,
                  connection));
    return std::make_unique<MessageSession>(std::move(connection.resources),
                                            std::move(established), setup.side);
  }

 private:
  const proto::TransportPath path_;
  const std::string rdma_device_;
  const size_t eager_bytes_;
};

}  // namespace

std::unique_ptr<Subject> MessageSubject(proto::TransportPath path,
                                        const std::string& rdma_device,
                                        size_t eager_bytes) {
  return std::make_unique<MessageLevel>(path, rdma_device, eager_bytes);
}

}  // namespace refract::transport_bench
