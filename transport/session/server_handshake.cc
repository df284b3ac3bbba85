#include <poll.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/loop/socket.h"
#include "transport/paths/path_setup.h"
#include "transport/paths/paths.h"
#include "transport/session/handshake.h"
#include "transport/session/identity.h"

namespace refract::transport {
namespace {

constexpr size_t kTokenBytes = 16;

absl::Status CheckHello(const proto::Hello& hello) {
  REFRACT_RETURN_IF_ERROR(CheckPeerLimits(hello.limits()));
  if (hello.models_size() > kMaxModelOffers) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello with ", hello.models_size(), " model offers"));
  }
  for (const proto::OfferedModel& model : hello.models()) {
    if (model.name().size() > kMaxModelNameBytes) {
      return absl::InvalidArgumentError("hello with an overlong model name");
    }
    for (const proto::ModelSetting& setting : model.settings().settings()) {
      if (setting.name().size() > kMaxSettingBytes ||
          setting.value().size() > kMaxSettingBytes) {
        return absl::InvalidArgumentError(
            "hello with an overlong setting of a model");
      }
    }
  }
  if (!hello.client().empty() && hello.client().size() != kClientBytes) {
    return absl::InvalidArgumentError("hello with a client id of bad length");
  }
  return absl::OkStatus();
}

// The state of one server handshake.
class ServerAttempt {
 public:
  ServerAttempt(const ServerHandshakeContext& context, SessionSocket session,
                absl::Time deadline, std::shared_ptr<ThreadWaker> waker,
                const Wait& wait)
      : context_(context),
        options_(context.options),
        session_(std::move(session)),
        deadline_(deadline),
        waker_(std::move(waker)),
        wait_(wait),
        token_(RandomToken(kTokenBytes)) {}

  absl::StatusOr<Established> Run(const SessionFrame& frame) {
    context_.broker->Open(token_, waker_);
    const auto close =
        absl::MakeCleanup([this] { context_.broker->Close(token_); });
    REFRACT_RETURN_IF_ERROR(Answer(frame));
    std::unique_ptr<PathSetup> setup;
    // Bounded, so a client cannot keep us making regions.
    int tries = reply_.paths_size() + kMorePathStarts;
    while (true) {
      REFRACT_ASSIGN_OR_RETURN(const SessionFrame next, NextFrame(setup.get()));
      if (next.kind == FrameKind::kPathStart && tries-- > 0) {
        setup.reset();
        REFRACT_RETURN_IF_ERROR(StartPath(next, &setup));
      } else if (next.kind == FrameKind::kReady && setup != nullptr) {
        const absl::Status probe = setup->AwaitProbe(
            ClientProbe(token_), wait_,
            std::min(deadline_, options_.clock->Now() + kProbeTimeout));
        if (probe.ok()) return Finish(*setup);
        if (absl::IsCancelled(probe)) return probe;
        setup.reset();
        REFRACT_RETURN_IF_ERROR(ReplyPath(probe, nullptr));
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("unexpected frame of kind ",
                         static_cast<int>(next.kind), " in the handshake"));
      }
    }
  }

 private:
  // The next frame. Meanwhile answers the client's probe through `setup` (may
  // be null) with the own one: the client can receive it only once it has
  // connected its end, which its own probe proves.
  absl::StatusOr<SessionFrame> NextFrame(PathSetup* setup) {
    while (true) {
      REFRACT_ASSIGN_OR_RETURN(std::optional<SessionFrame> frame,
                               TryFrame(session_));
      if (frame.has_value()) return *std::move(frame);
      // poll(2) skips negative descriptors.
      std::array<pollfd, 2> fds = {
          {{session_.fd(), FrameEvents(session_), 0}, {-1, POLLIN, 0}}};
      bool sleep = true;
      if (setup != nullptr && setup->awaits_probe()) {
        sleep = setup->Arm();
        fds[1].fd = setup->fd();
      }
      if (sleep) {
        REFRACT_RETURN_IF_ERROR(wait_.For(absl::MakeSpan(fds), deadline_));
      }
      if (setup != nullptr) setup->AnswerProbe(ServerProbe(token_));
    }
  }

