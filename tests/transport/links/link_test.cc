#include "transport/links/link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/transport/testing/fake_path.h"
#include "tests/transport/testing/function_sink.h"
#include "tests/transport/testing/link_memory_fixture.h"
#include "transport/messages/endpoint_setup.h"

namespace refract::transport {
namespace {

constexpr size_t kSlotBytes = size_t{32} << 10;
constexpr size_t kArenaBytes = size_t{1} << 20;

class LinkTest : public testing::Test {
 protected:
  void SetUp() override {
    auto waker = ThreadWaker::Create();
    ASSERT_TRUE(waker.ok());
    auto path = std::make_unique<FakePath>();
    path_ = path.get();
    const Region slots =
        *path->CreateRegion(4 * kSlotBytes, Access::kRemoteWrite);
    const Region source =
        *path->CreateRegion(2 * kArenaBytes, Access::kRemoteRead);
    const Region pulls = *path->CreateRegion(kArenaBytes, Access::kLocal);
    memory_ = NewLinkMemory(slots, source, pulls, kArenaBytes, kArenaBytes, 4,
                            *waker);
    std::array<int, 2> fds;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                         fds.data()),
              0);
    peer_ = SessionSocket(UniqueFd(fds[1]));
    Established established;
    established.session = SessionSocket(UniqueFd(fds[0]));
    established.path = std::move(path);
    established.heartbeat_interval = absl::Milliseconds(100);
    established.suspect_after = absl::Milliseconds(350);
    EndpointSetup& setup = established.setup;
    setup.memory = memory_;
    setup.peer_slots = {100, 4 * kSlotBytes};
    setup.peer_source = {101, kArenaBytes};
    setup.peer_num_slots = 4;
    setup.peer_slot_bytes = kSlotBytes;
    setup.num_slots = 4;
    setup.slot_bytes = kSlotBytes;
    setup.eager_bytes = kSlotBytes;
    setup.max_receive_bytes = kArenaBytes;
    setup.receives = MessageKind::kResponse;
    link_ = std::make_unique<Link>(
        std::move(established), &clock_, absl::Seconds(2), &sink_,
        [](const SessionFrame&) { return absl::OkStatus(); });
  }

  absl::Status Step() {
    int worked = 0;
    return link_->Step(clock_.Now(), &worked);
  }
  // The loop saw that the session has something to read.
  absl::Status StepAfterFrame() {
    link_->OnSessionEvent();
    return Step();
  }
  void SendMessage(int64_t bytes) {
    auto message = NewMessage(
        memory_, MessageKind::kRequest,
        std::vector<base::TensorSpec>{{base::DType::kUInt8, {bytes}}});
    ASSERT_TRUE(message.ok()) << message.status();
    link_->endpoint().Send(*std::move(message), 1, absl::InfiniteFuture());
  }

  absl::Duration TimeToFailure(absl::Status* why);

  base::ManualClock clock_{absl::FromUnixSeconds(1'000'000)};
  int received_ = 0;  // messages
  FunctionSink sink_{[this](const MessageHeader&, absl::string_view,
                            IncomingMessage::ImplPtr) {
    ++received_;
    return absl::OkStatus();
  }};
  SessionSocket peer_;
  FakePath* path_ = nullptr;
  std::shared_ptr<LinkMemory> memory_;
  std::unique_ptr<Link> link_;
};

