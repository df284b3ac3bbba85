#include "tools/transport_meter/control.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "transport/loop/socket.h"
#include "transport/paths/paths.h"
#include "transport/verbs/factory.h"

namespace refract::transport_meter {
namespace {

// Region descriptors are the longest packets.
constexpr size_t kMaxPacket = 16 << 10;
// Longer than a step waits for its peer (Waiter::kPatienceSeconds).
constexpr int kPatienceMs = 120'000;
// The first byte of a packet. A status has its code in the second.
constexpr char kMessage = 'm';
constexpr char kStatus = 's';

using transport::UniqueFd;

absl::Status StatusOf(absl::string_view packet) {
  return absl::Status(static_cast<absl::StatusCode>(packet[1]),
                      packet.substr(2));
}

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

absl::StatusOr<std::pair<Control, Control>> Control::MakePair() {
  std::array<int, 2> fds;
  // Packets keep their borders, and the end of a process is seen as the end of
  // file.
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    return transport::ErrnoStatus(errno, "socketpair");
  }
  return std::pair<Control, Control>(Control(UniqueFd(fds[0])),
                                     Control(UniqueFd(fds[1])));
}

absl::Status Control::SendPacket(absl::string_view packet) {
  if (packet.size() > kMaxPacket) {
    return absl::InvalidArgumentError(
        absl::StrCat("control packet of ", packet.size(), " B"));
  }
  ssize_t sent;
  do {
    sent = send(fd_.get(), packet.data(), packet.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    return transport::ErrnoStatus(errno, "message to the other process");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Control::ReceivePacket() {
  pollfd fd = {fd_.get(), POLLIN, 0};
  int ready;
  do {
    ready = poll(&fd, 1, kPatienceMs);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    return absl::DeadlineExceededError("the other process does not answer");
  }
  std::string packet(kMaxPacket, '\0');
  ssize_t got;
  do {
    got = recv(fd_.get(), packet.data(), packet.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return transport::ErrnoStatus(errno, "message of the other process");
  }
  if (got == 0) return absl::UnavailableError("the other process is gone");
  packet.resize(static_cast<size_t>(got));
  return packet;
}

absl::Status Control::Send(absl::string_view message) {
  return SendPacket(absl::StrCat(std::string(1, kMessage), message));
}

absl::StatusOr<std::string> Control::Receive() {
  const absl::StatusOr<std::string> packet = ReceivePacket();
  REFRACT_RETURN_IF_ERROR(packet.status());
  if (packet->front() == kMessage) return packet->substr(1);
  // A status in place of a message: the other process has left the step. It is
  // kept for ReceiveStatus(), which both sides call at the end of a step.
  ended_ = StatusOf(*packet);
  if (!ended_->ok()) return *ended_;
  return absl::InternalError("the other process ended a step too early");
}

absl::StatusOr<std::string> Control::Exchange(absl::string_view mine) {
  REFRACT_RETURN_IF_ERROR(Send(mine));
  return Receive();
}

absl::Status Control::SendStatus(const absl::Status& status) {
  return SendPacket(
      absl::StrCat(std::string({kStatus, static_cast<char>(status.code())}),
                   status.message().substr(0, kMaxPacket / 2)));
}

absl::Status Control::ReceiveStatus() {
  if (ended_.has_value()) {
    const absl::Status status = *std::move(ended_);
    ended_.reset();
    return status;
  }
  while (true) {
    const absl::StatusOr<std::string> packet = ReceivePacket();
    REFRACT_RETURN_IF_ERROR(packet.status());
    // Messages before the status are of a step that this side has left by an
    // error.
    if (packet->front() == kStatus) return StatusOf(*packet);
  }
}

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

}  // namespace refract::transport_meter