  absl::Status Refuse(const absl::Status& why) {
    proto::HelloReply refusal;
    *refusal.mutable_status() = ToWire(why, kMaxStatusTextBytes);
    // The client may be gone; the reason is returned either way.
    session_.Send(FrameKind::kHelloReply, refusal).IgnoreError();
    return why;
  }

  absl::Status Answer(const SessionFrame& frame) {
    if (absl::Status status = ParseBody(frame, "hello", &hello_);
        !status.ok()) {
      return Refuse(status);
    }
    if (absl::Status status = CheckHello(hello_); !status.ok()) {
      return Refuse(status);
    }
    in_flight_ = std::min(options_.limits.max_in_flight,
                          static_cast<int>(hello_.limits().max_in_flight()));
    *reply_.mutable_identity() = LocalIdentity();
    reply_.mutable_identity()->set_process(context_.process);
    reply_.set_features(kFeatures);
    reply_.set_heartbeat_interval_us(
        absl::ToInt64Microseconds(options_.heartbeat_interval));
    ChoosePaths();
    if (reply_.paths().empty()) {
      return Refuse(absl::FailedPreconditionError(
          "no transport is common to client and server"));
    }
    *reply_.mutable_limits() = AnnouncedLimits(options_.limits, in_flight_);
    for (const proto::OfferedModel& model : hello_.models()) {
      ModelOffer offer;
      offer.name = model.name();
      offer.version = model.version();
      offer.model = {model.model().low(), model.model().high()};
      offer.schema = {model.schema().low(), model.schema().high()};
      if (model.has_settings()) {
        offer.settings.emplace();
        for (const proto::ModelSetting& setting : model.settings().settings()) {
          offer.settings->emplace_back(setting.name(), setting.value());
        }
      }
      const absl::StatusOr<size_t> id = context_.handler->OnOffer(offer);
      verdicts_.push_back(id.status());
      model_ids_.push_back(id.ok() ? *id : 0);
      *reply_.add_models() = ToWire(id.status(), kMaxVerdictTextBytes);
    }
    reply_.set_liveness_timeout_us(
        absl::ToInt64Microseconds(options_.liveness_timeout));
    reply_.set_token(token_);
    reply_.set_unix_socket(context_.unix_socket);
    return session_.Send(FrameKind::kHelloReply, reply_);
  }

  void ChoosePaths() {
    const bool local = !context_.unix_socket.empty() &&
                       CanShareMemory(hello_.identity(), LocalIdentity());
    for (const proto::TransportPath path : context_.paths) {
      const bool wanted =
          std::find(hello_.paths().begin(), hello_.paths().end(), path) !=
          hello_.paths().end();
      const bool reachable = local || AttachmentOf(path) != Attachment::kUnix;
      if (wanted && reachable) reply_.add_paths(path);
    }
  }

  absl::Status ReplyPath(const absl::Status& status, const PathSetup* setup) {
    proto::PathReply reply;
    *reply.mutable_status() = ToWire(status, kMaxStatusTextBytes);
    if (setup != nullptr) {
      reply.set_slots(setup->slots_descriptor());
      reply.set_source(setup->source_descriptor());
    }
    return session_.Send(FrameKind::kPathReply, reply);
  }

