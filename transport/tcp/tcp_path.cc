#include "transport/tcp/tcp_path.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "transport/tcp/factory.h"

namespace refract::transport::tcp {
namespace {

// Two per message of a large connection (message and credit); a bound on the
// memory of the queue, not on speed.
constexpr size_t kMaxOutstandingPuts = 4096;
// As many as RDMA hardware commonly allows per queue pair, so that callers
// cannot come to rely on more.
constexpr size_t kMaxOutstandingGets = 16;
// One read takes the headers and payloads of many small frames. Larger payloads
// bypass it.
constexpr size_t kStagingBytes = size_t{16} << 10;
// Frames per sendmsg: two vector entries each, well under IOV_MAX (1024).
constexpr size_t kFramesPerSend = 32;
// Puts that wait to be sent, and completions that wait for a Poll, without an
// allocation: a round of a large connection.
constexpr size_t kUsualPuts = 128;
constexpr size_t kUsualCompletions = 128;
// Reads and writes per Poll, so that one busy peer cannot keep the caller from
// its timers and other connections.
constexpr int kReadsPerPoll = 16;
constexpr int kWritesPerPoll = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<DataPath>> CreateTcpPath(Stream socket) {
  return TcpPath::Create(std::move(socket));
}

absl::StatusOr<std::unique_ptr<TcpPath>> TcpPath::Create(Stream socket) {
  const int on = 1;
  // Fails on a socketpair, which has no such delay.
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // An epoll of the path's own: fd() must turn readable for arrived bytes
  // always, and for room to write only while frames wait (Arm).
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  epoll_event event = {};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.fd(), &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl of a data socket");
  }
  return std::unique_ptr<TcpPath>(
      new TcpPath(std::move(socket), std::move(epoll)));
}

TcpPath::TcpPath(Stream socket, UniqueFd epoll)
    : socket_(std::move(socket)),
      epoll_(std::move(epoll)),
      staging_(kStagingBytes) {
  puts_.Reserve(kUsualPuts);
  replies_.Reserve(kMaxOutstandingGets);
  wire_.Reserve(kFramesPerSend);
  gets_.Reserve(kMaxOutstandingGets);
  done_.Reserve(kUsualCompletions);
}

PathLimits TcpPath::limits() const {
  return {kMaxOutstandingPuts, kMaxOutstandingGets, kMaxTransferBytes,
          kMaxRegions};
}

absl::StatusOr<Region> TcpPath::CreateRegion(size_t bytes, Access access) {
  REFRACT_RETURN_IF_ERROR(CheckRoomForRegion(regions_.size()));
  REFRACT_ASSIGN_OR_RETURN(auto memory, Mapping::Anonymous(bytes));
  return regions_.Add(std::move(memory), access);
}

absl::StatusOr<std::string> TcpPath::Export(const Region& region) {
  REFRACT_RETURN_IF_ERROR(regions_.Export(region).status());
  return absl::StrCat("tcp:", region.id, ":", region.size());
}

absl::StatusOr<RemoteRegion> TcpPath::Import(absl::string_view descriptor) {
  // Only numbers, which are not trusted: the peer checks each frame against its
  // own regions. The length lets this side refuse its caller's mistakes.
  const std::vector<absl::string_view> parts = absl::StrSplit(descriptor, ':');
  RemoteRegion region;
  if (parts.size() != 3 || parts[0] != "tcp" ||
      !absl::SimpleAtoi(parts[1], &region.id) ||
      !absl::SimpleAtoi(parts[2], &region.bytes)) {
    return absl::InvalidArgumentError("not a region descriptor of tcp");
  }
  return region;
}

PostResult TcpPath::Put(const RemoteRegion& to, uint64_t offset,
                        absl::Span<const std::byte> source, uint64_t context) {
  return PostPut(FrameType::kPut, to, offset, source, 0, context);
}

PostResult TcpPath::PutNotify(const RemoteRegion& to, uint64_t offset,
                              absl::Span<const std::byte> source, uint32_t imm,
                              uint64_t context) {
  return PostPut(FrameType::kPutNotify, to, offset, source, imm, context);
}

PostResult TcpPath::PostPut(FrameType type, const RemoteRegion& to,
                            uint64_t offset, absl::Span<const std::byte> source,
                            uint32_t imm, uint64_t context) {
  if (!status_.ok()) return PostResult::kBroken;
  if (offset > to.bytes || source.size() > to.bytes - offset ||
      source.size() > kMaxTransferBytes ||
      (!source.empty() && !regions_.Contains(source))) {
    return PostResult::kInvalid;
  }
  if (outstanding_puts_ >= kMaxOutstandingPuts) return PostResult::kFull;
  ++outstanding_puts_;
  SendOp& op = puts_.push_back({});
  EncodeFrame({type, imm, to.id, static_cast<uint32_t>(source.size()), offset},
              op.header.data());
  op.payload = source;
  op.completes_put = true;
  op.context = context;
  return PostResult::kPosted;
}

PostResult TcpPath::Get(const RemoteRegion& from, uint64_t offset,
                        absl::Span<std::byte> destination, uint64_t context) {
  if (!status_.ok()) return PostResult::kBroken;
  if (offset > from.bytes || destination.size() > from.bytes - offset ||
      destination.size() > kMaxTransferBytes ||
      (!destination.empty() && !regions_.Contains(destination))) {
    return PostResult::kInvalid;
  }
  // A get takes a place until its reply has come. Replies carry no number: they
  // come in the order of the gets.
  if (gets_.size() >= kMaxOutstandingGets) return PostResult::kFull;
  gets_.push_back({destination, context});
  SendOp& op = puts_.push_back({});
  EncodeFrame({FrameType::kGet, 0, from.id,
               static_cast<uint32_t>(destination.size()), offset},
              op.header.data());
  return PostResult::kPosted;
}

size_t TcpPath::Poll(absl::Span<Completion> out) {
  if (status_.ok()) Send();
  // Completions that do not fit stay here, and nothing more is read meanwhile,
  // so the peer cannot make this queue grow.
  if (done_.size() < out.size()) Receive(out.size());
  // Answers arrived get requests at once.
  if (status_.ok() && !replies_.empty()) Send();
  const size_t count = std::min(out.size(), done_.size());
  for (size_t i = 0; i < count; ++i) {
    out[i] = done_.front();
    done_.pop_front();
  }
  return count;
}

bool TcpPath::Arm() {
  if (!done_.empty()) return false;
  if (!status_.ok()) return false;
  Send();
  if (!done_.empty() || !send_error_.ok()) return false;
  // Frames that were read but not handled would not cause a wake-up.
  if (!in_payload_ && staged_end_ - staged_begin_ >= kFrameBytes) return false;
  if (socket_.may_have_more()) return false;
  const bool want_room = !wire_.empty() || !puts_.empty() ||
                         !replies_.empty() || socket_.has_unsent();
  if (want_room != waiting_for_room_) {
    epoll_event event = {};
    event.events = EPOLLIN | (want_room ? EPOLLOUT : 0u);
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket_.fd(), &event) != 0) {
      Break(ErrnoStatus(errno, "epoll_ctl of a data socket"));
      return false;
    }
    waiting_for_room_ = want_room;
  }
  return true;
}

