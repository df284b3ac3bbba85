#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "tools/transport_meter/control.h"
#include "tools/transport_meter/levels.h"
#include "tools/transport_meter/pattern.h"
#include "transport/links/link.h"
#include "transport/loop/round_clock.h"
#include "transport/messages/endpoint.h"
#include "transport/paths/path_resources.h"
#include "transport/paths/path_setup.h"

namespace refract::transport_meter {
namespace {

using transport::Established;
using transport::IncomingMessage;
using transport::MessageHeader;
using transport::MessageKind;
using transport::PathResources;

constexpr absl::string_view kProbe[] = {"bench initiator", "bench responder"};
constexpr uint64_t kEpoch = 1;
// Bytes of header and table of a message with one tensor, and a margin.
constexpr size_t kMessageOverhead = 256;

// The handshake without its socket. Both sides call it.
absl::StatusOr<Established> Establish(const PathSpec& spec,
                                      const transport::Limits& limits,
                                      const Setup& setup,
                                      Connection& connection,
                                      PathResources* resources) {
  REFRACT_RETURN_IF_ERROR(transport::CheckLimits(limits));
  const proto::ReceiveLimits announced =
      transport::AnnouncedLimits(limits, limits.max_in_flight);
  REFRACT_ASSIGN_OR_RETURN(
      const std::unique_ptr<transport::PathSetup> path,
      transport::PathSetup::Create(spec.path, std::move(connection.socket),
                                   /*peer=*/"", limits, announced,
                                   connection.waker, resources));
  REFRACT_ASSIGN_OR_RETURN(const std::string slots,
                           setup.control->Exchange(path->slots_descriptor()));
  REFRACT_ASSIGN_OR_RETURN(const std::string source,
                           setup.control->Exchange(path->source_descriptor()));
  // Both sides announce the same.
  REFRACT_RETURN_IF_ERROR(path->ImportPeer(slots, source, announced));
  // Neither side may post before the other has imported.
  REFRACT_RETURN_IF_ERROR(setup.control->Exchange("imported").status());
  const bool initiator = setup.side == Side::kInitiator;
  REFRACT_RETURN_IF_ERROR(path->PostProbe(kProbe[initiator ? 0 : 1]));
  base::Clock& clock = base::Clock::Real();
  const transport::Wait wait{*connection.waker, clock,
                             [] { return absl::OkStatus(); }};
  REFRACT_RETURN_IF_ERROR(path->AwaitProbe(kProbe[initiator ? 1 : 0], wait,
                                           clock.Now() + absl::Seconds(10)));
  Established established;
  path->Finish(kEpoch,
               initiator ? MessageKind::kResponse : MessageKind::kRequest,
               &established);
  // Neither side may send a message while the other waits for its probe.
  REFRACT_RETURN_IF_ERROR(setup.control->Exchange("ready").status());
  return established;
}

// One connection of the message layer: the initiator sends requests, the
// responder answers each as soon as it arrives.
class Flow : public transport::MessageSink {
 public:
  // `resources` may be shared by the flows of one thread.
  Flow(std::shared_ptr<PathResources> resources, Established established,
       Side side)
      : resources_(std::move(resources)),
        side_(side),
        memory_(established.setup.memory),
        endpoint_(established.path.get(), std::move(established.setup), this),
        path_(std::move(established.path)) {}

  transport::DataPath& path() { return *path_; }
  // Number of messages of this run that arrived.
  int received() const { return received_; }
  bool all_sent() const { return endpoint_.all_sent(); }

  // Starts counting at 0.
  void Begin(const Work& work) {
    work_ = work;
    received_ = 0;
    specs_ = MessageSpecs(work.point.bytes);
  }
  absl::Status SendRequest(int i) {
    return Send(MessageKind::kRequest, static_cast<uint64_t>(i),
                work_.point.bytes);
  }
  // One round of progress. DataLoss: a message has wrong contents.
  absl::Status Step(absl::Time now, int* worked) {
    int heard = 0;
    return endpoint_.Progress(now, worked, &heard);
  }

