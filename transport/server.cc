#include "transport/server.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/identity.h"
#include "transport/path_setup.h"
#include "transport/paths.h"
#include "transport/socket.h"

namespace refract::transport {
namespace {

// Each client holds one thread and, while it attaches, a second for a moment.
// The rest is for peers that have not said hello yet.
constexpr size_t kExtraThreads = 64;
// Pause after running out of descriptors, so that accepting does not spin.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(
    const ServerOptions& options, Handler* handler) {
  REFRACT_RETURN_IF_ERROR(CheckLimits(options.limits));
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port ", options.port));
  }
  if (options.max_connections < 1 ||
      options.liveness_timeout <= absl::ZeroDuration() ||
      options.handshake_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "max_connections and transport timeouts must be positive");
  }
  auto shared = std::make_unique<ServerShared>();
  shared->options = options;
  shared->handler = handler;
  REFRACT_ASSIGN_OR_RETURN(shared->paths, PathsFor(options.path));
  REFRACT_ASSIGN_OR_RETURN(shared->acceptor, Waker::Create());
  REFRACT_ASSIGN_OR_RETURN(Listener tcp,
                           ListenTcp({options.host, options.port}));
  UniqueFd local;
  if (std::any_of(shared->paths.begin(), shared->paths.end(),
                  AttachesLocally)) {
    shared->unix_socket =
        absl::StrCat("refract-", absl::BytesToHexString(RandomToken(16)));
    REFRACT_ASSIGN_OR_RETURN(local, ListenUnix(shared->unix_socket));
  }
  return std::make_unique<ServerImpl>(std::move(shared), std::move(tcp.fd),
                                      std::move(local), tcp.port);
}

ServerImpl::ServerImpl(std::unique_ptr<ServerShared> shared, UniqueFd tcp,
                       UniqueFd local, int port)
    : port_(port),
      shared_(std::move(shared)),
      tcp_(std::move(tcp)),
      local_(std::move(local)),
      acceptor_([this] { Accept(); }) {}

ServerImpl::~ServerImpl() {
  shared_->stopping = true;
  shared_->acceptor->Wake();
  acceptor_.join();
}

void ServerImpl::StopAdmitting() {
  shared_->draining = true;
  shared_->acceptor->Wake();
}

ServerStats ServerImpl::stats() const {
  ServerStats stats;
  stats.connections = shared_->connections.load();
  stats.accepted = shared_->accepted.load();
  stats.refused = shared_->refused.load();
  stats.violations = shared_->violations.load();
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
      // Refuses at once what nobody will accept any more.
      tcp_.Reset(-1);
      local_.Reset(-1);
      for (const auto& session : sessions_) session->Wake();
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
      ServerSession::Start(shared_.get(), std::move(socket), local));
  sessions_.push_back(std::move(session));
  return absl::OkStatus();
}

}  // namespace refract::transport
