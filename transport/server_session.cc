#include "transport/server_session.h"

#include <glog/logging.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Milliseconds(500);
constexpr absl::Duration kFlushStep = absl::Microseconds(100);

}  // namespace

void PeerLog::Warn(const std::string& host, absl::string_view what,
                   const absl::Status& status) {
  const std::string key =
      absl::StrCat(host, "/", what, "/", static_cast<int>(status.code()));
  const absl::Time now = base::Clock::Real().Now();
  {
    absl::MutexLock lock(&mu_);
    if (last_.size() >= kMaxEntries) last_.clear();
    const auto [entry, fresh] = last_.try_emplace(key, now);
    if (!fresh && now - entry->second < absl::Minutes(1)) return;
    entry->second = now;
  }
  LOG(WARNING) << "peer " << host << ": " << what << ": " << status
               << " (repetitions within a minute are not logged)";
}

absl::StatusOr<std::unique_ptr<ServerSession>> ServerSession::Start(
    ServerShared* shared, UniqueFd socket, bool local) {
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<Waker> waker, Waker::Create());
  std::unique_ptr<ServerSession> session(
      new ServerSession(shared, std::move(socket), local, std::move(waker)));
  session->thread_ = std::thread([raw = session.get()] { raw->Run(); });
  return session;
}

ServerSession::ServerSession(ServerShared* shared, UniqueFd socket, bool local,
                             std::shared_ptr<Waker> waker)
    : shared_(shared),
      socket_(std::move(socket)),
      local_(local),
      waker_(std::move(waker)),
      wait_{*waker_, *shared->options.clock,
            [this] { return CheckStopping(); }},
      host_(PeerHost(socket_.get())) {}

ServerSession::~ServerSession() {
  waker_->Wake();
  thread_.join();
}

absl::Status ServerSession::CheckStopping() const {
  if (shared_->stopping) return absl::CancelledError("the server is stopping");
  return absl::OkStatus();
}

void ServerSession::Run() {
  const absl::Status status = Serve();
  if (!status.ok() && !shared_->stopping) {
    if (!established_) {
      ++shared_->refused;
      shared_->log.Warn(host_, "connection refused", status);
    } else if (absl::IsInvalidArgument(status)) {
      ++shared_->violations;
      shared_->log.Warn(host_, "connection closed, protocol broken", status);
    } else {
      VLOG(1) << "peer " << host_ << ": connection ended: " << status;
    }
  }
  finished_ = true;
  shared_->acceptor->Wake();
}

absl::Status ServerSession::Serve() {
  if (local_ && !SameUser(socket_.get())) {
    return absl::PermissionDeniedError(
        "a process of another user on the unix socket");
  }
  const ServerOptions& options = shared_->options;
  const absl::Time deadline = options.clock->Now() + options.handshake_timeout;
  TuneSession(socket_.get(), options.liveness_timeout);
  SessionSocket session(std::move(socket_));
  absl::StatusOr<SessionFrame> first = AwaitFrame(session, wait_, deadline);
  if (absl::IsFailedPrecondition(first.status())) {
    // Another protocol version: the header is the same in all of them, so the
    // peer can be told.
    proto::HelloReply refusal;
    *refusal.mutable_status() = ToWire(first.status(), kMaxStatusTextBytes);
    session.Send(FrameKind::kHelloReply, refusal).IgnoreError();
  }
  REFRACT_RETURN_IF_ERROR(first.status());
  if (first->kind == FrameKind::kAttach) {
    return Attach(std::move(session), *first);
  }
  if (first->kind != FrameKind::kHello || local_) {
    return absl::InvalidArgumentError("the first frame is not a hello");
  }
  const auto leave = absl::MakeCleanup([this] { --shared_->connections; });
  const bool crowded = ++shared_->connections > options.max_connections;
  if (crowded || shared_->draining) {
    const absl::Status why =
        crowded ? absl::ResourceExhaustedError(
                      absl::StrCat("this node serves its maximum of ",
                                   options.max_connections, " connections"))
                : absl::UnavailableError("this node is stopping");
    proto::HelloReply refusal;
    *refusal.mutable_status() = ToWire(why, kMaxStatusTextBytes);
    session.Send(FrameKind::kHelloReply, refusal).IgnoreError();
    return why;
  }
  const ServerHandshakeContext context{options, shared_->handler,
                                       &shared_->broker, shared_->paths,
                                       shared_->unix_socket};
  REFRACT_ASSIGN_OR_RETURN(Established established,
                           ServerHandshake(context, std::move(session), *first,
                                           deadline, waker_, wait_));
  return RunLink(std::move(established));
}

absl::Status ServerSession::Attach(SessionSocket socket,
                                   const SessionFrame& frame) {
  proto::Attach attach;
  REFRACT_RETURN_IF_ERROR(ParseBody(frame, "attach frame", &attach));
  if (!shared_->broker.Deliver(attach.token(), attach.path(),
                               socket.TakeFd())) {
    return absl::InvalidArgumentError("attach to no session");
  }
  return absl::OkStatus();
}