  absl::Status OnMessage(const MessageHeader& header, absl::string_view,
                         IncomingMessage::ImplPtr message) override {
    ++received_;
    const bool request = side_ == Side::kResponder;
    const size_t answer_bytes =
        work_.point.op == Op::kPingPong ? work_.point.bytes : 0;
    REFRACT_RETURN_IF_ERROR(
        Check(*message, header.id, request ? work_.point.bytes : answer_bytes));
    if (!request) return absl::OkStatus();
    // The request's slot is released with the response.
    message.reset();
    return Send(MessageKind::kResponse, header.id, answer_bytes);
  }
  absl::Status OnRefused(const MessageHeader&,
                         const absl::Status& why) override {
    return why;  // no message here has a deadline
  }

 private:
  absl::Status Send(MessageKind kind, uint64_t id, size_t bytes) {
    REFRACT_ASSIGN_OR_RETURN(
        transport::OutgoingMessage::ImplPtr message,
        transport::NewMessage(memory_, kind,
                              absl::MakeSpan(specs_).first(bytes > 0 ? 1 : 0)));
    if (work_.verify && bytes > 0) {
      FillPattern(
          {message->block.data() + message->layout.payload_begin, bytes},
          work_.seed, side_, id);
    }
    endpoint_.Send(std::move(message), id, absl::InfiniteFuture());
    return absl::OkStatus();
  }
  absl::Status Check(const IncomingMessage::Impl& message, uint64_t id,
                     size_t bytes) {
    const size_t got =
        message.tensors.empty() ? 0 : message.tensors.front().bytes;
    if (got != bytes) {
      return absl::DataLossError(
          absl::StrCat("message ", id, " has ", got, " B instead of ", bytes));
    }
    if (!work_.verify || bytes == 0) return absl::OkStatus();
    return CheckPattern(
        {static_cast<const std::byte*>(message.tensors.front().data), bytes},
        work_.seed, OtherSide(side_), id);
  }

  const std::shared_ptr<PathResources> resources_;
  const Side side_;
  const std::shared_ptr<transport::LinkMemory> memory_;
  Work work_;
  std::vector<base::TensorSpec> specs_;  // of a payload of work_.point.bytes
  int received_ = 0;
  transport::Endpoint endpoint_;
  const std::unique_ptr<transport::DataPath> path_;  // goes before endpoint_
};

// One flow, or the flows of a fan-in, which take turns.
class MessageSession : public Session {
 public:
  MessageSession(std::vector<std::unique_ptr<Flow>> flows, Side side)
      : flows_(std::move(flows)), side_(side) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    for (const auto& flow : flows_) flow->Begin(work);
    if (side_ == Side::kInitiator) {
      REFRACT_RETURN_IF_ERROR(SendRequests(recorder));
    }
    REFRACT_RETURN_IF_ERROR(
        Until([this] { return received() == work_.iterations; }));
    recorder.Stop();
    REFRACT_RETURN_IF_ERROR(Until([this] {
      return std::all_of(flows_.begin(), flows_.end(),
                         [](const auto& flow) { return flow->all_sent(); });
    }));
    // The peer may still wait for credits of messages that were pulled here:
    // one round posts them, the next round hands them to the path's system
    // call.
    for (int round = 0; round < 2; ++round) {
      int worked = 0;
      REFRACT_RETURN_IF_ERROR(Round(&worked));
    }
    return absl::OkStatus();
  }

 private:
  // As PollLoop's.
  absl::Status Round(int* worked) {
    for (const auto& flow : flows_) {
      REFRACT_RETURN_IF_ERROR(flow->Step(clock_.Now(), worked));
    }
    clock_.EndRound(*worked > 0);
    return absl::OkStatus();
  }

  absl::Status SendRequests(Recorder& recorder) {
    const bool stream = IsStream(work_.point.op);
    const auto count = static_cast<int>(flows_.size());
    const int depth = stream ? std::max(1, work_.outstanding / count) : 1;
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      Flow& flow = *flows_[static_cast<size_t>(i % count)];
      // Requests of this flow before request i.
      const int earlier = i / count;
      REFRACT_RETURN_IF_ERROR(
          Until([&] { return earlier - flow.received() < depth; }));
      REFRACT_RETURN_IF_ERROR(flow.SendRequest(i));
      if (stream) continue;
      REFRACT_RETURN_IF_ERROR(Until([&] { return flow.received() > i; }));
      recorder.Lap();
    }
    return absl::OkStatus();
  }

