#include "tools/transport_bench/socket_yardstick.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tools/transport_bench/connect.h"
#include "tools/transport_bench/pattern.h"
#include "tools/transport_bench/waiter.h"

namespace refract::transport_bench {
namespace {

constexpr size_t kSmall = 64;

class SocketSession : public Session {
 public:
  SocketSession(Side side, transport::UniqueFd socket)
      : side_(side), socket_(std::move(socket)) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    const size_t ring =
        Stride(work.point.bytes) * static_cast<size_t>(work.outstanding);
    out_.resize(std::max(ring, kSmall));
    in_.resize(std::max(ring, kSmall));
    REFRACT_RETURN_IF_ERROR(SetBlocking(work.point.mode == Mode::kEvent));
    const size_t bytes = work.point.bytes;
    switch (work.point.op) {
      case Op::kPingPong:
        return PingPong(bytes, bytes, recorder);
      case Op::kPull:
        return PingPong(bytes, kSmall, recorder);
      case Op::kGet:
        return PingPong(kSmall, bytes, recorder);
      case Op::kStream:
        return Stream(Side::kInitiator, recorder);
      case Op::kGetStream:
        return Stream(Side::kResponder, recorder);
      case Op::kFanIn:
        break;
    }
    return absl::InternalError("unknown operation");
  }

 private:
  absl::Status SetBlocking(bool blocking) {
    const int flags = fcntl(socket_.get(), F_GETFL);
    if (flags < 0 ||
        fcntl(socket_.get(), F_SETFL,
              blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) != 0) {
      return transport::ErrnoStatus(errno, "fcntl of a socket");
    }
    return absl::OkStatus();
  }

  template <typename Call>
  absl::Status Repeat(size_t bytes, const char* what, Call call) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t now = call(done);
      if (now > 0) {
        done += static_cast<size_t>(now);
        waiter_.Worked();
      } else if (now == 0) {
        return absl::UnavailableError("the peer closed its socket");
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        REFRACT_RETURN_IF_ERROR(waiter_.Idle());
      } else if (errno != EINTR) {
        return transport::ErrnoStatus(errno, what);
      }
    }
    return absl::OkStatus();
  }
  absl::Status SendAll(const std::byte* data, size_t bytes) {
    return Repeat(bytes, "send", [&](size_t done) {
      return send(socket_.get(), data + done, bytes - done, MSG_NOSIGNAL);
    });
  }
  absl::Status ReceiveAll(std::byte* data, size_t bytes) {
    return Repeat(bytes, "recv", [&](size_t done) {
      return recv(socket_.get(), data + done, bytes - done, 0);
    });
  }

  absl::Status SendMessage(int i, size_t bytes) {
    std::byte* data = out_.data() + Slot(i);
    if (work_.verify) FillPattern({data, bytes}, work_.seed, side_, i);
    return SendAll(data, bytes);
  }
  absl::Status ReceiveMessage(int i, size_t bytes) {
    std::byte* data = in_.data() + Slot(i);
    REFRACT_RETURN_IF_ERROR(ReceiveAll(data, bytes));
    if (!work_.verify) return absl::OkStatus();
    const Side peer =
        side_ == Side::kInitiator ? Side::kResponder : Side::kInitiator;
    return CheckPattern({data, bytes}, work_.seed, peer, i);
  }
  size_t Slot(int i) const {
    return Stride(work_.point.bytes) *
           static_cast<size_t>(i % work_.outstanding);
  }

  absl::Status PingPong(size_t there, size_t back, Recorder& recorder) {
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      if (side_ == Side::kInitiator) {
        REFRACT_RETURN_IF_ERROR(SendMessage(i, there));
        REFRACT_RETURN_IF_ERROR(ReceiveMessage(i, back));
        recorder.Lap();
      } else {
        REFRACT_RETURN_IF_ERROR(ReceiveMessage(i, there));
        REFRACT_RETURN_IF_ERROR(SendMessage(i, back));
      }
    }
    return absl::OkStatus();
  }

  // Ends with one byte from the initiator's peer (or of its own go) so that the
  // time runs until the last byte was read.
  absl::Status Stream(Side from, Recorder& recorder) {
    std::byte token = {};
    recorder.Start();
    if (side_ == Side::kInitiator && from == Side::kResponder) {
      REFRACT_RETURN_IF_ERROR(SendAll(&token, 1));
    }
    if (side_ == Side::kResponder && from == Side::kResponder) {
      REFRACT_RETURN_IF_ERROR(ReceiveAll(&token, 1));
    }
    for (int i = 0; i < work_.iterations; ++i) {
      REFRACT_RETURN_IF_ERROR(side_ == from
                                  ? SendMessage(i, work_.point.bytes)
                                  : ReceiveMessage(i, work_.point.bytes));
    }
    if (from == Side::kInitiator) {
      REFRACT_RETURN_IF_ERROR(side_ == Side::kInitiator ? ReceiveAll(&token, 1)
                                                        : SendAll(&token, 1));
    }
    recorder.Stop();
    return absl::OkStatus();
  }

  const Side side_;
  const transport::UniqueFd socket_;
  Work work_;
  Waiter waiter_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

class SocketSubject : public Subject {
 public:
  bool Supports(const Point& point) const override {
    return point.op != Op::kFanIn;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    REFRACT_ASSIGN_OR_RETURN(transport::UniqueFd socket,
                             Connect(setup, /*local=*/false));
    const int on = 1;
    if (setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) !=
        0) {
      return transport::ErrnoStatus(errno, "TCP_NODELAY");
    }
    return std::make_unique<SocketSession>(setup.side, std::move(socket));
  }
};

}  // namespace

std::unique_ptr<Subject> SocketYardstick() {
  return std::make_unique<SocketSubject>();
}

}  // namespace refract::transport_bench
