// Connections to an HN's port that are no good clients: garbage, other
// versions, half hellos, silence. After each, the server must go on serving the
// others.
#include <filesystem>

#include "tests/base/random_seed.h"
#include "tests/transport/testing/hostile_peer_fixture.h"

namespace refract::transport {
namespace {

TEST_F(HostilePeer, GarbageIsRefusedAtOnce) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  uint64_t refused = 0;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0'),
        std::string(1 << 16, '\xff'), std::string("\x16\x03\x01\x02\x00")}) {
    const UniqueFd fd = Connect();
    Write(fd.get(), bytes);
    // A client that uses TLS is told that this server does not.
    EXPECT_EQ(ReadToEnd(fd.get()).find("uses TLS") != std::string::npos,
              bytes[0] == '\x16');
    EXPECT_TRUE(EventuallyRefused(++refused));
  }
  for (int i = 0; i < 50; ++i) {
    std::string bytes(4 + random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const UniqueFd fd = Connect();
    Write(fd.get(), bytes);
    ReadToEnd(fd.get());
    EXPECT_TRUE(EventuallyRefused(++refused));
  }
  ExpectServes();
}

TEST_F(HostilePeer, AnotherMajorVersionIsToldWhy) {
  const UniqueFd fd = Connect();
  Write(fd.get(),
        EncodeSessionFrame(FrameKind::kHello, GoodHello(), kProtocolMajor + 1));
  const std::string answer = ReadToEnd(fd.get());
  absl::string_view rest = answer;
  const auto frame = DecodeSessionFrame(rest);
  ASSERT_TRUE(frame.ok() && frame->has_value()) << frame.status();
  proto::HelloReply reply;
  ASSERT_TRUE(reply.ParseFromString((*frame)->body));
  EXPECT_EQ(FromWire(reply.status()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(reply.status().message(), "protocol 2.1"))
      << reply.status().message();
  EXPECT_TRUE(EventuallyRefused(1));
  ExpectServes();
}

TEST_F(HostilePeer, HelloCutAtEveryByte) {
  const std::string hello = EncodeSessionFrame(FrameKind::kHello, GoodHello());
  for (size_t cut = 0; cut < hello.size(); ++cut) {
    const UniqueFd fd = Connect();
    Write(fd.get(), hello.substr(0, cut));
    shutdown(fd.get(), SHUT_WR);
    EXPECT_EQ(ReadToEnd(fd.get()), "") << "cut at " << cut;
  }
  EXPECT_TRUE(EventuallyRefused(hello.size()));
  EXPECT_EQ(server_->stats().connections, 0);
  ExpectServes();
}

TEST_F(HostilePeer, HelloWithOneByteChangedNeverHurts) {
  const std::string hello = EncodeSessionFrame(FrameKind::kHello, GoodHello());
  for (size_t at = 0; at < hello.size(); ++at) {
    std::string bad = hello;
    bad[at] = static_cast<char>(bad[at] ^ 0x41);
    const UniqueFd fd = Connect();
    Write(fd.get(), bad);
    shutdown(fd.get(), SHUT_WR);
    ReadToEnd(fd.get());
  }
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
  ExpectServes();
}

TEST_F(HostilePeer, ForgedHellosAreRefusedWithTheReason) {
  const auto refused = [&](const std::function<void(proto::Hello&)>& change) {
    proto::Hello hello;
    CHECK(hello.ParseFromString(GoodHello()));
    change(hello);
    const UniqueFd fd = Connect();
    Write(fd.get(),
          EncodeSessionFrame(FrameKind::kHello, hello.SerializeAsString()));
    const std::string answer = ReadToEnd(fd.get());
    absl::string_view rest = answer;
    const auto frame = DecodeSessionFrame(rest);
    if (!frame.ok() || !frame->has_value()) return absl::UnknownError("none");
    proto::HelloReply reply;
    CHECK(reply.ParseFromString((*frame)->body));
    return FromWire(reply.status());
  };
  using H = proto::Hello;
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](H& h) { h.mutable_limits()->set_num_slots(0); })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](H& h) { h.mutable_limits()->set_num_slots(1 << 20); })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](H& h) { h.mutable_limits()->set_slot_bytes(64); })));
  EXPECT_TRUE(absl::IsInvalidArgument(refused(
      [](H& h) { h.mutable_limits()->set_slot_bytes(~uint64_t{0} - 63); })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](H& h) { h.mutable_limits()->set_max_in_flight(0); })));
  EXPECT_TRUE(absl::IsInvalidArgument(refused([](H& h) {
    for (int i = 0; i < 300; ++i) h.add_models();
  })));
  EXPECT_TRUE(absl::IsInvalidArgument(refused(
      [](H& h) { h.mutable_models(0)->set_name(std::string(200, 'x')); })));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      refused([](H& h) { h.mutable_paths()->Clear(); })));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused([](H& h) {
    h.mutable_paths()->Clear();
    h.add_paths(proto::TRANSPORT_PATH_VERBS);
  })));
  ExpectServes();
}

TEST_F(HostilePeer, OtherFirstFramesAndAttachesToNothingAreRefused) {
  uint64_t count = 0;
  for (uint16_t kind = 2; kind <= 10; ++kind) {
    const UniqueFd fd = Connect();
    Write(fd.get(), EncodeSessionFrame(static_cast<FrameKind>(kind), ""));
    ReadToEnd(fd.get());
    EXPECT_TRUE(EventuallyRefused(++count)) << "kind " << kind;
  }
  proto::Attach attach;
  attach.set_token(RandomToken(16));
  attach.set_path(proto::TRANSPORT_PATH_TCP);
  const UniqueFd fd = Connect();
  Write(fd.get(),
        EncodeSessionFrame(FrameKind::kAttach, attach.SerializeAsString()));
  ReadToEnd(fd.get());
  EXPECT_TRUE(EventuallyRefused(++count));
  ExpectServes();
}