absl::Status ServerSession::RunLink(Established established) {
  established_ = true;
  ++shared_->accepted;
  LOG(INFO) << "client " << host_ << " (" << established.peer
            << ") connected over " << established.path_name;
  models_ = std::move(established.models);
  model_ids_ = std::move(established.model_ids);
  // A client forgets a request at its deadline while we may still work on it,
  // so more than it may have in flight can be open here, but not without end.
  max_calls_ = 2 * static_cast<size_t>(established.max_in_flight);
  replies_ = std::make_shared<ReplyQueue>(established.setup.memory);
  Link* self = nullptr;
  Link link(
      std::move(established), shared_->options.clock,
      shared_->options.liveness_timeout,
      [this, &self](const MessageHeader& header, std::string,
                    std::unique_ptr<IncomingMessage::Impl> message) {
        return OnRequest(*self, header, std::move(message));
      },
      [this, &self](const SessionFrame& frame) {
        return OnFrame(*self, frame);
      });
  self = &link;
  bool said_goaway = false;
  absl::Status status;
  while (status.ok()) {
    status = CheckStopping();
    if (!status.ok()) break;
    if (shared_->draining && !said_goaway) {
      said_goaway = true;
      status = link.SendFrame(FrameKind::kGoaway, proto::Goaway());
      if (!status.ok()) break;
    }
    SendReplies(link);
    status = link.Step(absl::InfiniteFuture());
  }
  if (shared_->stopping) Flush(link);
  link.SayClose(status);
  for (auto& [id, abandoned] : calls_) abandoned->store(true);
  replies_->Close();
  return status;
}

// What was answered before the server stopped still goes out.
void ServerSession::Flush(Link& link) {
  base::Clock& clock = base::Clock::Real();
  const absl::Time deadline = clock.Now() + kFlushTimeout;
  SendReplies(link);
  while (!link.endpoint().all_sent() && clock.Now() < deadline) {
    // The step must not sleep: the server's own clock may stand still.
    waker_->Wake();
    if (!link.Step(absl::InfiniteFuture()).ok()) return;
    PollUntil({}, clock, clock.Now() + kFlushStep);
  }
}

void ServerSession::SendReplies(Link& link) {
  for (ReplyQueue::Reply& reply : replies_->Take()) {
    const auto call = calls_.find(reply.id);
    const bool wanted = !call->second->load();
    calls_.erase(call);
    if (wanted && reply.message != nullptr) {
      link.endpoint().Send(std::move(reply.message), reply.id,
                           absl::InfiniteFuture());
    }
  }
}

absl::Status ServerSession::OnRequest(
    Link& link, const MessageHeader& header,
    std::unique_ptr<IncomingMessage::Impl> message) {
  if (header.model >= models_.size() || !models_[header.model].ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request for model ", header.model, ", which was not agreed on"));
  }
  auto abandoned = std::make_shared<std::atomic<bool>>(false);
  if (!calls_.try_emplace(header.id, abandoned).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("request id ", header.id, " is already in use"));
  }
  const size_t open = calls_.size() + link.endpoint().num_waiting();
  if (open > 2 * max_calls_) {
    return absl::InvalidArgumentError(
        absl::StrCat("requests go on coming while ", open,
                     " are not answered or their answers not taken"));
  }
  const absl::Time deadline = header.deadline_us == kNoDeadline
                                  ? absl::InfiniteFuture()
                                  : shared_->options.clock->Now() +
                                        absl::Microseconds(header.deadline_us);
  auto call = std::make_unique<ServerCallImpl>(
      header.id, model_ids_[header.model], deadline, std::move(message),
      replies_, std::move(abandoned));
  if (shared_->draining) {
    call->Fail(absl::UnavailableError("this node is stopping"));
    return absl::OkStatus();
  }
  if (open > max_calls_) {
    call->Fail(absl::ResourceExhaustedError(absl::StrCat(
        "more than ", max_calls_, " requests of one client are open here")));
    return absl::OkStatus();
  }
  ++shared_->requests;
  shared_->handler->OnRequest(std::move(call));
  return absl::OkStatus();
}

absl::Status ServerSession::OnFrame(Link& link, const SessionFrame& frame) {
  if (frame.kind != FrameKind::kCancel) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unexpected frame of kind ", static_cast<int>(frame.kind)));
  }
  proto::Cancel cancel;
  REFRACT_RETURN_IF_ERROR(ParseBody(frame, "cancel frame", &cancel));
  link.endpoint().Ignore(cancel.id());
  const auto call = calls_.find(cancel.id());
  if (call != calls_.end()) call->second->store(true);
  return absl::OkStatus();
}

}  // namespace refract::transport