// A peer may read what was offered to it, and a late transfer may still be
// under way, until the path is gone: nothing may be lent again before.
TEST_F(LinkTest, MemoryThatThePeerCanReachIsFreeOnlyAfterThePath) {
  ASSERT_NO_FATAL_FAILURE(SendMessage(1'000));    // put, not completed
  ASSERT_NO_FATAL_FAILURE(SendMessage(100'000));  // to be pulled by the peer
  ASSERT_TRUE(Step().ok());
  ASSERT_EQ(path_->puts.size(), 2u);
  ASSERT_NO_FATAL_FAILURE(SendMessage(50'000));  // waits for a step
  const size_t lent = memory_->source->used_bytes();
  EXPECT_GE(lent, 151'000u);
  size_t lent_when_gone = 0;
  bool open_when_gone = true;
  path_->on_destroy = [&] {
    lent_when_gone = memory_->source->used_bytes();
    open_when_gone = memory_->open;
  };
  link_.reset();
  EXPECT_EQ(lent_when_gone, lent);
  EXPECT_FALSE(open_when_gone) << "nothing new may be allocated by then";
  EXPECT_EQ(memory_->source->used_bytes(), 0u);
}

TEST_F(LinkTest, SilentPeerIsFirstSuspectAndThenLost) {
  ASSERT_TRUE(Step().ok());
  clock_.Advance(absl::Milliseconds(349));
  ASSERT_TRUE(Step().ok());
  EXPECT_FALSE(link_->suspect());
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_TRUE(Step().ok());
  EXPECT_TRUE(link_->suspect());
  clock_.Advance(absl::Milliseconds(1649));
  ASSERT_TRUE(Step().ok());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsUnavailable(Step()));
  EXPECT_FALSE(link_->path_failed());
}

TEST_F(LinkTest, AnyFrameEndsTheSuspicion) {
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(Step().ok());
  ASSERT_TRUE(link_->suspect());
  ASSERT_TRUE(peer_.Send(FrameKind::kHeartbeat, proto::Heartbeat()).ok());
  ASSERT_TRUE(StepAfterFrame().ok());
  EXPECT_FALSE(link_->suspect());
}

// This thread was kept from running, and the peer's message was not read.
TEST_F(LinkTest, FrameThatWasNotReadYetCounts) {
  ASSERT_TRUE(Step().ok());
  ASSERT_TRUE(peer_.Send(FrameKind::kHeartbeat, proto::Heartbeat()).ok());
  clock_.Advance(absl::Seconds(10));
  EXPECT_TRUE(Step().ok());
  EXPECT_FALSE(link_->suspect());
}

TEST_F(LinkTest, HeartbeatsAreSentAtTheInterval) {
  ASSERT_TRUE(Step().ok());
  const auto received = [this] {
    int count = 0;
    while (true) {
      auto frame = peer_.Receive();
      if (!frame.ok() || !frame->has_value()) return count;
      EXPECT_EQ((*frame)->kind, FrameKind::kHeartbeat);
      ++count;
    }
  };
  EXPECT_EQ(received(), 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_LE(link_->next_timer(), clock_.Now() + absl::Milliseconds(100));
    clock_.Advance(absl::Milliseconds(99));
    ASSERT_TRUE(Step().ok());
    EXPECT_EQ(received(), 0);
    clock_.Advance(absl::Milliseconds(1));
    ASSERT_TRUE(peer_.Send(FrameKind::kHeartbeat, proto::Heartbeat()).ok());
    ASSERT_TRUE(StepAfterFrame().ok());
    EXPECT_EQ(received(), 1);
  }
}

// Steps every 100 ms, with heartbeats of the peer, until the link fails or 10 s
// have passed. Returns after how long.
absl::Duration LinkTest::TimeToFailure(absl::Status* why) {
  const absl::Time begin = clock_.Now();
  while (clock_.Now() - begin < absl::Seconds(10)) {
    clock_.Advance(absl::Milliseconds(100));
    EXPECT_TRUE(peer_.Send(FrameKind::kHeartbeat, proto::Heartbeat()).ok());
    *why = StepAfterFrame();
    if (!why->ok()) break;
  }
  return clock_.Now() - begin;
}

TEST_F(LinkTest, PathThatAnswersNoGetEndsTheLinkWhateverTheSessionSays) {
  ASSERT_TRUE(Step().ok());
  ASSERT_EQ(path_->gets.size(), 1u) << "of no bytes, to hear from the peer";
  EXPECT_TRUE(path_->gets[0].destination.empty());
  // Puts complete all the time: they show that this side can send.
  absl::Status why;
  ASSERT_NO_FATAL_FAILURE(SendMessage(100));
  EXPECT_EQ(TimeToFailure(&why), absl::Seconds(2));
  EXPECT_TRUE(absl::IsUnavailable(why)) << why;
  EXPECT_TRUE(link_->path_failed());
}

TEST_F(LinkTest, PathThatCompletesNoPutEndsTheLinkWhateverElseItDoes) {
  const auto answer = [&](const FakePath::PendingGet&) {};
  ASSERT_NO_FATAL_FAILURE(SendMessage(100));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Step().ok());
    path_->CompleteGets(1, answer);
    ASSERT_TRUE(peer_.Send(FrameKind::kHeartbeat, proto::Heartbeat()).ok());
    link_->OnSessionEvent();
    clock_.Advance(absl::Milliseconds(100));
  }
  EXPECT_TRUE(absl::IsUnavailable(Step()));
  EXPECT_TRUE(link_->path_failed());
}

TEST_F(LinkTest, PathThatAnswersKeepsTheLink) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Step().ok());
    // The last moment at which operations may complete.
    if (i % 19 == 18) {
      path_->CompleteGets(16, [](const FakePath::PendingGet&) {});
      path_->CompletePuts(16);
    }
    EXPECT_LE(path_->gets.size(), 1u);
    ASSERT_TRUE(peer_.Send(FrameKind::kHeartbeat, proto::Heartbeat()).ok());
    link_->OnSessionEvent();
    EXPECT_LE(link_->next_timer(), clock_.Now() + absl::Milliseconds(100));
    clock_.Advance(absl::Milliseconds(100));
  }
}

// The answer may lie unread.
TEST_F(LinkTest, TimeWithoutStepsDoesNotCountAgainstThePath) {
  ASSERT_TRUE(Step().ok());
  ASSERT_TRUE(peer_.Send(FrameKind::kHeartbeat, proto::Heartbeat()).ok());
  clock_.Advance(absl::Seconds(10));
  ASSERT_TRUE(StepAfterFrame().ok());
  absl::Status why;
  EXPECT_EQ(TimeToFailure(&why), absl::Seconds(2));
}

// Neither a message that cannot be sent any more nor a message that cannot be
// pulled any more keeps a message that arrived from its reader, and the reason
// stays the path's.
TEST_F(LinkTest, BrokenPathDeliversWhatArrivedBefore) {
  ASSERT_TRUE(Step().ok());
  auto pulled = NewMessage(
      memory_, MessageKind::kResponse,
      std::vector<base::TensorSpec>{{base::DType::kUInt8, {100'000}}});
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  (*pulled)->header.pulled = true;
  std::byte* const descriptor = (*pulled)->block.data();
  EncodeHeader((*pulled)->header, descriptor);
  std::memcpy(memory_->slots.data(), descriptor,
              (*pulled)->layout.payload_begin);
  path_->Notify(EncodeImm({ImmKind::kMessage, 0, 0}));
  MessageHeader header;
  header.kind = MessageKind::kResponse;
  header.total_bytes = kHeaderBytes;
  EncodeHeader(header, memory_->slots.data() + kSlotBytes);
  path_->Notify(EncodeImm({ImmKind::kMessage, 1, 0}));
  ASSERT_NO_FATAL_FAILURE(SendMessage(100));
  path_->Break(absl::UnavailableError("a cable was pulled"));
  EXPECT_EQ(received_, 0);
  EXPECT_TRUE(Step().ok());
  EXPECT_EQ(received_, 1);
  const absl::Status why = Step();
  EXPECT_TRUE(absl::IsUnavailable(why)) << why;
  EXPECT_TRUE(link_->path_failed());
}

TEST_F(LinkTest, BrokenPathUnderALiveSessionIsThePathsFault) {
  path_->Break(absl::UnavailableError("a cable was pulled"));
  EXPECT_TRUE(absl::IsUnavailable(Step()));
  EXPECT_TRUE(link_->path_failed());
  link_->SayClose(absl::UnavailableError("a cable was pulled"));
  auto frame = peer_.Receive();
  while (frame.ok() && frame->has_value() &&
         (*frame)->kind != FrameKind::kClose) {
    frame = peer_.Receive();
  }
  ASSERT_TRUE(frame.ok() && frame->has_value());
  proto::Close close;
  ASSERT_TRUE(close.ParseFromString((*frame)->body));
  EXPECT_TRUE(close.path_failed());
}

TEST_F(LinkTest, BrokenPathOfAPeerThatIsGoneIsNot) {
  path_->Break(absl::UnavailableError("the peer closed the data socket"));
  peer_ = SessionSocket();
  EXPECT_TRUE(absl::IsUnavailable(Step()));
  EXPECT_FALSE(link_->path_failed());
}

TEST_F(LinkTest, BrokenRulesAreNeither) {
  path_->Break(absl::InvalidArgumentError("put outside of a region"));
  EXPECT_TRUE(absl::IsInvalidArgument(Step()));
  EXPECT_FALSE(link_->path_failed());
}

TEST_F(LinkTest, PeersWordThatThePathFailedIsTaken) {
  proto::Close close;
  close.set_path_failed(true);
  ASSERT_TRUE(peer_.Send(FrameKind::kClose, close).ok());
  EXPECT_TRUE(absl::IsUnavailable(StepAfterFrame()));
  EXPECT_TRUE(link_->path_failed());
  EXPECT_TRUE(link_->closed_by_peer());
}

}  // namespace
}  // namespace refract::transport
