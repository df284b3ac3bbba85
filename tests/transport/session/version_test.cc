// Peers of other versions. The hellos of every minor version are kept byte for
// byte; later additions must not change their meaning.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/transport/testing/channel_fixture.h"
#include "tests/transport/testing/tcp_proxy.h"
#include "transport/session/handshake.h"

namespace refract::transport {
namespace {

// A hello as minor 0 wrote it: identity, tcp, limits, one model, epoch 1 and
// two seconds of liveness.
proto::Hello HelloOfMinor0() {
  proto::Hello hello;
  proto::PeerIdentity& identity = *hello.mutable_identity();
  identity.set_node("cn-1");
  identity.set_process("0123456789abcdef");
  identity.set_boot_id("boot");
  identity.set_uid(1000);
  identity.set_net_namespace(4026531840);
  hello.add_paths(proto::TRANSPORT_PATH_SHM);
  hello.add_paths(proto::TRANSPORT_PATH_TCP);
  proto::ReceiveLimits& limits = *hello.mutable_limits();
  limits.set_num_slots(65);
  limits.set_slot_bytes(65536);
  limits.set_max_message_bytes(67108864);
  limits.set_max_in_flight(64);
  proto::OfferedModel& model = *hello.add_models();
  model.set_name("dlrm");
  model.set_version(1);
  model.mutable_model()->set_low(1);
  model.mutable_model()->set_high(2);
  model.mutable_schema()->set_low(3);
  model.mutable_schema()->set_high(4);
  hello.set_epoch(1);
  hello.set_liveness_timeout_us(2'000'000);
  return hello;
}

proto::Hello HelloOfMinor1() {
  proto::Hello hello = HelloOfMinor0();
  hello.set_features(proto::FEATURE_HEARTBEAT_INTERVAL);
  hello.set_client("fedcba9876543210");
  hello.set_epoch(7);
  hello.set_oldest_live_epoch(6);
  hello.set_heartbeat_interval_us(100'000);
  return hello;
}

// Written by the encoder of each version, header included.
constexpr absl::string_view kHelloOfMinor0 =
    "525246530100000001000000740000003b7a98c60a270a04636e2d311210303132333435"
    "363738396162636465661a04626f6f7420e80728808080800f1a020203220d0841108080"
    "04188080802020402a300a04646c726d10011a1209010000000000000011020000000000"
    "0000221209030000000000000011040000000000000030013880897a";
constexpr absl::string_view kHelloOfMinor1 =
    "5252465301000100010000008e000000bd41ee3c0a270a04636e2d311210303132333435"
    "363738396162636465661a04626f6f7420e80728808080800f10011a020203220d084110"
    "808004188080802020402a300a04646c726d10011a120901000000000000001102000000"
    "00000000221209030000000000000011040000000000000030073880897a421066656463"
    "626139383736353433323130480650a08d06";

// The same in protobuf's sense: the order of fields is not ours to promise.
std::string Canonical(const proto::Hello& hello) { return hello.DebugString(); }

proto::Hello Decode(absl::string_view hex) {
  const std::string bytes = absl::HexStringToBytes(hex);
  absl::string_view rest = bytes;
  const auto frame = DecodeSessionFrame(rest);
  EXPECT_TRUE(frame.ok()) << frame.status();
  proto::Hello hello;
  if (!frame.ok() || !frame->has_value()) {
    ADD_FAILURE() << "no frame";
    return hello;
  }
  EXPECT_TRUE(rest.empty());
  EXPECT_EQ((*frame)->kind, FrameKind::kHello);
  EXPECT_TRUE(ParseBody(**frame, "hello", &hello).ok());
  return hello;
}

TEST(Hello, OfEveryMinorVersionIsRead) {
  EXPECT_EQ(Canonical(Decode(kHelloOfMinor0)), Canonical(HelloOfMinor0()));
  EXPECT_EQ(Canonical(Decode(kHelloOfMinor1)), Canonical(HelloOfMinor1()));
}

TEST(Hello, IsWrittenAsRecorded) {
  EXPECT_EQ(absl::BytesToHexString(EncodeSessionFrame(
                FrameKind::kHello, HelloOfMinor1().SerializeAsString())),
            kHelloOfMinor1);
}

TEST(Heartbeats, FollowTheWishesOfPeersThatHaveSome) {
  const absl::Duration own = absl::Milliseconds(100);
  const absl::Duration liveness = absl::Seconds(2);
  const auto agree = [&](uint64_t interval_us, uint64_t liveness_us,
                         uint64_t features) {
    return AgreeOnHeartbeats(own, liveness, interval_us, liveness_us, features);
  };
  // Minor 0: four per liveness timeout, the shorter of both.
  HeartbeatTimes times = agree(0, 1'000'000, 0);
  EXPECT_EQ(times.interval, absl::Milliseconds(250));
  EXPECT_EQ(times.suspect_after, absl::Milliseconds(875));
  // Minor 1.
  times = agree(50'000, 2'000'000, proto::FEATURE_HEARTBEAT_INTERVAL);
  EXPECT_EQ(times.interval, absl::Milliseconds(50));
  EXPECT_EQ(times.suspect_after, absl::Milliseconds(350));
  // A wish cannot make heartbeats rarer than liveness needs.
  times = agree(60'000'000, 1'000'000, proto::FEATURE_HEARTBEAT_INTERVAL);
  EXPECT_EQ(times.interval, absl::Milliseconds(250));
  EXPECT_EQ(times.suspect_after, absl::Milliseconds(350));
  // A peer's wish cannot cause more than a hundred heartbeats a second, nor
  // make the peer suspect later than it counts as lost.
  EXPECT_EQ(agree(1, 2'000'000, 0).interval, absl::Milliseconds(10));
  EXPECT_LE(agree(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}).suspect_after,
            liveness);
}

// Frames of one direction as another minor version writes them.
std::string AsMinor(uint16_t minor, FrameKind kind, absl::string_view body) {
  std::string frame = EncodeSessionFrame(kind, body);
  frame[6] = static_cast<char>(minor & 0xff);
  frame[7] = static_cast<char>(minor >> 8);
  return frame;
}

// Fields that minor 0 does not know are missing in its hello.
std::string Downgrade(bool, const SessionFrame& frame) {
  std::string body = frame.body;
  if (frame.kind == FrameKind::kHello) {
    proto::Hello hello;
    EXPECT_TRUE(hello.ParseFromString(body));
    hello.clear_features();
    hello.clear_client();
    hello.clear_oldest_live_epoch();
    hello.clear_heartbeat_interval_us();
    for (proto::OfferedModel& model : *hello.mutable_models()) {
      model.clear_settings();
    }
    body = hello.SerializeAsString();
  } else if (frame.kind == FrameKind::kHelloReply) {
    proto::HelloReply reply;
    EXPECT_TRUE(reply.ParseFromString(body));
    reply.clear_features();
    reply.clear_heartbeat_interval_us();
    body = reply.SerializeAsString();
  } else if (frame.kind == FrameKind::kClose) {
    proto::Close close;
    EXPECT_TRUE(close.ParseFromString(body));
    close.clear_path_failed();
    body = close.SerializeAsString();
  }
  return AsMinor(0, frame.kind, body);
}

// Possible additions of a later minor version: unknown feature bits, and fields
// of every wire type with unknown numbers.
std::string Upgrade(bool, const SessionFrame& frame) {
  std::string body = frame.body;
  if (frame.kind == FrameKind::kHello) {
    proto::Hello hello;
    EXPECT_TRUE(hello.ParseFromString(body));
    hello.set_features(~uint64_t{0});
    body = hello.SerializeAsString();
  } else if (frame.kind == FrameKind::kHelloReply) {
    proto::HelloReply reply;
    EXPECT_TRUE(reply.ParseFromString(body));
    reply.set_features(~uint64_t{0});
    body = reply.SerializeAsString();
  }
  // Fields 500 to 503: varint, 64 bit, bytes, 32 bit.
  body += absl::HexStringToBytes(
      "a01f07"
      "a91f0102030405060708"
      "b21f03616263"
      "bd1f01020304");
  return AsMinor(999, frame.kind, body);
}

struct VersionCase {
  bool client = false;  // the client is of another version
  bool server = false;
  bool later = false;  // the other version is a later one
};

std::string CaseName(const testing::TestParamInfo<VersionCase>& info) {
  const std::string who = info.param.client && info.param.server ? "Both"
                          : info.param.client                    ? "Client"
                                                                 : "Server";
  return who + (info.param.later ? "Later" : "Earlier");
}

class VersionTest : public testing::TestWithParam<VersionCase> {
 protected:
  // Rewrites the messages of the client and / or the server.
  static TcpProxy::Rewrite Rewriter() {
    return [](bool from_client, const SessionFrame& frame) {
      const VersionCase& other = GetParam();
      if (from_client ? other.client : other.server) {
        return other.later ? Upgrade(from_client, frame)
                           : Downgrade(from_client, frame);
      }
      return EncodeSessionFrame(frame.kind, frame.body);
    };
  }
};

TEST_P(VersionTest, PeersOfNeighbouringMinorsWorkTogether) {
  FunctionHandler handler(Echo);
  ServerOptions server_options;
  server_options.host = "127.0.0.1";
  server_options.path = PathPreference::kTcp;
  server_options.liveness_timeout = absl::Milliseconds(800);
  auto server = Server::Create(server_options, &handler);
  ASSERT_TRUE(server.ok()) << server.status();
  TcpProxy proxy((*server)->port(), Rewriter());
  ClientOptions options;
  options.address = "127.0.0.1:" + std::to_string(proxy.port());
  options.path = PathPreference::kTcp;
  options.liveness_timeout = absl::Milliseconds(800);
  options.models = {{"model", 1, {}, {}}};
  auto client = Client::Create(options, nullptr);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(Eventually([&] { return (*client)->state().connected; }))
      << (*client)->state().last_error;
  const auto echo = [&](int64_t count) {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kFloat32, {count}}};
    auto request = (*client)->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, Contents(1, specs));
    Call call;
    (*client)->Send(*std::move(request), absl::InfiniteFuture(),
                    call.callback());
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ExpectTensors(call.Await()->tensors(), specs, Contents(1, specs));
  };
  ASSERT_NO_FATAL_FAILURE(echo(10));
  ASSERT_NO_FATAL_FAILURE(echo(200'000));
  // Idle for longer than the liveness timeout: heartbeats come often enough.
  absl::SleepFor(absl::Milliseconds(1200));
  ASSERT_NO_FATAL_FAILURE(echo(10));
  EXPECT_EQ((*client)->state().epoch, 1u);
  EXPECT_EQ((*server)->stats().violations, 0u);
  // Control frames.
  (*server)->StopAdmitting();
  EXPECT_TRUE(Eventually([&] { return !(*client)->state().connected; }));
}

INSTANTIATE_TEST_SUITE_P(Minors, VersionTest,
                         testing::Values(VersionCase{true, false, false},
                                         VersionCase{false, true, false},
                                         VersionCase{true, true, false},
                                         VersionCase{true, false, true},
                                         VersionCase{false, true, true}),
                         CaseName);

}  // namespace
}  // namespace refract::transport
