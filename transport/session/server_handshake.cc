#include "transport/session/server_handshake.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/loop/socket.h"
#include "transport/paths/paths.h"
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
    REFRACT_RETURN_IF_ERROR(CheckOfferedModel(model));
  }
  if (!hello.client().empty() && hello.client().size() != kClientBytes) {
    return absl::InvalidArgumentError("hello with a client id of bad length");
  }
  return absl::OkStatus();
}

bool HasHungUp(int fd) {
  // Without events, poll(2) reports errors and hang-ups alone.
  pollfd look = {fd, 0, 0};
  return poll(&look, 1, 0) > 0;
}

}  // namespace

ServerHandshake::ServerHandshake(const ServerHandshakeContext& context,
                                 SessionSocket session, SessionFrame hello,
                                 absl::Time deadline,
                                 std::shared_ptr<Waker> waker)
    : context_(context),
      options_(context.options),
      session_(std::move(session)),
      deadline_(deadline),
      token_(RandomToken(kTokenBytes)),
      hello_frame_(std::move(hello)),
      held_(context.handler) {
  context_.broker->Open(token_, std::move(waker));
}

ServerHandshake::~ServerHandshake() { context_.broker->Close(token_); }

// A state machine that never blocks: answer the hello; for each PathStart wait
// for the data socket and make the path (start_); answer the client's probe;
// after Ready compare the probes (probing_); and end with the first path that
// works. A path that fails leaves the session for the client's next PathStart.
absl::StatusOr<std::optional<Established>> ServerHandshake::Step(
    absl::Time now) {
  if (hello_frame_.has_value()) {
    REFRACT_RETURN_IF_ERROR(Answer(*std::exchange(hello_frame_, std::nullopt)));
    // Bounded, so a client cannot make this side create regions without end.
    starts_left_ = reply_.paths_size() + kMorePathStarts;
  }
  if (now >= deadline_) {
    return absl::DeadlineExceededError("the peer did not answer in time");
  }
  // Frames are few: paths may be started only a few times, and any other frame
  // ends the handshake or this loop.
  while (true) {
    if (start_.has_value()) {
      REFRACT_ASSIGN_OR_RETURN(const bool done, ContinuePath(now));
      if (!done) return std::nullopt;
    }
    if (probing_) {
      REFRACT_ASSIGN_OR_RETURN(const bool done, ContinueProbe(now));
      if (!done) return std::nullopt;
      if (probed_) return Finish();
    }
    REFRACT_ASSIGN_OR_RETURN(const std::optional<SessionFrame> frame,
                             TryFrame(session_));
    if (!frame.has_value()) {
      // The client can receive the server's probe only once it has connected
      // its end, which the client's probe proves.
      if (setup_ != nullptr) setup_->AnswerProbe(ServerProbe(token_));
      return std::nullopt;
    }
    REFRACT_RETURN_IF_ERROR(OnFrame(*frame, now));
  }
}

bool ServerHandshake::Arm(std::vector<pollfd>* fds) {
  bool sleep = true;
  if (setup_ != nullptr && (probing_ || setup_->awaits_probe())) {
    sleep = setup_->Arm();
    fds->push_back({setup_->fd(), POLLIN, 0});
  }
  // Frames are read when the present step of the handshake has ended.
  if (!probing_) {
    fds->push_back({session_.fd(),
                    start_.has_value() ? short{0} : FrameEvents(session_), 0});
  }
  return sleep;
}

absl::Time ServerHandshake::next_timer() const {
  return std::min(deadline_, step_deadline_);
}

absl::Status ServerHandshake::OnFrame(const SessionFrame& frame,
                                      absl::Time now) {
  if (frame.kind == FrameKind::kPathStart && starts_left_-- > 0) {
    setup_.reset();
    return StartPath(frame, now);
  }
  if (frame.kind == FrameKind::kReady && setup_ != nullptr) {
    probing_ = true;
    step_deadline_ = std::min(deadline_, now + kProbeTimeout);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("unexpected frame of kind ",
                                                 static_cast<int>(frame.kind),
                                                 " in the handshake"));
}

absl::Status ServerHandshake::Refuse(const absl::Status& why) {
  proto::HelloReply refusal;
  *refusal.mutable_status() = ToWire(why, kMaxStatusTextBytes);
  // The client may be gone; the reason is returned either way.
  session_.Send(FrameKind::kHelloReply, refusal).IgnoreError();
  return why;
}