  // An error is the end of the session. A path that does not work is told to
  // the client, and `setup` stays empty.
  absl::Status StartPath(const SessionFrame& frame,
                         std::unique_ptr<PathSetup>* setup) {
    proto::PathStart start;
    REFRACT_RETURN_IF_ERROR(ParseBody(frame, "path start", &start));
    // Only a path without a connection of its own can start from several
    // addresses.
    const int most = AttachmentOf(start.path()) == Attachment::kNone
                         ? 1 + kMorePathStarts
                         : 1;
    if (++starts_[start.path()] > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("path ", PathName(start.path()), " started too often"));
    }
    absl::StatusOr<std::unique_ptr<PathSetup>> made = MakeSetup(start);
    if (absl::IsCancelled(made.status())) return made.status();
    if (!made.ok()) return ReplyPath(made.status(), nullptr);
    *setup = *std::move(made);
    return ReplyPath(absl::OkStatus(), setup->get());
  }

  absl::StatusOr<std::unique_ptr<PathSetup>> MakeSetup(
      const proto::PathStart& start) {
    if (std::find(reply_.paths().begin(), reply_.paths().end(), start.path()) ==
        reply_.paths().end()) {
      return absl::InvalidArgumentError("a path that was not offered");
    }
    const absl::Time deadline =
        std::min(deadline_, options_.clock->Now() + kProbeTimeout);
    UniqueFd socket;
    while (AttachmentOf(start.path()) != Attachment::kNone) {
      socket = context_.broker->Take(token_, start.path());
      if (socket.valid()) break;
      // Only the waker (the broker's), a hang-up or the deadline end this.
      pollfd hang_up = {session_.fd(), 0, 0};
      REFRACT_RETURN_IF_ERROR(wait_.For(absl::MakeSpan(&hang_up, 1), deadline));
      if (hang_up.revents != 0) {
        return absl::UnavailableError("the client is gone");
      }
    }
    if (AttachmentOf(start.path()) == Attachment::kTcp) {
      TuneSocket(socket.get(), options_.liveness_timeout);
    }
    REFRACT_ASSIGN_OR_RETURN(
        std::unique_ptr<PathSetup> setup,
        PathSetup::Create(start.path(), std::move(socket), start.slots(),
                          options_.limits, reply_.limits(), context_.link_waker,
                          context_.resources));
    REFRACT_RETURN_IF_ERROR(
        setup->ImportPeer(start.slots(), start.source(), hello_.limits()));
    return setup;
  }

  absl::StatusOr<Established> Finish(PathSetup& setup) {
    REFRACT_RETURN_IF_ERROR(session_.Send(FrameKind::kReady, proto::Ready()));
    Established established;
    setup.Finish(hello_.epoch(), MessageKind::kRequest, &established);
    established.session = std::move(session_);
    established.peer = hello_.identity().node();
    const HeartbeatTimes heartbeats = AgreeOnHeartbeats(
        options_.heartbeat_interval, options_.liveness_timeout,
        hello_.heartbeat_interval_us(), hello_.liveness_timeout_us(),
        hello_.features());
    established.heartbeat_interval = heartbeats.interval;
    established.suspect_after = heartbeats.suspect_after;
    established.client = hello_.client();
    established.oldest_live_epoch = hello_.oldest_live_epoch();
    established.max_in_flight = in_flight_;
    established.models = std::move(verdicts_);
    established.model_ids = std::move(model_ids_);
    established.takes_model_states =
        (hello_.features() & proto::FEATURE_MODEL_STATES) != 0;
    return established;
  }

  const ServerHandshakeContext& context_;
  const ServerOptions& options_;
  SessionSocket session_;
  const absl::Time deadline_;
  const std::shared_ptr<ThreadWaker> waker_;
  const Wait& wait_;
  const std::string token_;
  proto::Hello hello_;
  proto::HelloReply reply_;
  int in_flight_ = 1;
  absl::flat_hash_map<int, int> starts_;  // by path
  std::vector<absl::Status> verdicts_;
  std::vector<size_t> model_ids_;
};

}  // namespace

absl::StatusOr<Established> ServerHandshake(
    const ServerHandshakeContext& context, SessionSocket session,
    const SessionFrame& hello, absl::Time deadline,
    std::shared_ptr<ThreadWaker> waker, const Wait& wait) {
  return ServerAttempt(context, std::move(session), deadline, std::move(waker),
                       wait)
      .Run(hello);
}

}  // namespace refract::transport
