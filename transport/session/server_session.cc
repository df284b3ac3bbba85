#include "transport/session/server_session.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/loop/socket.h"
#include "transport/session/handshake.h"

namespace refract::transport {

absl::StatusOr<std::unique_ptr<ServerSession>> ServerSession::Start(
    ServerShared* shared, const Pollers& pollers, UniqueFd socket, bool local) {
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<ThreadWaker> waker,
                           ThreadWaker::Create());
  std::unique_ptr<ServerSession> session(new ServerSession(
      shared, pollers, std::move(socket), local, std::move(waker)));
  session->thread_ = std::thread([raw = session.get()] { raw->Run(); });
  return session;
}

ServerSession::ServerSession(ServerShared* shared, const Pollers& pollers,
                             UniqueFd socket, bool local,
                             std::shared_ptr<ThreadWaker> waker)
    : shared_(shared),
      pollers_(pollers),
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
    ++shared_->refused;
    shared_->log.Warn(host_, "connection refused", status);
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
  return Handshake(std::move(session), *first, deadline);
}

absl::Status ServerSession::Handshake(SessionSocket session,
                                      const SessionFrame& hello,
                                      absl::Time deadline) {
  ConnectionCount count(shared_);
  const ServerOptions& options = shared_->options;
  // Not before the hello: data sockets come this way too, and have longer to be
  // acknowledged, because a receiver may be slow to make room.
  TuneSocket(session.fd(), options.ack_timeout);
  const bool crowded = count.number() > options.max_connections;
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
  ServerPoller& poller = **std::min_element(
      pollers_.begin(), pollers_.end(),
      [](const auto& a, const auto& b) { return a->load() < b->load(); });
  REFRACT_ASSIGN_OR_RETURN(PollLoop::Seat seat, poller.Reserve());
  const ServerHandshakeContext context{
      options,        shared_->handler,     &shared_->broker,
      shared_->paths, shared_->unix_socket, shared_->process,
      seat.waker(),   poller.resources()};
  REFRACT_ASSIGN_OR_RETURN(Established established,
                           ServerHandshake(context, std::move(session), hello,
                                           deadline, waker_, wait_));
  ++shared_->accepted;
  LOG(INFO) << "client " << host_ << " (" << established.peer
            << ") connected over " << established.path_name;
  ClientRegistry::Entry entry =
      shared_->clients.Add(established.client, established.epoch,
                           established.oldest_live_epoch, seat.waker());
  poller.Add(std::move(seat), std::make_unique<ServerLink>(
                                  shared_, host_, std::move(count),
                                  std::move(entry), std::move(established)));
  return absl::OkStatus();
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

}  // namespace refract::transport
