// What comes to an HN's port that is not a good client: garbage, other
// versions, half hellos, and clients that finish the handshake and then lie.
// After each, the server must go on serving the others.
#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "absl/strings/match.h"
#include "tests/transport/channel_fixture.h"
#include "transport/byte_order.h"
#include "transport/crc32c.h"
#include "transport/handshake.h"
#include "transport/identity.h"
#include "transport/path_setup.h"
#include "transport/paths.h"

namespace refract::transport {
namespace {

class HostilePeer : public testing::Test {
 protected:
  void SetUp() override {
    options_.host = "127.0.0.1";
    options_.limits.max_in_flight = 8;
    options_.limits.max_message_bytes = 1 << 20;
    options_.limits.source_arena_bytes = 4 << 20;
    StartServer();
    auto waker = Waker::Create();
    ASSERT_TRUE(waker.ok());
    waker_ = *waker;
  }

  void StartServer() {
    server_.reset();
    auto server = Server::Create(options_, &handler_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  Wait wait() {
    return {*waker_, base::Clock::Real(), [] { return absl::OkStatus(); }};
  }
  absl::Time patience() { return base::Clock::Real().Now() + kPatience; }

  UniqueFd Connect() {
    auto fd = ConnectTcp({"127.0.0.1", server_->port()}, wait(), patience());
    EXPECT_TRUE(fd.ok()) << fd.status();
    return fd.ok() ? *std::move(fd) : UniqueFd();
  }
  void Write(int fd, absl::string_view bytes) {
    // The server may already have hung up.
    [[maybe_unused]] const ssize_t n =
        send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Everything until the server hangs up; fails if it does not.
  std::string ReadToEnd(int fd) {
    std::string all;
    while (true) {
      pollfd poll_fd = {fd, POLLIN, 0};
      if (poll(&poll_fd, 1, 20'000) != 1) {
        ADD_FAILURE() << "the server keeps the connection";
        return all;
      }
      std::array<char, 4096> buffer;
      const ssize_t n = read(fd, buffer.data(), buffer.size());
      if (n <= 0) return all;
      all.append(buffer.data(), static_cast<size_t>(n));
    }
  }

  ClientOptions GoodOptions() {
    ClientOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    options.path = PathPreference::kTcp;
    options.limits = options_.limits;
    options.models.push_back({"model", 1, {}, {}});
    return options;
  }
  void ExpectServes() {
    auto client = Client::Create(GoodOptions(), nullptr);
    ASSERT_TRUE(client.ok());
    ASSERT_TRUE(Eventually([&] { return (*client)->state().connected; }))
        << (*client)->state().last_error;
    const std::vector<base::TensorSpec> specs = {{base::DType::kFloat32, {20}}};
    auto request = (*client)->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, Contents(1, specs));
    Call call;
    (*client)->Send(*std::move(request), absl::InfiniteFuture(),
                    call.callback());
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ExpectTensors(call.Await()->tensors(), specs, Contents(1, specs));
  }
  bool EventuallyRefused(uint64_t count) {
    return Eventually([&] { return server_->stats().refused >= count; });
  }

  // A client that has done everything right so far.
  absl::StatusOr<Established> Handshake() {
    const ClientOptions options = GoodOptions();
    const HostPort address{"127.0.0.1", server_->port()};
    return ClientHandshake(options, address, {proto::TRANSPORT_PATH_TCP}, 1,
                           waker_, wait());
  }

  std::string GoodHello() {
    proto::Hello hello;
    *hello.mutable_identity() = LocalIdentity();
    hello.add_paths(proto::TRANSPORT_PATH_TCP);
    *hello.mutable_limits() = AnnouncedLimits(options_.limits, 4);
    hello.add_models()->set_name("model");
    hello.set_epoch(1);
    hello.set_liveness_timeout_us(1'000'000);
    return hello.SerializeAsString();
  }

  ServerOptions options_;
  FunctionHandler handler_{Echo};
  std::unique_ptr<Server> server_;
  std::shared_ptr<Waker> waker_;
};

TEST_F(HostilePeer, GarbageIsRefusedAtOnce) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  uint64_t refused = 0;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0'),
        std::string(1 << 16, '\xff'), std::string("\x16\x03\x01\x02\x00")}) {
    const UniqueFd fd = Connect();
    Write(fd.get(), bytes);
    EXPECT_EQ(ReadToEnd(fd.get()), "");
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
  EXPECT_TRUE(absl::StrContains(reply.status().message(), "protocol 2.0"))
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
  base::ManualClock clock;
  options_.clock = &clock;
  options_.liveness_timeout = absl::Hours(1);
  StartServer();
  const std::string hello = EncodeSessionFrame(FrameKind::kHello, GoodHello());
  std::vector<UniqueFd> slow;
  for (size_t i = 0; i < 8; ++i) {
    slow.push_back(Connect());
    Write(slow.back().get(), hello.substr(0, i));
  }
  // They hold up nobody.
  ExpectServes();
  EXPECT_EQ(server_->stats().refused, 0u);
  // Again and again, because a connection's time starts when its thread does.
  EXPECT_TRUE(Eventually([&] {
    clock.Advance(options_.handshake_timeout + absl::Milliseconds(1));
    return server_->stats().refused == 8;
  }));
  for (const UniqueFd& fd : slow) EXPECT_EQ(ReadToEnd(fd.get()), "");
}

TEST_F(HostilePeer, SilenceInTheMiddleOfTheHandshakeIsCutOff) {
  base::ManualClock clock;
  options_.clock = &clock;
  StartServer();
  const UniqueFd fd = Connect();
  Write(fd.get(), EncodeSessionFrame(FrameKind::kHello, GoodHello()));
  ASSERT_TRUE(Eventually([&] { return server_->stats().connections == 1; }));
  clock.Advance(options_.handshake_timeout + absl::Milliseconds(1));
  ReadToEnd(fd.get());
  EXPECT_TRUE(EventuallyRefused(1));
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
}

TEST_F(HostilePeer, SilentClientIsDroppedAfterTheLivenessTimeout) {
  base::ManualClock clock;
  options_.clock = &clock;
  StartServer();
  absl::StatusOr<Established> peer = Handshake();
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(Eventually([&] { return server_->stats().accepted == 1; }));
  EXPECT_EQ(server_->stats().connections, 1);
  EXPECT_TRUE(Eventually([&] {
    clock.Advance(options_.liveness_timeout + absl::Milliseconds(1));
    return server_->stats().connections == 0;
  }));
  EXPECT_EQ(server_->stats().violations, 0u);
}

// Messages of a peer that passed the handshake. Each is one connection.
class LyingClient : public HostilePeer {
 protected:
  struct Peer {
    Established link;
    ArenaBlock block;
    std::byte* data = nullptr;
  };
  std::unique_ptr<Peer> NewPeer() {
    absl::StatusOr<Established> link = Handshake();
    EXPECT_TRUE(link.ok()) << link.status();
    if (!link.ok()) return nullptr;
    auto peer = std::make_unique<Peer>();
    peer->link = *std::move(link);
    peer->block = *peer->link.setup.memory->source->Allocate(64 << 10);
    peer->data = peer->block.data();
    return peer;
  }
  // A valid request of one tensor, at peer.data. Returns its length.
  size_t WriteGood(Peer& peer, MessageHeader* header) {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kFloat32, {3, 4}}};
    const MessageLayout layout = *LayoutMessage(specs, 0, 1 << 20);
    header->kind = MessageKind::kRequest;
    header->tensor_count = 1;
    header->id = 77;
    header->table_bytes = static_cast<uint32_t>(layout.table_bytes);
    header->total_bytes = layout.total_bytes;
    header->epoch = 1;
    std::memset(peer.data, 0, 64 << 10);
    EncodeHeader(*header, peer.data);
    EncodeTable(specs, layout, peer.data + kHeaderBytes);
    return layout.total_bytes;
  }
  void Put(Peer& peer, size_t bytes, uint32_t imm, uint64_t offset = 0) {
    ASSERT_EQ(peer.link.path->PutNotify(peer.link.setup.peer_slots, offset,
                                        {peer.data, bytes}, imm, 0),
              PostResult::kPosted);
    std::array<Completion, 8> ignored;
    peer.link.path->Poll(absl::MakeSpan(ignored));
  }
  static uint32_t Message(uint16_t slot = 0, uint16_t generation = 0) {
    return EncodeImm({ImmKind::kMessage, slot, generation});
  }
  // The server must hang up and count it.
  void ExpectViolation(Peer& peer, const std::string& what) {
    ++violations_;
    EXPECT_TRUE(Eventually([&] {
      return server_->stats().violations == violations_;
    })) << what
        << ": " << server_->stats().violations << " of " << violations_;
    EXPECT_TRUE(Eventually([&] {
      std::array<Completion, 8> ignored;
      peer.link.path->Poll(absl::MakeSpan(ignored));
      return !peer.link.path->status().ok();
    })) << what;
  }
  uint64_t violations_ = 0;
};

TEST_F(LyingClient, TheGoodMessageIsAnswered) {
  auto peer = NewPeer();
  ASSERT_NE(peer, nullptr);
  MessageHeader header;
  const size_t bytes = WriteGood(*peer, &header);
  Put(*peer, bytes, Message());
  EXPECT_TRUE(Eventually([&] {
    std::array<Completion, 8> out;
    const size_t count = peer->link.path->Poll(absl::MakeSpan(out));
    return std::any_of(out.begin(), out.begin() + count, [](const auto& c) {
      return c.kind == Completion::Kind::kNotify;
    });
  }));
  EXPECT_EQ(server_->stats().requests, 1u);
}

TEST_F(LyingClient, ForgedImmediates) {
  for (const uint32_t imm :
       {0u, 0xffffffffu, Message(0, 1), Message(0, 0xffff), Message(9),
        Message(8191), EncodeImm({ImmKind::kCredit, 0, 1}),
        EncodeImm({ImmKind::kCredit, 8191, 1}),
        EncodeImm({ImmKind::kProbe, 0, 0}), 4u << 29, 7u << 29}) {
    auto peer = NewPeer();
    ASSERT_NE(peer, nullptr);
    MessageHeader header;
    const size_t bytes = WriteGood(*peer, &header);
    Put(*peer, bytes, imm);
    ExpectViolation(*peer, "immediate " + std::to_string(imm));
  }
  EXPECT_EQ(server_->stats().requests, 0u);
  ExpectServes();
}

TEST_F(LyingClient, SlotUsedTwiceWithoutACredit) {
  auto peer = NewPeer();
  ASSERT_NE(peer, nullptr);
  MessageHeader header;
  const size_t bytes = WriteGood(*peer, &header);
  Put(*peer, bytes, Message());
  ASSERT_EQ(peer->link.path->PutNotify(peer->link.setup.peer_slots, 0,
                                       {peer->data, bytes}, Message(), 0),
            PostResult::kPosted);
  std::array<Completion, 8> ignored;
  peer->link.path->Poll(absl::MakeSpan(ignored));
  ExpectViolation(*peer, "slot used twice");
  ExpectServes();
}

TEST_F(LyingClient, ForgedHeaders) {
  using H = MessageHeader;
  const std::vector<std::pair<std::string, std::function<void(H&)>>> cases = {
      {"response to a server", [](H& h) { h.kind = MessageKind::kResponse; }},
      {"model that was not offered", [](H& h) { h.model = 1; }},
      {"longer than the slot, not pulled",
       [](H& h) { h.total_bytes = (64 << 10) + 64; }},
      {"longer than any message", [](H& h) { h.total_bytes = 2 << 20; }},
      {"more tensors than the table", [](H& h) { h.tensor_count = 2; }},
      {"fewer tensors than the table", [](H& h) { h.tensor_count = 0; }},
      {"table of another length", [](H& h) { h.table_bytes += 8; }},
      {"pulled from outside the arena",
       [](H& h) {
         h.pulled = true;
         h.source_offset = uint64_t{1} << 40;
       }},
      {"pulled across the end of the arena",
       [&](H& h) {
         h.pulled = true;
         h.total_bytes = 1 << 20;
         h.source_offset = ~uint64_t{0} - 100;
       }},
  };
  for (const auto& [what, change] : cases) {
    auto peer = NewPeer();
    ASSERT_NE(peer, nullptr);
    MessageHeader header;
    const size_t bytes = WriteGood(*peer, &header);
    change(header);
    EncodeHeader(header, peer->data);
    Put(*peer, bytes, Message());
    ExpectViolation(*peer, what);
  }
  EXPECT_EQ(server_->stats().requests, 0u);
  ExpectServes();
}

TEST_F(LyingClient, MessageOfAnOldEpochIsDroppedAndItsSlotCredited) {
  auto peer = NewPeer();
  ASSERT_NE(peer, nullptr);
  MessageHeader header;
  size_t bytes = WriteGood(*peer, &header);
  header.epoch = 0;
  EncodeHeader(header, peer->data);
  Put(*peer, bytes, Message());
  std::vector<uint32_t> imms;
  const auto poll = [&] {
    std::array<Completion, 8> out;
    const size_t count = peer->link.path->Poll(absl::MakeSpan(out));
    for (size_t i = 0; i < count; ++i) {
      if (out[i].kind == Completion::Kind::kNotify) imms.push_back(out[i].imm);
    }
  };
  ASSERT_TRUE(Eventually([&] {
    poll();
    return !imms.empty();
  }));
  EXPECT_EQ(imms.front(), EncodeImm({ImmKind::kCredit, 0, 1}));
  EXPECT_EQ(server_->stats().requests, 0u);
  EXPECT_EQ(server_->stats().violations, 0u);
}

// Any change of any bytes of a message, with the checksum put right again.
TEST_F(LyingClient, FuzzedMessages) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    auto peer = NewPeer();
    ASSERT_NE(peer, nullptr);
    for (uint16_t slot = 0; slot < 4; ++slot) {
      MessageHeader header;
      const size_t bytes = WriteGood(*peer, &header);
      header.id = slot;
      EncodeHeader(header, peer->data);
      for (uint32_t flips = 1 + random() % 3; flips > 0; --flips) {
        peer->data[random() % 128] = std::byte(random());
      }
      StoreLittle<uint32_t>(peer->data + 60, Crc32c({peer->data, 60}));
      if (!peer->link.path->status().ok()) break;
      const PostResult posted = peer->link.path->PutNotify(
          peer->link.setup.peer_slots, slot * peer->link.setup.peer_slot_bytes,
          {peer->data, bytes}, Message(slot), 0);
      if (posted != PostResult::kPosted) break;
      std::array<Completion, 8> ignored;
      peer->link.path->Poll(absl::MakeSpan(ignored));
    }
  }
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_GT(server_->stats().violations, 0u);
  ExpectServes();
}

TEST_F(LyingClient, BrokenControlFrames) {
  for (const std::string& bytes :
       {std::string("garbage on the session"),
        EncodeSessionFrame(FrameKind::kCancel, "\xff\xff\xff"),
        EncodeSessionFrame(FrameKind::kGoaway, ""),
        EncodeSessionFrame(FrameKind::kHello, GoodHello())}) {
    auto peer = NewPeer();
    ASSERT_NE(peer, nullptr);
    Write(peer->link.session.fd(), bytes);
    ExpectViolation(*peer, "control frame");
  }
  ExpectServes();
}

}  // namespace
}  // namespace refract::transport