absl::Status ServerHandshake::Answer(const SessionFrame& frame) {
  if (absl::Status status = ParseBody(frame, "hello", &hello_); !status.ok()) {
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
  const bool takes_offers = (hello_.features() & proto::FEATURE_OFFERS) != 0;
  for (const proto::OfferedModel& model : hello_.models()) {
    const absl::StatusOr<size_t> id =
        context_.handler->OnOffer(FromProto(model));
    if (id.ok()) held_.Add(*id);
    verdicts_.push_back(id.status());
    model_ids_.push_back(id.ok() ? *id : 0);
    // A client that takes the first verdict as final learns states later.
    told_.push_back(id.ok() && takes_offers && context_.models != nullptr
                        ? context_.models->Of(*id)
                        : id.status());
    *reply_.add_models() = ToWire(told_.back(), kMaxVerdictTextBytes);
  }
  reply_.set_liveness_timeout_us(
      absl::ToInt64Microseconds(options_.liveness_timeout));
  reply_.set_token(token_);
  reply_.set_unix_socket(context_.unix_socket);
  return session_.Send(FrameKind::kHelloReply, reply_);
}

void ServerHandshake::ChoosePaths() {
  const bool local = !context_.unix_socket.empty() &&
                     CanShareMemory(hello_.identity(), LocalIdentity());
  for (const proto::TransportPath path : context_.paths) {
    const bool wanted = std::find(hello_.paths().begin(), hello_.paths().end(),
                                  path) != hello_.paths().end();
    const bool reachable = local || AttachmentOf(path) != Attachment::kUnix;
    if (wanted && reachable) reply_.add_paths(path);
  }
}

absl::Status ServerHandshake::ReplyPath(const absl::Status& status,
                                        const PathSetup* setup) {
  proto::PathReply reply;
  *reply.mutable_status() = ToWire(status, kMaxStatusTextBytes);
  if (setup != nullptr) {
    reply.set_slots(setup->slots_descriptor());
    reply.set_source(setup->source_descriptor());
  }
  return session_.Send(FrameKind::kPathReply, reply);
}

absl::Status ServerHandshake::StartPath(const SessionFrame& frame,
                                        absl::Time now) {
  proto::PathStart start;
  REFRACT_RETURN_IF_ERROR(ParseBody(frame, "path start", &start));
  // Only a path without a connection of its own can start from several
  // addresses.
  const int most =
      AttachmentOf(start.path()) == Attachment::kNone ? 1 + kMorePathStarts : 1;
  if (++starts_[start.path()] > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("path ", PathName(start.path()), " started too often"));
  }
  if (std::find(reply_.paths().begin(), reply_.paths().end(), start.path()) ==
      reply_.paths().end()) {
    return ReplyPath(absl::InvalidArgumentError("a path that was not offered"),
                     nullptr);
  }
  start_ = std::move(start);
  step_deadline_ = std::min(deadline_, now + kProbeTimeout);
  return absl::OkStatus();
}

// An error ends the session. If only the path does not work, the client is
// told, and `setup_` stays empty.
absl::StatusOr<bool> ServerHandshake::ContinuePath(absl::Time now) {
  Stream socket;
  absl::Status missing;
  if (AttachmentOf(start_->path()) != Attachment::kNone) {
    socket = context_.broker->Take(token_, start_->path());
    if (!socket.valid()) {
      if (HasHungUp(session_.fd())) {
        return absl::UnavailableError("the client is gone");
      }
      if (now < step_deadline_) return false;
      missing = absl::DeadlineExceededError("the data socket did not come");
    }
  }
  step_deadline_ = absl::InfiniteFuture();
  if (missing.ok()) {
    absl::StatusOr<std::unique_ptr<PathSetup>> made =
        MakeSetup(std::move(socket));
    missing = made.status();
    if (made.ok()) setup_ = *std::move(made);
  }
  start_.reset();
  REFRACT_RETURN_IF_ERROR(ReplyPath(missing, setup_.get()));
  return true;
}

absl::StatusOr<std::unique_ptr<PathSetup>> ServerHandshake::MakeSetup(
    Stream socket) {
  if (AttachmentOf(start_->path()) == Attachment::kTcp) {
    TuneSocket(socket.fd(), options_.liveness_timeout);
  }
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<PathSetup> setup,
      PathSetup::Create(start_->path(), std::move(socket), start_->slots(),
                        options_.limits, reply_.limits(), context_.link_waker,
                        context_.resources));
  REFRACT_RETURN_IF_ERROR(
      setup->ImportPeer(start_->slots(), start_->source(), hello_.limits()));
  return setup;
}

absl::StatusOr<bool> ServerHandshake::ContinueProbe(absl::Time now) {
  const absl::StatusOr<bool> taken = setup_->TakeProbe(ClientProbe(token_));
  absl::Status failed = taken.status();
  if (taken.ok() && !*taken) {
    if (now < step_deadline_) return false;
    failed = absl::DeadlineExceededError("the client's probe did not come");
  }
  step_deadline_ = absl::InfiniteFuture();
  probing_ = false;
  probed_ = failed.ok();
  if (probed_) return true;
  setup_.reset();
  REFRACT_RETURN_IF_ERROR(ReplyPath(failed, nullptr));
  return true;
}

absl::StatusOr<Established> ServerHandshake::Finish() {
  REFRACT_RETURN_IF_ERROR(session_.Send(FrameKind::kReady, proto::Ready()));
  Established established;
  setup_->Finish(hello_.epoch(), MessageKind::kRequest, &established);
  established.session = std::move(session_);
  established.peer = hello_.identity().node();
  const HeartbeatTimes heartbeats =
      AgreeOnHeartbeats(options_.heartbeat_interval, options_.liveness_timeout,
                        hello_.heartbeat_interval_us(),
                        hello_.liveness_timeout_us(), hello_.features());
  established.heartbeat_interval = heartbeats.interval;
  established.suspect_after = heartbeats.suspect_after;
  established.client = hello_.client();
  established.oldest_live_epoch = hello_.oldest_live_epoch();
  established.max_in_flight = in_flight_;
  established.models = std::move(verdicts_);
  established.model_ids = std::move(model_ids_);
  established.told = std::move(told_);
  established.held = std::move(held_);
  established.takes_offers = (hello_.features() & proto::FEATURE_OFFERS) != 0;
  established.takes_model_states =
      (hello_.features() & proto::FEATURE_MODEL_STATES) != 0;
  return established;
}

}  // namespace refract::transport