  int received() const {
    int sum = 0;
    for (const auto& flow : flows_) sum += flow->received();
    return sum;
  }

  template <typename Condition>
  absl::Status Until(Condition done) {
    while (!done()) {
      int worked = 0;
      REFRACT_RETURN_IF_ERROR(Round(&worked));
      if (worked > 0) {
        waiter_.Worked();
      } else if (work_.point.mode != Mode::kEvent) {
        REFRACT_RETURN_IF_ERROR(waiter_.Idle());
      } else if (flows_.front()->path().Arm()) {
        // Only a single flow works in mode event.
        REFRACT_RETURN_IF_ERROR(Waiter::Sleep(flows_.front()->path().fd()));
        clock_.Forget();
      }
    }
    return absl::OkStatus();
  }

  const std::vector<std::unique_ptr<Flow>> flows_;
  const Side side_;
  transport::RoundClock clock_{&base::Clock::Real()};
  Work work_;
  Waiter waiter_;
};

class MessageSubject : public Subject {
 public:
  MessageSubject(const PathSpec& spec, bool fan_in, int flows)
      : spec_(spec), fan_in_(fan_in), flows_(flows) {}

  bool Supports(const Point& point) const override {
    if (fan_in_) return point.op == Op::kFanIn && point.mode == Mode::kBusy;
    return point.mode != Mode::kAdaptive &&
           (point.op == Op::kPingPong || point.op == Op::kPull ||
            point.op == Op::kStream);
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    Work each = setup.work;
    if (fan_in_) each.outstanding = std::max(1, each.outstanding / flows_);
    std::vector<std::unique_ptr<Flow>> flows;
    std::shared_ptr<PathResources> resources;
    for (int i = 0; i < flows_; ++i) {
      REFRACT_ASSIGN_OR_RETURN(
          Connection connection,
          ConnectPath(setup, spec_.path, spec_.rdma_device));
      if (resources == nullptr) resources = std::move(connection.resources);
      REFRACT_ASSIGN_OR_RETURN(
          Established established,
          Establish(spec_, LimitsFor(each, spec_.eager_bytes), setup,
                    connection, resources.get()));
      flows.push_back(std::make_unique<Flow>(resources, std::move(established),
                                             setup.side));
    }
    return std::make_unique<MessageSession>(std::move(flows), setup.side);
  }

 private:
  const PathSpec spec_;
  const bool fan_in_;
  const int flows_;
};

}  // namespace

transport::Limits LimitsFor(const Work& work, size_t eager_bytes) {
  const size_t message = std::max(Stride(work.point.bytes) + kMessageOverhead,
                                  transport::kMinSlotBytes);
  transport::Limits limits;
  limits.eager_bytes = work.point.op == Op::kPull
                           ? kMessageOverhead
                           : eager_bytes + kMessageOverhead;
  limits.max_message_bytes = message;
  // At least the default of nodes, because the frequency of credits depends on
  // it. One more than the requests in flight, because a callback may send the
  // next request before its own request stops counting.
  limits.max_in_flight = std::max(limits.max_in_flight, work.outstanding + 1);
  // Four times the payload in transit: over verbs the arena is a quarter of it.
  limits.source_arena_bytes =
      4 * message * static_cast<size_t>(work.outstanding + 2);
  return limits;
}

std::vector<base::TensorSpec> MessageSpecs(size_t bytes) {
  if (bytes == 0) return {};
  return {{base::DType::kUInt8, {static_cast<int64_t>(bytes)}}};
}

std::unique_ptr<Subject> MessageLevel(const PathSpec& spec, bool fan_in,
                                      int flows) {
  return std::make_unique<MessageSubject>(spec, fan_in, flows);
}

}  // namespace refract::transport_meter
