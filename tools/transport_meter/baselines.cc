#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tools/transport_meter/control.h"
#include "tools/transport_meter/levels.h"
#include "tools/transport_meter/pattern.h"
#include "transport/memory/mapping.h"
#include "transport/shm/memfd.h"

namespace refract::transport_meter {
namespace {

class SocketSession : public Session {
 public:
  SocketSession(Side side, transport::UniqueFd socket)
      : side_(side), socket_(std::move(socket)) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    buffer_.resize(work.point.bytes);
    // Event mode sleeps in the call, busy mode spins on a socket that does not
    // block.
    const int flags = fcntl(socket_.get(), F_GETFL);
    const int wanted = work.point.mode == Mode::kEvent ? flags & ~O_NONBLOCK
                                                       : flags | O_NONBLOCK;
    if (flags < 0 || fcntl(socket_.get(), F_SETFL, wanted) != 0) {
      return transport::ErrnoStatus(errno, "fcntl of a socket");
    }
    const bool stream = work.point.op == Op::kStream;
    recorder.Start();
    for (int i = 0; i < work.iterations; ++i) {
      if (side_ == Side::kInitiator) REFRACT_RETURN_IF_ERROR(Send(i));
      if (side_ == Side::kResponder || !stream) {
        REFRACT_RETURN_IF_ERROR(Receive(i));
      }
      if (side_ == Side::kResponder && !stream) {
        REFRACT_RETURN_IF_ERROR(Send(i));
      }
      if (side_ == Side::kInitiator && !stream) recorder.Lap();
    }
    if (stream) {
      // The receiver sends a byte back, so that the time ends after the last
      // byte was read.
      REFRACT_RETURN_IF_ERROR(side_ == Side::kInitiator ? Move(recv, 1)
                                                        : Move(send, 1));
      recorder.Stop();
    }
    return absl::OkStatus();
  }

 private:
  // Sends or receives the first `bytes` of the buffer.
  template <typename Call>
  absl::Status Move(Call call, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t now = call(socket_.get(), buffer_.data() + done,
                               bytes - done, MSG_NOSIGNAL);
      if (now > 0) {
        done += static_cast<size_t>(now);
        waiter_.Worked();
      } else if (now == 0) {
        return absl::UnavailableError("the peer closed its socket");
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        REFRACT_RETURN_IF_ERROR(waiter_.Idle());
      } else if (errno != EINTR) {
        return transport::ErrnoStatus(errno, "socket");
      }
    }
    return absl::OkStatus();
  }
  absl::Status Send(int i) {
    if (work_.verify) {
      FillPattern(absl::MakeSpan(buffer_), work_.seed, side_, i);
    }
    return Move(send, buffer_.size());
  }
  absl::Status Receive(int i) {
    REFRACT_RETURN_IF_ERROR(Move(recv, buffer_.size()));
    if (!work_.verify) return absl::OkStatus();
    return CheckPattern(buffer_, work_.seed, OtherSide(side_), i);
  }

  const Side side_;
  const transport::UniqueFd socket_;
  Work work_;
  Waiter waiter_;
  std::vector<std::byte> buffer_;
};

class Socket : public Subject {
 public:
  bool Supports(const Point& point) const override {
    return point.op == Op::kPingPong || point.op == Op::kStream;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    REFRACT_ASSIGN_OR_RETURN(transport::UniqueFd socket,
                             Connect(setup, /*local=*/false));
    // As the transport's own sockets: without it the end of a message waits for
    // the acknowledgement of its beginning.
    const int on = 1;
    if (setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) !=
        0) {
      return transport::ErrnoStatus(errno, "TCP_NODELAY");
    }
    return std::make_unique<SocketSession>(setup.side, std::move(socket));
  }
};

// One direction: its payload, and the flag that says that the payload is there.
// The flag has a pair of cache lines: adjacent lines are fetched together.
struct Lane {
  std::atomic<uint64_t>* flag = nullptr;
  std::byte* payload = nullptr;
};

class MemorySession : public Session {
 public:
  MemorySession(Side side, const std::array<Lane, 2>& lanes)
      : side_(side), lanes_(lanes) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    own_.resize(work.point.bytes);
    const bool copies = work.point.bytes > kLineBytes;
    const Lane& out = lanes_[static_cast<size_t>(side_)];
    const Lane& in = lanes_[static_cast<size_t>(OtherSide(side_))];
    // sent_ and received_ go on over all runs of a session, so a flag of an
    // earlier run is never taken for a new flag.
    recorder.Start();
    for (int i = 0; i < 2 * work.iterations; ++i) {
      // The sides take turns, the initiator first.
      const bool sends = (i % 2 == 0) == (side_ == Side::kInitiator);
      if (sends) {
        if (work.verify) {
          FillPattern(absl::MakeSpan(own_), work.seed, side_, i / 2);
        }
        if (copies) std::memcpy(out.payload, own_.data(), own_.size());
        out.flag->store(++sent_, std::memory_order_release);
        continue;
      }
      ++received_;
      while (in.flag->load(std::memory_order_acquire) != received_) {
        REFRACT_RETURN_IF_ERROR(waiter_.Idle());
      }
      waiter_.Worked();
      if (side_ == Side::kInitiator) recorder.Lap();
      if (work.verify && copies) {
        REFRACT_RETURN_IF_ERROR(CheckPattern(
            {in.payload, own_.size()}, work.seed, OtherSide(side_), i / 2));
      }
    }
    return absl::OkStatus();
  }

 private:
  // A payload of up to one line is the flag's own line.
  static constexpr size_t kLineBytes = 64;

  const Side side_;
  const std::array<Lane, 2> lanes_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  Waiter waiter_;
  std::vector<std::byte> own_;
};

class Memory : public Subject {
 public:
  Memory(std::shared_ptr<const transport::Mapping> memory, size_t max_bytes)
      : memory_(std::move(memory)) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      std::byte* const begin = memory_->data() + i * LaneBytes(max_bytes);
      lanes_[i] = {new (begin) std::atomic<uint64_t>(0), begin + kFlagBytes};
    }
  }
  static size_t LaneBytes(size_t max_bytes) {
    return kFlagBytes + (max_bytes + kFlagBytes - 1) / kFlagBytes * kFlagBytes;
  }

  bool Supports(const Point& point) const override {
    return point.op == Op::kPingPong && point.mode != Mode::kEvent;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    // Flags that an earlier session left.
    if (setup.side == Side::kInitiator) {
      for (const Lane& lane : lanes_) lane.flag->store(0);
    }
    REFRACT_RETURN_IF_ERROR(setup.control->Exchange("clear").status());
    return std::make_unique<MemorySession>(setup.side, lanes_);
  }

 private:
  static constexpr size_t kFlagBytes = 128;
  const std::shared_ptr<const transport::Mapping> memory_;
  std::array<Lane, 2> lanes_;  // by the side that writes
};

}  // namespace

std::unique_ptr<Subject> SocketBaseline() { return std::make_unique<Socket>(); }

absl::StatusOr<std::unique_ptr<Subject>> MemoryBaseline(size_t max_bytes) {
  const size_t bytes = 2 * Memory::LaneBytes(max_bytes);
  REFRACT_ASSIGN_OR_RETURN(const transport::UniqueFd fd,
                           transport::shm::CreateMemfd(bytes));
  REFRACT_ASSIGN_OR_RETURN(auto memory,
                           transport::Mapping::Shared(fd.get(), bytes, true));
  return std::make_unique<Memory>(std::move(memory), max_bytes);
}

}  // namespace refract::transport_meter