void TcpPath::Schedule() {
  // Frames in wire_ keep their order, because the first may be partly sent. A
  // put can overtake replies only until they get there, so wire_ is short.
  while (wire_.size() < kFramesPerSend) {
    RingQueue<SendOp>& from = puts_.empty() ? replies_ : puts_;
    if (from.empty()) return;
    wire_.push_back(from.front());
    from.pop_front();
  }
}

void TcpPath::Send() {
  if (!send_error_.ok()) return;
  for (int round = 0; round < kWritesPerPoll; ++round) {
    Schedule();
    if (wire_.empty()) {
      if (socket_.Flush() != 0 && errno != EAGAIN) {
        send_error_ = socket_.Error("write to the data socket");
      }
      return;
    }
    std::array<iovec, 2 * kFramesPerSend> vectors;
    size_t count = 0;
    // Each frame is two pieces, header and payload; `skip` bytes at the front
    // were sent by earlier calls.
    size_t skip = wire_sent_;
    size_t total = 0;
    const auto add = [&](const std::byte* data, size_t bytes) {
      const size_t drop = std::min(skip, bytes);
      skip -= drop;
      if (bytes == drop) return;
      vectors[count++] = {const_cast<std::byte*>(data) + drop, bytes - drop};
      total += bytes - drop;
    };
    for (size_t i = 0; i < wire_.size(); ++i) {
      const SendOp& op = wire_[i];
      add(op.header.data(), op.header.size());
      add(op.payload.data(), op.payload.size());
    }
    const ssize_t sent =
        socket_.Send(absl::MakeConstSpan(vectors.data(), count));
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // Bytes that the peer sent before it went away are read first.
      send_error_ = socket_.Error("write to the data socket");
      return;
    }
    wire_sent_ += static_cast<size_t>(sent);
    while (!wire_.empty()) {
      const SendOp& op = wire_.front();
      const size_t whole = op.header.size() + op.payload.size();
      if (wire_sent_ < whole) break;
      wire_sent_ -= whole;
      // A put is complete when the kernel has its bytes: its source may change.
      if (op.completes_put) {
        --outstanding_puts_;
        done_.push_back({Completion::Kind::kPut, 0, op.context});
      }
      wire_.pop_front();
    }
    if (static_cast<size_t>(sent) < total) return;  // the socket is full
  }
}

