#include "transport/session/server_session.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/loop/socket.h"

namespace refract::transport {

ServerSession::ServerSession(ServerShared* shared, const Pollers& pollers,
                             SessionSocket session, SessionFrame hello,
                             std::string host)
    : shared_(shared),
      pollers_(pollers),
      session_(std::move(session)),
      hello_(std::move(hello)),
      host_(std::move(host)) {}

bool ServerSession::Step(absl::Time now, const std::shared_ptr<Waker>& waker) {
  absl::Status status;
  if (!handshake_.has_value()) status = Begin(now, waker);
  if (status.ok()) {
    absl::StatusOr<std::optional<transport::Established>> result =
        handshake_->Step(now);
    if (result.ok() && !result->has_value()) return false;
    status = result.status();
    if (status.ok()) Established(**std::move(result));
  }
  if (!status.ok()) {
    ++shared_->refused;
    shared_->log.Warn(host_, "connection refused", status);
  }
  return true;
}

absl::Status ServerSession::Begin(absl::Time now,
                                  const std::shared_ptr<Waker>& waker) {
  const ServerOptions& options = shared_->options;
  TuneSocket(session_.fd(), options.ack_timeout);
  // Counted before the checks, so that handshakes under way count against the
  // limits as well.
  count_.emplace(shared_, host_);
  absl::Status why;
  if (shared_->draining) {
    why = absl::UnavailableError("this node is stopping");
  } else if (count_->number() > options.max_connections) {
    why = absl::ResourceExhaustedError(
        absl::StrCat("this node serves its maximum of ",
                     options.max_connections, " connections"));
  } else if (count_->number_of_host() > options.max_connections_per_host) {
    why = absl::ResourceExhaustedError(absl::StrCat(
        "this node serves its maximum of ", options.max_connections_per_host,
        " connections of ", host_));
  }
  if (!why.ok()) {
    proto::HelloReply refusal;
    *refusal.mutable_status() = ToWire(why, kMaxStatusTextBytes);
    session_.Send(FrameKind::kHelloReply, refusal).IgnoreError();
    return why;
  }
  poller_ = std::min_element(pollers_.begin(), pollers_.end(),
                             [](const auto& a, const auto& b) {
                               return a->load() < b->load();
                             })
                ->get();
  // The path is made with the waker and the resources of the poller that will
  // run the link.
  REFRACT_ASSIGN_OR_RETURN(seat_, poller_->Reserve());
  const ServerHandshakeContext context{
      options,        shared_->handler,     &shared_->broker,
      shared_->paths, shared_->unix_socket, shared_->process,
      seat_.waker(),  poller_->resources(), &shared_->models};
  handshake_.emplace(context, std::move(session_), std::move(hello_),
                     now + options.handshake_timeout, waker);
  return absl::OkStatus();
}

void ServerSession::Established(transport::Established established) {
  ++shared_->accepted;
  LOG(INFO) << "client " << host_ << " (" << established.peer
            << ") connected over " << established.path_name
            << established.session.stream().PeerText();
  established.setup.budget = shared_->options.request_memory;
  // Marks older connections of the client as superseded: their pollers end
  // them.
  ClientRegistry::Entry entry =
      shared_->clients.Add(established.client, established.epoch,
                           established.oldest_live_epoch, seat_.waker());
  poller_->Add(std::move(seat_), std::make_unique<ServerLink>(
                                     shared_, host_, *std::move(count_),
                                     std::move(entry), std::move(established)));
}

}  // namespace refract::transport