TEST_F(HostilePeer, SlowLorisIsCutOffByTheClock) {
  options_.clock = &clock_;
  options_.liveness_timeout = absl::Hours(1);
  StartServer();
  const std::string hello = EncodeSessionFrame(FrameKind::kHello, GoodHello());
  std::vector<UniqueFd> slow;
  for (size_t i = 0; i < 8; ++i) {
    slow.push_back(Connect());
    Write(slow.back().get(), hello.substr(0, i));
  }
  // These connections delay no other client.
  ExpectServes();
  EXPECT_EQ(server_->stats().refused, 0u);
  // Again and again, because a connection's time starts when it is accepted.
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(options_.handshake_timeout + absl::Milliseconds(1));
    return server_->stats().refused == 8;
  }));
  for (const UniqueFd& fd : slow) EXPECT_EQ(ReadToEnd(fd.get()), "");
}

int NumThreads() {
  int count = 0;
  for ([[maybe_unused]] const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

// A connection costs nothing but itself before its hello, and not for long.
TEST_F(HostilePeer, SilentConnectionsTakeNoThreadsAndHoldUpNobody) {
  options_.clock = &clock_;
  options_.liveness_timeout = absl::Hours(1);
  StartServer();
  const int threads = NumThreads();
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < 200; ++i) silent.push_back(Connect());
  // A host may have 128; the oldest went.
  EXPECT_TRUE(EventuallyRefused(200 - 128));
  EXPECT_EQ(ReadToEnd(silent[200 - 128 - 1].get()), "");
  EXPECT_EQ(NumThreads(), threads);
  ExpectServes();
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(absl::Seconds(2));
    return server_->stats().refused == 200;
  })) << server_->stats().refused;
  for (const UniqueFd& fd : silent) EXPECT_EQ(ReadToEnd(fd.get()), "");
}

// A peer that says hello and nothing else delays no other client.
TEST_F(HostilePeer, StalledHandshakesTakeNoThreadsAndHoldUpNobody) {
  options_.clock = &clock_;
  options_.liveness_timeout = absl::Hours(1);
  options_.max_connections_per_host = 60;
  StartServer();
  const int threads = NumThreads();
  const std::string hello = EncodeSessionFrame(FrameKind::kHello, GoodHello());
  std::vector<UniqueFd> stalled;
  for (int i = 0; i < 59; ++i) {
    stalled.push_back(Connect());
    Write(stalled.back().get(), hello);
  }
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 59; }));
  EXPECT_EQ(NumThreads(), threads);
  ExpectServes();
  // One place of this host is left, which the good client has given back.
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 59; }));
  const UniqueFd last = Connect();
  Write(last.get(), hello);
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 60; }));
  const UniqueFd beyond = Connect();
  Write(beyond.get(), hello);
  const std::string answer = ReadToEnd(beyond.get());
  EXPECT_TRUE(absl::StrContains(answer, "maximum of 60 connections of 127."))
      << answer;
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(options_.handshake_timeout);
    return server_->stats().connections == 0;
  }));
}

TEST_F(HostilePeer, SilenceInTheMiddleOfTheHandshakeIsCutOff) {
  options_.clock = &clock_;
  StartServer();
  const UniqueFd fd = Connect();
  Write(fd.get(), EncodeSessionFrame(FrameKind::kHello, GoodHello()));
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 1; }));
  clock_.Advance(options_.handshake_timeout + absl::Milliseconds(1));
  ReadToEnd(fd.get());
  EXPECT_TRUE(EventuallyRefused(1));
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
}

TEST_F(HostilePeer, SilentClientIsDroppedAfterTheLivenessTimeout) {
  options_.clock = &clock_;
  StartServer();
  absl::StatusOr<Established> peer = Handshake();
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(Eventually([&] { return server_->stats().accepted == 1; }));
  EXPECT_EQ(server_->stats().connections, 1);
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(options_.liveness_timeout + absl::Milliseconds(1));
    return server_->stats().connections == 0;
  }));
  EXPECT_EQ(server_->stats().violations, 0u);
}

TEST_F(HostilePeer, HeartbeatsKeepAnIdleConnection) {
  options_.clock = &clock_;
  StartServer();
  absl::StatusOr<Established> peer = Handshake();
  ASSERT_TRUE(peer.ok()) << peer.status();
  // Five liveness timeouts with nothing but heartbeats, one per quarter, and
  // answers of the data path.
  std::array<Completion, 4> none;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(peer->path->Poll(absl::MakeSpan(none)), 0u);
    clock_.Advance(options_.liveness_timeout / 4);
    absl::StatusOr<SessionFrame> beat =
        AwaitFrame(peer->session, wait(), patience());
    ASSERT_TRUE(beat.ok()) << beat.status();
    EXPECT_EQ(beat->kind, FrameKind::kHeartbeat);
    ASSERT_TRUE(
        peer->session.Send(FrameKind::kHeartbeat, proto::Heartbeat()).ok());
  }
  EXPECT_EQ(server_->stats().connections, 1);
  EXPECT_EQ(server_->stats().violations, 0u);
}

}  // namespace
}  // namespace refract::transport