void TcpPath::Receive(size_t room) {
  HandleStaged(room);
  for (int round = 0; round < kReadsPerPoll; ++round) {
    if (!status_.ok() || done_.size() >= room) return;
    if (!ReadSome()) return;
    HandleStaged(room);
  }
}

// One read: first the rest of the current payload, to its place, then into the
// staging buffer. False: nothing to read, or broken.
bool TcpPath::ReadSome() {
  // HandleStaged() left less than a header, or nothing while a payload is
  // incomplete. So the buffer has room after the move, and a read of 0 bytes
  // means the end of the stream.
  if (staged_begin_ > 0) {
    std::memmove(staging_.data(), staging_.data() + staged_begin_,
                 staged_end_ - staged_begin_);
    staged_end_ -= staged_begin_;
    staged_begin_ = 0;
  }
  std::array<iovec, 2> vectors;
  size_t count = 0;
  if (!landing_.empty()) {
    // The payload goes straight to its place; only bytes behind it are staged.
    vectors[count++] = {landing_.data(), landing_.size()};
  }
  vectors[count++] = {staging_.data() + staged_end_,
                      staging_.size() - staged_end_};
  const ssize_t got =
      socket_.Receive(absl::MakeConstSpan(vectors.data(), count));
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!send_error_.ok()) Break(send_error_);
      return false;
    }
    Break(socket_.Error("read from the data socket"));
    return false;
  }
  if (got == 0) {
    Break(PeerEnded("the peer closed the data socket"));
    return false;
  }
  auto bytes = static_cast<size_t>(got);
  const size_t landed = std::min(bytes, landing_.size());
  landing_.remove_prefix(landed);
  staged_end_ += bytes - landed;
  return true;
}

void TcpPath::HandleStaged(size_t room) {
  while (status_.ok()) {
    if (in_payload_) {
      const size_t bytes =
          std::min(landing_.size(), staged_end_ - staged_begin_);
      if (bytes > 0) {
        // The part of the payload that came in the same read as its header.
        std::memcpy(landing_.data(), staging_.data() + staged_begin_, bytes);
        landing_.remove_prefix(bytes);
        staged_begin_ += bytes;
      }
      if (!landing_.empty()) return;
      FinishFrame();
      continue;
    }
    if (done_.size() >= room || staged_end_ - staged_begin_ < kFrameBytes) {
      return;
    }
    const absl::StatusOr<Frame> frame =
        DecodeFrame(staging_.data() + staged_begin_);
    staged_begin_ += kFrameBytes;
    if (!frame.ok()) return Break(frame.status());
    StartFrame(*frame);
  }
}

void TcpPath::StartFrame(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kPut:
    case FrameType::kPutNotify: {
      std::byte* place = regions_.Reach(frame.region, Access::kRemoteWrite,
                                        frame.offset, frame.length);
      if (place == nullptr) {
        return Break(absl::InvalidArgumentError(
            absl::StrCat("put outside of region ", frame.region, ": ",
                         frame.offset, "+", frame.length)));
      }
      landing_ = {place, frame.length};
      break;
    }
    case FrameType::kGet: {
      const std::byte* place = regions_.Reach(frame.region, Access::kRemoteRead,
                                              frame.offset, frame.length);
      if (place == nullptr) {
        return Break(absl::InvalidArgumentError(
            absl::StrCat("get outside of region ", frame.region, ": ",
                         frame.offset, "+", frame.length)));
      }
      // More gets than an honest peer has outstanding: replies_ must not grow.
      if (replies_.size() >= kMaxOutstandingGets) {
        return Break(absl::InvalidArgumentError("too many outstanding gets"));
      }
      SendOp& op = replies_.push_back({});
      EncodeFrame({FrameType::kGetReply, 0, 0, frame.length, 0},
                  op.header.data());
      op.payload = {place, frame.length};
      return;
    }
    case FrameType::kGetReply:
      if (gets_.empty() || gets_.front().destination.size() != frame.length) {
        return Break(absl::InvalidArgumentError("reply without its get"));
      }
      landing_ = gets_.front().destination;
      break;
  }
  frame_ = frame;
  in_payload_ = true;
}

void TcpPath::FinishFrame() {
  in_payload_ = false;
  switch (frame_.type) {
    case FrameType::kPutNotify:
      done_.push_back({Completion::Kind::kNotify, frame_.imm, 0});
      break;
    case FrameType::kGetReply:
      done_.push_back({Completion::Kind::kGet, 0, gets_.front().context});
      gets_.pop_front();
      break;
    default:
      break;
  }
}

void TcpPath::Break(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

}  // namespace refract::transport::tcp
