// The byte stream of a tcp data path, cut anywhere, while this side puts and
// gets as well. Whatever comes: only the exported, writable region and the
// destinations of gets under way change, and nothing but what may be read goes
// back.
#include <glog/logging.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "tests/fuzz/target.h"
#include "transport/tcp/tcp_path.h"

namespace refract::fuzz {
namespace {

using namespace transport;
using tcp::EncodeFrame;
using tcp::Frame;
using tcp::FrameType;
using tcp::kFrameBytes;
using tcp::TcpPath;

constexpr size_t kRegionBytes = 4096;
// Bytes of regions that the peer must not change, and may read in source only.
constexpr std::byte kSource{0x51};
constexpr std::byte kLocal{0x52};
constexpr std::byte kHidden{0x53};

enum Op : uint8_t {
  kBytes,  // text: as they are
  kFrame,  // u8 type, u32 imm, u8 region, u32 length, u32 offset, text
  kPut,    // u16 offset, u16 bytes, u8 region
  kGet,    // u16 offset, u16 bytes
  kPoll,   // u8 completions
  kArm,
  kRead,  // what this side sent
  kHangUp,
  kNumOps,
};

class Harness {
 public:
  Harness() {
    std::array<int, 2> fds;
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) ==
           0);
    peer_ = UniqueFd(fds[0]);
    auto path = TcpPath::Create(UniqueFd(fds[1]));
    CHECK(path.ok()) << path.status();
    path_ = *std::move(path);
    inbox_ = *path_->CreateRegion(kRegionBytes, Access::kRemoteWrite);
    source_ = *path_->CreateRegion(kRegionBytes, Access::kRemoteRead);
    local_ = *path_->CreateRegion(kRegionBytes, Access::kLocal);
    hidden_ = *path_->CreateRegion(kRegionBytes, Access::kRemoteWrite);
    std::fill_n(source_.data(), kRegionBytes, kSource);
    std::fill_n(local_.data(), kRegionBytes, kLocal);
    std::fill_n(hidden_.data(), kRegionBytes, kHidden);
    CHECK(path_->Export(inbox_).ok() && path_->Export(source_).ok());
  }

  void Run(Input input) {
    while (!input.empty()) Step(input);
    Poll(64);
    for (const auto& [region, value] :
         {std::pair{&source_, kSource}, std::pair{&hidden_, kHidden}}) {
      CHECK(std::all_of(region->data(), region->data() + kRegionBytes,
                        [v = value](std::byte x) { return x == v; }));
    }
    for (size_t i = 0; i < kRegionBytes; ++i) {
      CHECK(asked_[i] || local_.data()[i] == kLocal);
    }
    const absl::StatusCode code = path_->status().code();
    CHECK(code == absl::StatusCode::kOk ||
          code == absl::StatusCode::kUnavailable ||
          code == absl::StatusCode::kInvalidArgument)
        << path_->status();
  }

 private:
  void Step(Input& input) {
    switch (input.U8() % kNumOps) {
      case kBytes:
        Write(input.Text());
        break;
      case kFrame: {
        Frame frame;
        frame.type = static_cast<FrameType>(input.U8());
        frame.imm = input.U32();
        frame.region = input.U8();
        frame.length = input.U32();
        frame.offset = input.U32();
        std::array<char, kFrameBytes> bytes;
        EncodeFrame(frame, reinterpret_cast<std::byte*>(bytes.data()));
        Write({bytes.data(), bytes.size()});
        Write(input.Text());
        break;
      }
      case kPut: {
        const size_t offset = input.U16() % kRegionBytes;
        const size_t bytes =
            std::min<size_t>(input.U16(), kRegionBytes - offset);
        path_->PutNotify({input.U8(), kRegionBytes}, offset,
                         {source_.data() + offset, bytes}, 7, 1);
        break;
      }
      case kGet: {
        const size_t offset = input.U16() % kRegionBytes;
        const size_t bytes =
            std::min<size_t>(input.U16(), kRegionBytes - offset);
        if (path_->Get({1, kRegionBytes}, offset,
                       {local_.data() + offset, bytes},
                       2) == PostResult::kPosted) {
          std::fill_n(asked_.begin() + static_cast<ptrdiff_t>(offset), bytes,
                      true);
        }
        break;
      }
      case kPoll:
        Poll(input.U8() % 65);
        break;
      case kArm:
        if (path_->Arm()) CHECK_GE(path_->fd(), 0);
        break;
      case kRead:
        ReadBack();
        break;
      default:
        shutdown(peer_.get(), SHUT_WR);
    }
  }

