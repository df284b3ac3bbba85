#include "transport/server.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "base/tls/tls_contexts.h"
#include "transport/loop/socket.h"
#include "transport/paths/path_setup.h"
#include "transport/paths/paths.h"
#include "transport/session/identity.h"

namespace refract::transport {
namespace {

// A handshake waits for its client most of the time, but registering memory
// with a device blocks its thread for milliseconds.
constexpr size_t kHandshakeThreads = 4;
// More than any NIC can use; guards against mistyped numbers.
constexpr int kMaxPollers = 64;
// Pause after running out of descriptors, so that accepting does not spin.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(20);

Lobby::Options LobbyOptions(const ServerOptions& server) {
  Lobby::Options options;
  options.timeout = std::min(options.timeout, server.handshake_timeout);
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(
    const ServerOptions& options, Handler* handler) {
  REFRACT_RETURN_IF_ERROR(CheckLimits(options.limits));
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port ", options.port));
  }
  if (options.pollers < 1 || options.pollers > kMaxPollers) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.pollers, " pollers; 1 to ", kMaxPollers));
  }
  if (options.max_connections < 1 || options.max_connections_per_host < 1 ||
      options.heartbeat_interval <= absl::ZeroDuration() ||
      options.liveness_timeout <= absl::ZeroDuration() ||
      options.ack_timeout <= absl::ZeroDuration() ||
      options.handshake_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "max_connections, max_connections_per_host and transport timeouts must "
        "be "
        "positive");
  }
  auto shared = std::make_unique<ServerShared>();
  shared->options = options;
  shared->handler = handler;
  REFRACT_ASSIGN_OR_RETURN(shared->paths,
                           PathsFor(options.path, options.rdma_device));
  return ServerImpl::Start(std::move(shared));
}

absl::StatusOr<std::unique_ptr<ServerImpl>> ServerImpl::Start(
    std::unique_ptr<ServerShared> shared) {
  std::unique_ptr<ServerImpl> server(new ServerImpl(std::move(shared)));
  REFRACT_RETURN_IF_ERROR(server->StartAll());
  return server;
}

ServerImpl::ServerImpl(std::unique_ptr<ServerShared> shared)
    : shared_(std::move(shared)),
      lobby_(
          LobbyOptions(shared_->options),
          [this](Lobby::Visitor visitor, absl::StatusOr<SessionFrame> frame) {
            OnFirstFrame(std::move(visitor), std::move(frame));
          }) {}

absl::Status ServerImpl::StartAll() {
  const ServerOptions& options = shared_->options;
  REFRACT_ASSIGN_OR_RETURN(waker_, ThreadWaker::Create());
  REFRACT_ASSIGN_OR_RETURN(Listener tcp,
                           ListenTcp({options.host, options.port}));
  tcp_ = std::move(tcp.fd);
  port_ = tcp.port;
  if (std::any_of(shared_->paths.begin(), shared_->paths.end(),
                  [](proto::TransportPath path) {
                    return AttachmentOf(path) == Attachment::kUnix;
                  })) {
    shared_->unix_socket =
        absl::StrCat("refract-", absl::BytesToHexString(RandomToken(16)));
    REFRACT_ASSIGN_OR_RETURN(local_, ListenUnix(shared_->unix_socket));
  }
  for (int i = 0; i < options.pollers; ++i) {
    REFRACT_ASSIGN_OR_RETURN(pollers_.emplace_back(),
                             ServerPoller::Create(shared_.get()));
  }
  for (const auto& poller : pollers_) REFRACT_RETURN_IF_ERROR(poller->Start());
  for (size_t i = 0; i < kHandshakeThreads; ++i) {
    REFRACT_ASSIGN_OR_RETURN(handshakes_.emplace_back(),
                             HandshakeThread::Create(shared_.get()));
  }
  REFRACT_ASSIGN_OR_RETURN(acceptor_, base::StartThread([this] { Accept(); }));
  return absl::OkStatus();
}

ServerImpl::~ServerImpl() {
  shared_->stopping = true;
  // Null or not started if Start() failed.
  if (waker_ != nullptr) waker_->Wake();
  // All at once, because each may have to wait for clients.
  for (const auto& poller : pollers_) poller->Wake();
  if (acceptor_.joinable()) acceptor_.join();
}

void ServerImpl::SetModelStatus(size_t model, const absl::Status& status) {
  shared_->models.Set(model, status);
  for (const auto& poller : pollers_) poller->WakeLinks();
}

void ServerImpl::AnnounceStop() {
  shared_->draining = true;
  waker_->Wake();
  for (const auto& poller : pollers_) poller->Wake();
}

void ServerImpl::StopAdmitting() {
  shared_->refusing = true;
  AnnounceStop();
}

