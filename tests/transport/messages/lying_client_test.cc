// Clients that finish the handshake and then lie. Each must lose its
// connection, be counted, and hurt nobody else.
#include "tests/base/random_seed.h"
#include "tests/transport/testing/cancel_storm.h"
#include "tests/transport/testing/hostile_peer_fixture.h"

namespace refract::transport {
namespace {

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
  // Leaves with the next Poll.
  void Put(Peer& peer, size_t bytes, uint32_t imm, uint64_t offset = 0) {
    ASSERT_EQ(peer.link.path->PutNotify(peer.link.setup.peer_slots, offset,
                                        {peer.data, bytes}, imm, 0),
              PostResult::kPosted);
  }
  // Immediates that came.
  static std::vector<uint32_t> Poll(Peer& peer) {
    std::array<Completion, 64> out;
    const size_t count = peer.link.path->Poll(absl::MakeSpan(out));
    std::vector<uint32_t> imms;
    for (size_t i = 0; i < count; ++i) {
      if (out[i].kind == Completion::Kind::kNotify) imms.push_back(out[i].imm);
    }
    return imms;
  }
  static uint32_t Message(uint16_t slot = 0, uint16_t generation = 0) {
    return EncodeImm({ImmKind::kMessage, slot, generation});
  }
  // The server must hang up and count it.
  void ExpectViolation(Peer& peer, const std::string& what) {
    ++violations_;
    EXPECT_TRUE(Eventually([&] {
      Poll(peer);
      return server_->stats().violations == violations_;
    })) << what
        << ": " << server_->stats().violations << " of " << violations_;
    EXPECT_TRUE(Eventually([&] {
      Poll(peer);
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
  EXPECT_TRUE(Eventually([&] { return !Poll(*peer).empty(); }));
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
  Put(*peer, bytes, Message());
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
  ASSERT_TRUE(Eventually([&] {
    imms = Poll(*peer);
    return !imms.empty();
  }));
  EXPECT_EQ(imms.front(), EncodeImm({ImmKind::kCredit, 0, 1}));
  EXPECT_EQ(server_->stats().requests, 0u);
  EXPECT_EQ(server_->stats().violations, 0u);
}

// Any change of any bytes of a message, with the checksum put right again.
TEST_F(LyingClient, FuzzedMessages) {
  const uint32_t seed = base::RandomSeed();
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
      Poll(*peer);
    }
  }
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_GT(server_->stats().violations, 0u);
  ExpectServes();
}

// The client sends requests with all its credits and never gives one back.
TEST_F(LyingClient, AnswersThatAreNeverTaken) {
  auto peer = NewPeer();
  ASSERT_NE(peer, nullptr);
  EndpointSetup& setup = peer->link.setup;
  SendSlots slots(setup.peer_num_slots);
  uint64_t sent = 0;
  EXPECT_TRUE(Eventually([&] {
    for (const uint32_t bits : Poll(*peer)) {
      const Imm imm = *DecodeImm(bits);
      if (imm.kind == ImmKind::kCredit) {
        EXPECT_TRUE(slots.Credit({imm.slot, imm.generation}).ok());
      }
    }
    while (const auto grant = slots.Take()) {
      MessageHeader header;
      const size_t bytes = WriteGood(*peer, &header);
      header.id = sent++;
      EncodeHeader(header, peer->data);
      const uint64_t offset = grant->slot * setup.peer_slot_bytes;
      if (peer->link.path->PutNotify(setup.peer_slots, offset,
                                     {peer->data, bytes},
                                     Message(grant->slot, grant->generation),
                                     0) != PostResult::kPosted) {
        break;
      }
      peer->link.path->Poll({});
    }
    return server_->stats().violations == 1;
  }));
  // Slots for answers, then twice the refusals before it hangs up.
  EXPECT_LE(sent, 100u);
  EXPECT_LE(server_->stats().requests, 9u + 2 * 8 + 1);
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

TEST_F(LyingClient, CancelFramesAtTheWrongTimeHurtNobody) {
  auto peer = NewPeer();
  ASSERT_NE(peer, nullptr);
  const auto cancel = [&](uint64_t id) {
    proto::Cancel frame;
    frame.set_id(id);
    Write(peer->link.session.fd(),
          EncodeSessionFrame(FrameKind::kCancel, frame.SerializeAsString()));
  };
  int answers = 0;
  const auto poll = [&] {
    for (const uint32_t imm : Poll(*peer)) {
      const auto decoded = DecodeImm(imm);
      ASSERT_TRUE(decoded.has_value());
      answers += decoded->kind == ImmKind::kMessage;
    }
  };
  // Cancels more ids of unsent requests than are remembered, some twice.
  for (uint64_t id = 1000; id < 3000; ++id) cancel(id);
  for (uint64_t id = 0; id < 3; ++id) cancel(2999);
  // After the answer, twice.
  MessageHeader header;
  const size_t bytes = WriteGood(*peer, &header);
  Put(*peer, bytes, Message());
  EXPECT_TRUE(Eventually([&] {
    poll();
    return answers == 1;
  }));
  cancel(77);
  cancel(77);
  EXPECT_EQ(server_->stats().requests, 1u);
  EXPECT_EQ(server_->stats().violations, 0u);
  EXPECT_TRUE(peer->link.path->status().ok());
  ExpectServes();
  EXPECT_EQ(server_->stats().violations, 0u);
}

TEST_F(LyingClient, ARequestIdThatIsInUse) {
  KeepingHandler keeping;
  server_.reset();
  auto server = Server::Create(options_, &keeping);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  auto peer = NewPeer();
  ASSERT_NE(peer, nullptr);
  MessageHeader header;
  const size_t bytes = WriteGood(*peer, &header);
  Put(*peer, bytes, Message());
  EXPECT_TRUE(Eventually([&] {
    Poll(*peer);
    return keeping.size() == 1;
  }));
  // The same id in a message that is good otherwise.
  Put(*peer, bytes, Message(1), peer->link.setup.peer_slot_bytes);
  ExpectViolation(*peer, "request id in use");
  EXPECT_EQ(keeping.size(), 1u);
}

TEST_F(LyingClient, ACancelFrameThatOvertakesItsRequestIsRemembered) {
  KeepingHandler keeping;
  server_.reset();
  auto server = Server::Create(options_, &keeping);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  auto peer = NewPeer();
  ASSERT_NE(peer, nullptr);
  const auto cancel = [&](uint64_t id) {
    proto::Cancel frame;
    frame.set_id(id);
    Write(peer->link.session.fd(),
          EncodeSessionFrame(FrameKind::kCancel, frame.SerializeAsString()));
  };
  const size_t slot_bytes = peer->link.setup.peer_slot_bytes;
  MessageHeader header;
  const size_t bytes = WriteGood(*peer, &header);
  Put(*peer, bytes, Message());
  EXPECT_TRUE(Eventually([&] {
    Poll(*peer);
    return keeping.size() == 1;
  }));
  const auto call = keeping.Await();
  ASSERT_NE(call, nullptr);
  cancel(78);
  cancel(79);
  // In order, so the server knows of the others when it knows of this.
  cancel(77);
  EXPECT_TRUE(Eventually([&] {
    Poll(*peer);
    return keeping.abandoned == 1;
  }));
  header.id = 78;
  EncodeHeader(header, peer->data);
  Put(*peer, bytes, Message(1), slot_bytes);
  EXPECT_TRUE(Eventually([&] {
    Poll(*peer);
    return keeping.withdrawn == 1;
  }));
  header.id = 79;
  header.pulled = true;
  header.source_offset = peer->block.offset() + header.payload_begin();
  EncodeHeader(header, peer->data);
  Put(*peer, header.payload_begin(), Message(2), 2 * slot_bytes);
  EXPECT_TRUE(Eventually([&] {
    Poll(*peer);
    return keeping.withdrawn == 2;
  }));
  EXPECT_EQ(keeping.announced, 0);
  EXPECT_EQ(keeping.size(), 0u);
  // Requests that were not cancelled arrive, pulled requests too.
  header.id = 80;
  EncodeHeader(header, peer->data);
  Put(*peer, header.payload_begin(), Message(3), 3 * slot_bytes);
  EXPECT_TRUE(Eventually([&] {
    Poll(*peer);
    return keeping.size() == 1;
  }));
  EXPECT_EQ(server_->stats().violations, 0u);
  server_.reset();
}

}  // namespace
}  // namespace refract::transport
