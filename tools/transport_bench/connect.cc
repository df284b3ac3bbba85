#include "tools/transport_bench/connect.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "transport/paths/paths.h"
#include "transport/loop/socket.h"
#include "transport/verbs/factory.h"
#include "transport/loop/waker.h"

namespace refract::transport_bench {
namespace {

using transport::UniqueFd;

constexpr int kAcceptTimeoutMs = 10'000;

absl::StatusOr<UniqueFd> AcceptOne(int listener) {
  pollfd fd = {listener, POLLIN, 0};
  if (poll(&fd, 1, kAcceptTimeoutMs) != 1) {
    return absl::DeadlineExceededError("the other process does not connect");
  }
  return transport::Accept(listener);
}

absl::StatusOr<UniqueFd> ConnectLocal(const Setup& setup) {
  if (setup.side == Side::kInitiator) {
    REFRACT_ASSIGN_OR_RETURN(const std::string name, setup.control->Receive());
    return transport::ConnectUnix(name);
  }
  static std::atomic<int> count = 0;
  const std::string name =
      absl::StrCat("refract-bench-", getpid(), "-", count++);
  REFRACT_ASSIGN_OR_RETURN(const UniqueFd listener,
                           transport::ListenUnix(name));
  REFRACT_RETURN_IF_ERROR(setup.control->Send(name));
  return AcceptOne(listener.get());
}

}  // namespace

absl::StatusOr<Connection> ConnectPath(const Setup& setup,
                                       proto::TransportPath path,
                                       const std::string& rdma_device) {
  Connection connection;
  REFRACT_ASSIGN_OR_RETURN(connection.waker, transport::ThreadWaker::Create());
  connection.resources = std::make_unique<transport::PathResources>();
  connection.resources->waker = connection.waker;
  connection.resources->verbs = transport::verbs::MakePollGroup(rdma_device);
  const transport::Attachment attachment = transport::AttachmentOf(path);
  if (attachment != transport::Attachment::kNone) {
    REFRACT_ASSIGN_OR_RETURN(
        connection.socket,
        Connect(setup, attachment == transport::Attachment::kUnix));
  }
  return connection;
}

absl::StatusOr<UniqueFd> Connect(const Setup& setup, bool local) {
  if (local) return ConnectLocal(setup);
  if (setup.side == Side::kResponder) {
    REFRACT_ASSIGN_OR_RETURN(const transport::Listener listener,
                             transport::ListenTcp({"127.0.0.1", 0}));
    REFRACT_RETURN_IF_ERROR(setup.control->Send(absl::StrCat(listener.port)));
    return AcceptOne(listener.fd.get());
  }
  REFRACT_ASSIGN_OR_RETURN(const std::string text, setup.control->Receive());
  int port = 0;
  if (!absl::SimpleAtoi(text, &port)) {
    return absl::InternalError("not a port");
  }
  REFRACT_ASSIGN_OR_RETURN(const std::shared_ptr<transport::ThreadWaker> waker,
                           transport::ThreadWaker::Create());
  base::Clock& clock = base::Clock::Real();
  const transport::Wait wait{*waker, clock, [] { return absl::OkStatus(); }};
  return transport::ConnectTcp({"127.0.0.1", port}, wait,
                               clock.Now() + absl::Seconds(10));
}

}  // namespace refract::transport_bench