ServerStats ServerImpl::stats() const {
  ServerStats stats;
  stats.connections = shared_->connections.load();
  stats.accepted = shared_->accepted.load();
  stats.refused = shared_->refused.load();
  stats.violations = shared_->violations.load();
  stats.losses = shared_->losses.load();
  stats.path_failures = shared_->path_failures.load();
  stats.superseded = shared_->superseded.load();
  stats.suspicions = shared_->suspicions.load();
  stats.requests = shared_->requests.load();
  return stats;
}

void ServerImpl::Accept() {
  base::Clock& clock = *shared_->options.clock;
  const auto no_reason = [] { return absl::OkStatus(); };
  const Wait wait{*waker_, clock, no_reason};
  const Wait pause{*waker_, base::Clock::Real(), no_reason};
  std::vector<pollfd> fds;
  while (!shared_->stopping) {
    if (shared_->draining) {
      // Connection attempts are refused from now on instead of waiting in the
      // backlog.
      tcp_.Reset(-1);
      local_.Reset(-1);
    }
    // poll(2) skips the negative descriptors of closed listeners.
    fds = {{tcp_.get(), POLLIN, 0}, {local_.get(), POLLIN, 0}};
    lobby_.Arm(&fds);
    wait.For(absl::MakeSpan(fds), lobby_.next_timer()).IgnoreError();
    if (shared_->stopping) break;
    const absl::Time now = clock.Now();
    // First, so that no connection loses its place with an unread frame.
    lobby_.Step(absl::MakeSpan(fds).subspan(2), now);
    for (size_t i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      if (const absl::Status status = AcceptOne(fds[i].fd, now); !status.ok()) {
        // Usually the process is out of descriptors. The oldest visitor without
        // a hello gives its descriptor back.
        shared_->log.Warn("acceptor", "cannot accept", status);
        lobby_.DropOldest();
        pollfd none = {-1, 0, 0};
        pause
            .For(absl::MakeSpan(&none, 1),
                 base::Clock::Real().Now() + kAcceptPause)
            .IgnoreError();
      }
    }
  }
}

absl::Status ServerImpl::AcceptOne(int listener, absl::Time now) {
  REFRACT_ASSIGN_OR_RETURN(UniqueFd socket, transport::Accept(listener));
  if (!socket.valid()) return absl::OkStatus();
  // The unix socket needs no TLS: the kernel names the user at its other end,
  // and its clients have learned their tokens over TLS.
  const bool local = listener == local_.get();
  Stream stream(std::move(socket));
  if (const auto& tls = shared_->options.tls; tls != nullptr && !local) {
    REFRACT_ASSIGN_OR_RETURN(
        stream, Stream::AcceptTls(stream.TakeFd(), tls->context().get()));
  }
  lobby_.Add(std::move(stream), local, now);
  return absl::OkStatus();
}

void ServerImpl::OnFirstFrame(Lobby::Visitor visitor,
                              absl::StatusOr<SessionFrame> frame) {
  const std::string host = visitor.host;
  const absl::Status status =
      TakeFirstFrame(std::move(visitor), std::move(frame));
  if (status.ok()) return;
  ++shared_->refused;
  shared_->log.Warn(host, "connection refused", status);
}

absl::Status ServerImpl::TakeFirstFrame(Lobby::Visitor visitor,
                                        absl::StatusOr<SessionFrame> frame) {
  if (visitor.local && !SameUser(visitor.session.fd())) {
    return absl::PermissionDeniedError(
        "a process of another user on the unix socket");
  }
  if (absl::IsFailedPrecondition(frame.status())) {
    // Another protocol version, or TLS at one end alone: all versions have the
    // same header, so the peer can be told.
    proto::HelloReply refusal;
    *refusal.mutable_status() =
        ToWire(visitor.session.stream().peer_is_plain()
                   ? absl::FailedPreconditionError(
                         "this node takes TLS alone (--node-tls-cert)")
                   : frame.status(),
               kMaxStatusTextBytes);
    SessionSocket plain(visitor.session.TakeStream().TakeFd());
    plain.Send(FrameKind::kHelloReply, refusal).IgnoreError();
  }
  REFRACT_RETURN_IF_ERROR(frame.status());
  if (frame->kind == FrameKind::kAttach) {
    proto::Attach attach;
    REFRACT_RETURN_IF_ERROR(ParseBody(*frame, "attach frame", &attach));
    if (!shared_->broker.Deliver(attach.token(), attach.path(),
                                 visitor.session.TakeStream())) {
      return absl::InvalidArgumentError("an attach frame names no session");
    }
    return absl::OkStatus();
  }
  if (frame->kind != FrameKind::kHello || visitor.local) {
    return absl::InvalidArgumentError("the first frame is not a hello");
  }
  HandshakeThread& thread = **std::min_element(
      handshakes_.begin(), handshakes_.end(),
      [](const auto& a, const auto& b) { return a->load() < b->load(); });
  thread.Add(std::make_unique<ServerSession>(
      shared_.get(), pollers_, std::move(visitor.session), *std::move(frame),
      std::move(visitor.host)));
  return absl::OkStatus();
}

}  // namespace refract::transport