  void Poll(size_t room) {
    std::array<Completion, 64> out;
    CHECK_LE(path_->Poll({out.data(), std::min(room, out.size())}), room);
  }

  void Write(absl::string_view bytes) {
    // Bytes that do not fit are lost, as if they had not been sent.
    [[maybe_unused]] const ssize_t n =
        send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  // Frames leave whole, and their payload may be seen.
  void ReadBack() {
    std::array<char, 16384> bytes;
    const ssize_t n = read(peer_.get(), bytes.data(), bytes.size());
    if (n > 0) sent_.append(bytes.data(), static_cast<size_t>(n));
    while (sent_.size() >= kFrameBytes) {
      const auto frame =
          tcp::DecodeFrame(reinterpret_cast<const std::byte*>(sent_.data()));
      CHECK(frame.ok()) << frame.status();
      const size_t payload =
          frame->type == FrameType::kGet ? 0 : size_t{frame->length};
      CHECK_LE(payload, kRegionBytes);
      if (sent_.size() < kFrameBytes + payload) return;
      for (size_t i = 0; i < payload; ++i) {
        CHECK(std::byte(sent_[kFrameBytes + i]) == kSource);
      }
      sent_.erase(0, kFrameBytes + payload);
    }
  }

  UniqueFd peer_;
  std::unique_ptr<TcpPath> path_;
  Region inbox_;
  Region source_;
  Region local_;
  Region hidden_;
  std::array<bool, kRegionBytes> asked_ = {};  // bytes of local_, by gets
  std::string sent_;                           // that is not judged yet
};

Script& AddFrame(Script& script, FrameType type, uint8_t region,
                 uint32_t length, uint32_t offset, absl::string_view payload) {
  return script.U8(kFrame)
      .U8(static_cast<uint8_t>(type))
      .U32(0x01020304)
      .U8(region)
      .U32(length)
      .U32(offset)
      .Text(payload);
}

}  // namespace

std::vector<Seed> Seeds() {
  Script puts;
  AddFrame(puts, FrameType::kPut, 0, 100, 50, std::string(100, 'x'));
  AddFrame(puts, FrameType::kPutNotify, 0, 30, 4066, std::string(30, 'y'));
  AddFrame(puts, FrameType::kPutNotify, 0, 0, 4096, "");
  puts.U8(kPoll).U8(1).U8(kArm).U8(kPoll).U8(64).U8(kHangUp);
  Script gets;
  AddFrame(gets, FrameType::kGet, 1, 4096, 0, "");
  AddFrame(gets, FrameType::kGet, 1, 0, 4096, "");
  gets.U8(kPoll).U8(8).U8(kRead).U8(kPoll).U8(8).U8(kRead);
  Script replies;
  replies.U8(kGet).U16(100).U16(60).U8(kGet).U16(0).U16(0);
  replies.U8(kPut).U16(0).U16(500).U8(0).U8(kPoll).U8(4);
  AddFrame(replies, FrameType::kGetReply, 0, 60, 0, std::string(30, 'z'));
  replies.U8(kPoll).U8(4).U8(kBytes).Text(std::string(30, 'z'));
  AddFrame(replies, FrameType::kGetReply, 0, 0, 0, "");
  replies.U8(kPoll).U8(4).U8(kRead);
  Script outside;
  AddFrame(outside, FrameType::kPut, 0, 97, 4000, std::string(97, 'x'));
  outside.U8(kPoll).U8(4);
  Script hidden;
  AddFrame(hidden, FrameType::kPutNotify, 3, 1, 0, "x");
  hidden.U8(kPoll).U8(4);
  Script raw;
  raw.U8(kBytes).Text(std::string(64, '\x01')).U8(kPoll).U8(4);
  return {{"puts", puts.bytes()},       {"gets", gets.bytes()},
          {"replies", replies.bytes()}, {"outside", outside.bytes()},
          {"hidden", hidden.bytes()},   {"raw", raw.bytes()}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  refract::fuzz::Harness().Run(refract::fuzz::Input(data, size));
  return 0;
}
