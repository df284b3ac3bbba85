#include "tools/transport_bench/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport_bench {
namespace {

// Region descriptors are the longest.
constexpr size_t kMaxPacket = 16 << 10;
// Longer than a step waits for its peer (Waiter::kPatienceSeconds).
constexpr int kPatienceMs = 120'000;
// The first byte of a packet. A status has its code in the second.
constexpr char kMessage = 'm';
constexpr char kStatus = 's';

absl::Status StatusOf(absl::string_view packet) {
  return absl::Status(static_cast<absl::StatusCode>(packet[1]),
                      packet.substr(2));
}

}  // namespace

absl::StatusOr<std::pair<Control, Control>> Control::MakePair() {
  std::array<int, 2> fds;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    return transport::ErrnoStatus(errno, "socketpair");
  }
  return std::pair<Control, Control>(Control(transport::UniqueFd(fds[0])),
                                     Control(transport::UniqueFd(fds[1])));
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
    if (packet->front() == kStatus) return StatusOf(*packet);
  }
}

}  // namespace refract::transport_bench
