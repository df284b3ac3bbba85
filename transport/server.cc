#include "transport/server.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/loop/socket.h"
#include "transport/paths/path_setup.h"
#include "transport/paths/paths.h"
#include "transport/session/identity.h"

namespace refract::transport {
namespace {

// While it shakes hands each client holds one thread and, while it attaches, a
// second for a moment. The rest is for peers that have not said hello yet.
constexpr size_t kExtraThreads = 64;
// More than any NIC has use for; a guard against a slip of the operator's hand.
constexpr int kMaxPollers = 64;
// Pause after running out of descriptors, so that accepting does not spin.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(20);

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
  if (options.max_connections < 1 ||
      options.heartbeat_interval <= absl::ZeroDuration() ||
      options.liveness_timeout <= absl::ZeroDuration() ||
      options.ack_timeout <= absl::ZeroDuration() ||
      options.handshake_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "max_connections and transport timeouts must be positive");
  }
  auto shared = std::make_unique<ServerShared>();
  shared->options = options;
  shared->handler = handler;
  REFRACT_ASSIGN_OR_RETURN(shared->paths,
                           PathsFor(options.path, options.rdma_device));
  REFRACT_ASSIGN_OR_RETURN(shared->acceptor, ThreadWaker::Create());
  REFRACT_ASSIGN_OR_RETURN(Listener tcp,
                           ListenTcp({options.host, options.port}));
  UniqueFd local;
  if (std::any_of(shared->paths.begin(), shared->paths.end(),
                  [](proto::TransportPath path) {
                    return AttachmentOf(path) == Attachment::kUnix;
                  })) {
    shared->unix_socket =
        absl::StrCat("refract-", absl::BytesToHexString(RandomToken(16)));
    REFRACT_ASSIGN_OR_RETURN(local, ListenUnix(shared->unix_socket));
  }
  ServerSession::Pollers pollers(static_cast<size_t>(options.pollers));
  for (std::unique_ptr<ServerPoller>& poller : pollers) {
    REFRACT_ASSIGN_OR_RETURN(poller, ServerPoller::Create(shared.get()));
  }
  return std::make_unique<ServerImpl>(std::move(shared), std::move(pollers),
                                      std::move(tcp.fd), std::move(local),
                                      tcp.port);
}

ServerImpl::ServerImpl(std::unique_ptr<ServerShared> shared,
                       ServerSession::Pollers pollers, UniqueFd tcp,
                       UniqueFd local, int port)
    : port_(port),
      shared_(std::move(shared)),
      pollers_(std::move(pollers)),
      tcp_(std::move(tcp)),
      local_(std::move(local)),
      acceptor_([this] { Accept(); }) {
  for (const auto& poller : pollers_) poller->Start();
}

ServerImpl::~ServerImpl() {
  shared_->stopping = true;
  shared_->acceptor->Wake();
  // In parallel, because each may have to wait for clients.
  for (const auto& poller : pollers_) poller->Wake();
  acceptor_.join();
}

void ServerImpl::SetModelStatus(size_t model, const absl::Status& status) {
  shared_->models.Set(model, status);
  for (const auto& poller : pollers_) poller->WakeLinks();
}

void ServerImpl::StopAdmitting() {
  shared_->draining = true;
  shared_->acceptor->Wake();
  for (const auto& poller : pollers_) poller->Wake();
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
  const Wait wait{*shared_->acceptor, base::Clock::Real(),
                  [] { return absl::OkStatus(); }};
  bool told = false;
  while (!shared_->stopping) {
    sessions_.remove_if(
        [](const auto& session) { return session->finished(); });
    if (shared_->draining && !told) {
      told = true;
      // Connection attempts are refused from now on, and do not wait in the
      // backlog.
      tcp_.Reset(-1);
      local_.Reset(-1);
    }
    // poll(2) skips the negative descriptors of closed listeners.
    std::array<pollfd, 2> fds = {
        {{tcp_.get(), POLLIN, 0}, {local_.get(), POLLIN, 0}}};
    wait.For(absl::MakeSpan(fds), absl::InfiniteFuture()).IgnoreError();
    if (shared_->stopping) break;
    for (const pollfd& fd : fds) {
      if (fd.revents == 0 || fd.fd < 0) continue;
      if (const absl::Status status = AcceptOne(fd.fd, fd.fd == local_.get());
          !status.ok()) {
        shared_->log.Warn("acceptor", "cannot accept", status);
        pollfd none = {-1, 0, 0};
        wait.For(absl::MakeSpan(&none, 1),
                 base::Clock::Real().Now() + kAcceptPause)
            .IgnoreError();
      }
    }
  }
  for (const auto& session : sessions_) session->Wake();
  sessions_.clear();
}

absl::Status ServerImpl::AcceptOne(int listener, bool local) {
  REFRACT_ASSIGN_OR_RETURN(UniqueFd socket, transport::Accept(listener));
  if (!socket.valid()) return absl::OkStatus();
  const size_t limit =
      2 * static_cast<size_t>(shared_->options.max_connections) + kExtraThreads;
  if (sessions_.size() >= limit) {
    ++shared_->refused;
    shared_->log.Warn(PeerHost(socket.get()), "connection refused",
                      absl::ResourceExhaustedError("too many connections"));
    return absl::OkStatus();
  }
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<ServerSession> session,
      ServerSession::Start(shared_.get(), pollers_, std::move(socket), local));
  sessions_.push_back(std::move(session));
  return absl::OkStatus();
}

}  // namespace refract::transport
