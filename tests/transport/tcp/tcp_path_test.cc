// A tcp DataPath against a peer that writes frames by hand.
#include "transport/tcp/tcp_path.h"

#include <glog/logging.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>

#include "tests/base/random_seed.h"
#include "transport/tcp/frame.h"

namespace refract::transport::tcp {
namespace {

class TcpPathTest : public testing::Test {
 protected:
  TcpPathTest() { Open(); }

  void Open() {
    path_.reset();
    std::array<int, 2> fds;
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) ==
           0);
    peer_ = UniqueFd(fds[0]);
    auto path = TcpPath::Create(UniqueFd(fds[1]));
    CHECK(path.ok());
    path_ = *std::move(path);
    inbox_ = *path_->CreateRegion(4096, Access::kRemoteWrite);
    source_ = *path_->CreateRegion(4096, Access::kRemoteRead);
    local_ = *path_->CreateRegion(4096, Access::kLocal);
    hidden_ = *path_->CreateRegion(4096, Access::kRemoteWrite);
    CHECK(path_->Export(inbox_).ok() && path_->Export(source_).ok());
  }
  void Write(absl::string_view bytes) {
    PCHECK(write(peer_.get(), bytes.data(), bytes.size()) ==
           static_cast<ssize_t>(bytes.size()));
  }
  static std::string Bytes(const Frame& frame, absl::string_view payload = "") {
    std::string bytes(kFrameBytes, '\0');
    EncodeFrame(frame, reinterpret_cast<std::byte*>(bytes.data()));
    bytes.append(payload.data(), payload.size());
    return bytes;
  }
  std::vector<Completion> Poll() {
    std::array<Completion, 64> out;
    const size_t count = path_->Poll(absl::MakeSpan(out));
    return {out.begin(), out.begin() + static_cast<ptrdiff_t>(count)};
  }

  UniqueFd peer_;
  std::unique_ptr<TcpPath> path_;
  Region inbox_;
  Region source_;
  Region local_;
  Region hidden_;
};

TEST_F(TcpPathTest, FramesCutAtEveryByteArriveWhole) {
  const std::string first = Bytes(
      {FrameType::kPutNotify, 7, inbox_.id, 100, 50}, std::string(100, 'x'));
  const std::string second = Bytes({FrameType::kPutNotify, 8, inbox_.id, 0, 0});
  const std::string both = first + second;
  for (size_t cut = 0; cut <= both.size(); ++cut) {
    std::memset(inbox_.data(), 0, 4096);
    Write(both.substr(0, cut));
    std::vector<Completion> done = Poll();
    Write(both.substr(cut));
    for (const Completion& more : Poll()) done.push_back(more);
    ASSERT_EQ(done.size(), 2u) << "cut at " << cut;
    EXPECT_EQ(done[0].imm, 7u);
    EXPECT_EQ(done[1].imm, 8u);
    EXPECT_EQ(
        std::memcmp(inbox_.data() + 50, std::string(100, 'x').data(), 100), 0);
    EXPECT_EQ(inbox_.data()[49], std::byte{0});
    EXPECT_EQ(inbox_.data()[150], std::byte{0});
  }
}

TEST_F(TcpPathTest, ForbiddenFramesBreakThePath) {
  std::string padded = Bytes({FrameType::kPut, 0, inbox_.id, 0, 0});
  padded[1] = 1;
  std::string unknown = Bytes({FrameType::kPut, 0, inbox_.id, 0, 0});
  unknown[0] = 9;
  for (const auto& [what, bytes] :
       std::vector<std::pair<std::string, std::string>>{
           {"unknown type", unknown},
           {"padding", padded},
           {"past the end by one",
            Bytes({FrameType::kPut, 0, inbox_.id, 97, 4000})},
           {"far past the end",
            Bytes({FrameType::kPut, 0, inbox_.id, 0xffffffff, 0})},
           {"offset that wraps",
            Bytes({FrameType::kPut, 0, inbox_.id, 64, ~uint64_t{0} - 10})},
           {"put to a region that is read",
            Bytes({FrameType::kPut, 0, source_.id, 1, 0})},
           {"put to a local region",
            Bytes({FrameType::kPut, 0, local_.id, 1, 0})},
           {"put to a region that was not exported",
            Bytes({FrameType::kPutNotify, 0, hidden_.id, 1, 0})},
           {"put to no region", Bytes({FrameType::kPut, 0, 99, 1, 0})},
           {"get from a region that is written",
            Bytes({FrameType::kGet, 0, inbox_.id, 1, 0})},
           {"get past the end",
            Bytes({FrameType::kGet, 0, source_.id, 2, 4095})},
           {"reply to nothing", Bytes({FrameType::kGetReply, 0, 0, 0, 0})}}) {
    Open();
    std::memset(source_.data(), 0x77, 4096);
    Write(bytes);
    EXPECT_TRUE(Poll().empty()) << what;
    EXPECT_EQ(path_->status().code(), absl::StatusCode::kInvalidArgument)
        << what << ": " << path_->status();
    EXPECT_FALSE(path_->Arm()) << what;
    EXPECT_EQ(source_.data()[0], std::byte{0x77});
  }
}

TEST_F(TcpPathTest, ReplyOfAnotherLengthBreaksThePath) {
  const RemoteRegion peer{0, 4096};
  ASSERT_EQ(path_->Get(peer, 0, {local_.data(), 100}, 1), PostResult::kPosted);
  Poll();
  Write(Bytes({FrameType::kGetReply, 0, 0, 101, 0}, std::string(101, 'x')));
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(path_->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(local_.data()[0], std::byte{0});
}

TEST_F(TcpPathTest, TooManyGetsBreakThePath) {
  // The peer asks and never reads, so that replies cannot leave.
  std::string gets;
  for (int i = 0; i < 5000; ++i) {
    gets += Bytes({FrameType::kGet, 0, source_.id, 4096, 0});
  }
  Write(gets.substr(0, 100 * kFrameBytes));
  for (int i = 0; i < 100 && path_->status().ok(); ++i) {
    Poll();
    [[maybe_unused]] const ssize_t n =
        write(peer_.get(), gets.data(), 50 * kFrameBytes);
  }
  EXPECT_EQ(path_->status(),
            absl::InvalidArgumentError("too many outstanding gets"));
}

TEST_F(TcpPathTest, RandomBytesNeverEscapeTheRegions) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int broken = 0;
  for (int round = 0; round < 5000; ++round) {
    if (!path_->status().ok() || round % 100 == 0) {
      ++broken;
      Open();
    }
    Frame frame;
    frame.type = static_cast<FrameType>(1 + random() % 4);
    frame.imm = random();
    frame.region = random() % 5;
    frame.length = random() % 600;
    frame.offset = random() % 4200;
    std::string bytes = Bytes(
        frame, std::string(frame.type == FrameType::kGet ? 0 : frame.length,
                           static_cast<char>(random())));
    if (random() % 4 == 0) {
      bytes[random() % kFrameBytes] = static_cast<char>(random());
    }
    Write(bytes);
    Poll();
    // Only the exported region may change.
    for (const Region& region : {source_, local_, hidden_}) {
      ASSERT_EQ(region.data()[random() % 4096], std::byte{0});
    }
  }
  EXPECT_GT(broken, 100);
}

}  // namespace
}  // namespace refract::transport::tcp
