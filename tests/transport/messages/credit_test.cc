// Slots and credits of an endpoint: a sender without credits waits; no slot in
// use is written, in whatever order slots come back; credits that nobody owes
// end the connection.
#include <glog/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/base/random_seed.h"
#include "tests/transport/testing/endpoint_fixture.h"
#include "tests/transport/testing/fake_path.h"
#include "tests/transport/testing/function_sink.h"
#include "tests/transport/testing/link_memory_fixture.h"

namespace refract::transport {
namespace {

Limits FewSlots() {
  Limits limits;
  limits.max_in_flight = 7;  // so eight slots
  limits.max_message_bytes = 1 << 20;
  limits.source_arena_bytes = 8 << 20;
  return limits;
}

class CreditTest : public testing::TestWithParam<proto::TransportPath> {
 protected:
  // Steps both sides until neither has work.
  void Settle() {
    for (int idle = 0; idle < 3;) {
      pair_.client->worked = pair_.server->worked = 0;
      ASSERT_TRUE(pair_.client->Step().ok());
      ASSERT_TRUE(pair_.server->Step().ok());
      idle = pair_.client->worked + pair_.server->worked == 0 ? idle + 1 : 0;
    }
  }

  EndpointPair pair_ = ConnectEndpoints(GetParam(), FewSlots());
};

TEST_P(CreditTest, SenderWithoutCreditsWaits) {
  constexpr int kMessages = 40;
  // Odd messages are pulled, and give their slots back when their bytes have
  // arrived.
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(
        pair_.client->Send(i, i % 2 == 0 ? 100 : 200'000, uint8_t(i)).ok());
  }
  Settle();
  size_t eager = 0;
  const auto count = [&] {
    eager = 0;
    for (const auto& received : pair_.server->received) {
      if (!received.header.pulled) ++eager;
    }
    return eager;
  };
  // Every slot holds a message that nobody has read yet.
  EXPECT_EQ(count(), static_cast<size_t>(pair_.server->num_slots));
  EXPECT_GT(pair_.client->endpoint->num_waiting(), 0u);
  EXPECT_FALSE(pair_.client->endpoint->all_sent());
  const size_t waiting = pair_.client->endpoint->num_waiting();
  Settle();
  EXPECT_EQ(pair_.client->endpoint->num_waiting(), waiting);

  // A quarter of the slots comes back at once: exactly as many go on.
  std::vector<uint64_t> order;
  auto& received = pair_.server->received;
  const size_t freed = static_cast<size_t>(pair_.server->num_slots) / 4;
  for (size_t i = 0; i < freed; ++i) {
    const auto at = std::find_if(
        received.begin(), received.end(),
        [](const auto& message) { return !message.header.pulled; });
    order.push_back(at->header.id);
    received.erase(at);
  }
  Settle();
  EXPECT_EQ(count(), static_cast<size_t>(pair_.server->num_slots));

  while (order.size() < kMessages) {
    ASSERT_FALSE(received.empty()) << "stuck after " << order.size();
    const uint64_t id = received.front().header.id;
    EXPECT_TRUE(HoldsOnly(*received.front().message, uint8_t(id)));
    order.push_back(id);
    received.pop_front();
    Settle();
  }
  EXPECT_TRUE(pair_.client->endpoint->all_sent());
  std::sort(order.begin(), order.end());
  for (uint64_t i = 0; i < kMessages; ++i) EXPECT_EQ(order[i], i);
}

// Messages are held for any time and released in any order; the bytes of a held
// message do not change.
TEST_P(CreditTest, SlotsFreedInAnyOrderKeepTheirCanaries) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr uint64_t kMessages = 100'000;
  uint64_t sent = 0;
  uint64_t freed = 0;
  auto& received = pair_.server->received;
  std::vector<uint64_t> seen(kMessages, 0);
  int idle = 0;
  while (freed < kMessages) {
    if (sent < kMessages && pair_.client->endpoint->num_waiting() < 4) {
      const size_t bytes = random() % 300;
      ASSERT_TRUE(pair_.client->Send(sent, bytes, uint8_t(sent * 7)).ok());
      ++sent;
    }
    ASSERT_TRUE(pair_.client->Step().ok());
    ASSERT_TRUE(pair_.server->Step().ok());
    const bool must =
        received.size() == static_cast<size_t>(pair_.server->num_slots) ||
        sent == kMessages;
    if (received.empty() || (!must && random() % 3 != 0)) {
      ASSERT_LT(++idle, 100'000) << "stuck after " << freed;
      continue;
    }
    idle = 0;
    const auto at =
        received.begin() + static_cast<ptrdiff_t>(random() % received.size());
    ASSERT_TRUE(HoldsOnly(*at->message, uint8_t(at->header.id * 7)))
        << "message " << at->header.id;
    ASSERT_EQ(seen[at->header.id]++, 0u);
    received.erase(at);
    ++freed;
  }
  Settle();
  EXPECT_TRUE(pair_.client->endpoint->all_sent());
  EXPECT_EQ(pair_.client->memory->source->used_bytes(), 0u);
}

// A receiver that holds messages until more arrive, for a batch, gets a message
// per slot: when the sender has no credit left, it gets all credits that it is
// owed, however few.
TEST_P(CreditTest, SenderThatRunsDryIsPaidWhatIsOwed) {
  auto& received = pair_.server->received;
  const auto slots = static_cast<size_t>(pair_.server->num_slots);
  ASSERT_GT(CreditThreshold(pair_.server->num_slots), 1u);
  // The server owes a credit and does not send it.
  ASSERT_TRUE(pair_.client->Send(0, 100, 1).ok());
  Settle();
  received.clear();
  Settle();
  for (uint64_t i = 1; i <= slots; ++i) {
    ASSERT_TRUE(pair_.client->Send(i, 100, 1).ok());
  }
  Settle();
  EXPECT_EQ(received.size(), slots);
  // The same when the reader releases the message after the others have come.
  ASSERT_TRUE(pair_.client->Send(100, 100, 1).ok());
  Settle();
  EXPECT_EQ(received.size(), slots);
  received.pop_front();
  Settle();
  EXPECT_EQ(received.size(), slots);
  EXPECT_EQ(received.back().header.id, 100u);
}

INSTANTIATE_TEST_SUITE_P(Paths, CreditTest,
                         testing::Values(proto::TRANSPORT_PATH_SHM,
                                         proto::TRANSPORT_PATH_TCP),
                         TransportPathName);

// Two endpoints over paths that deliver as the test likes: bytes as early as
// they may come, notifications late, and those of credits in any order.
class ReorderedCredits {
 public:
  static constexpr int kSlots = 4;
  static constexpr size_t kSlotBytes = kMinSlotBytes;

  struct Side {
    FakePath path;
    std::shared_ptr<LinkMemory> memory;
    FunctionSink sink{[this](const MessageHeader& header, absl::string_view,
                             IncomingMessage::ImplPtr message) {
      held.emplace_back(header.id, std::move(message));
      return absl::OkStatus();
    }};
    std::optional<Endpoint> endpoint;
    std::vector<uint32_t> credits;  // on their way here
    std::deque<uint32_t> messages;  // on their way here
    std::vector<std::pair<uint64_t, IncomingMessage::ImplPtr>> held;
  };

  ReorderedCredits() {
    for (Side& side : sides_) {
      const Region slots =
          *side.path.CreateRegion(kSlots * kSlotBytes, Access::kRemoteWrite);
      const Region source =
          *side.path.CreateRegion(kArenaBytes * 2, Access::kRemoteRead);
      const Region pulls = *side.path.CreateRegion(kArenaBytes, Access::kLocal);
      const std::shared_ptr<ThreadWaker> waker = *ThreadWaker::Create();
      side.memory = NewLinkMemory(slots, source, pulls, kArenaBytes,
                                  kArenaBytes, kSlots, waker);
    }
    Connect(sides_[0], sides_[1], MessageKind::kResponse);
    Connect(sides_[1], sides_[0], MessageKind::kRequest);
  }
  ~ReorderedCredits() {
    for (Side& side : sides_) {
      side.held.clear();
      side.endpoint.reset();
    }
  }

  Side& client() { return sides_[0]; }
  Side& server() { return sides_[1]; }

  absl::Status Step(Side& side, std::mt19937& random) {
    // Credits overtake each other and messages; messages keep their order.
    while (!side.credits.empty() && random() % 4 != 0) {
      const size_t at = random() % side.credits.size();
      side.path.Notify(side.credits[at]);
      side.credits[at] = side.credits.back();
      side.credits.pop_back();
    }
    while (!side.messages.empty() && random() % 3 != 0) {
      side.path.Notify(side.messages.front());
      side.messages.pop_front();
    }
    side.path.full_posts = random() % 8 == 0 ? 2 : 0;
    side.path.CompletePuts(random() % 4);
    int worked = 0;
    int heard = 0;
    return side.endpoint->Progress(absl::UnixEpoch(), &worked, &heard);
  }

 private:
  static constexpr size_t kArenaBytes = size_t{256} << 10;

  static void Connect(Side& from, Side& to, MessageKind receives) {
    from.path.on_put = [&to](const RemoteRegion&, uint64_t offset,
                             absl::Span<const std::byte> source,
                             std::optional<uint32_t> imm) {
      if (!source.empty()) {
        std::memcpy(to.memory->slots.data() + offset, source.data(),
                    source.size());
      }
      const auto decoded = DecodeImm(*imm);
      CHECK(decoded.has_value());
      if (decoded->kind == ImmKind::kCredit) {
        to.credits.push_back(*imm);
      } else {
        to.messages.push_back(*imm);
      }
    };
    EndpointSetup setup;
    setup.memory = from.memory;
    setup.peer_slots = {1, kSlots * kSlotBytes};
    setup.peer_source = {2, kArenaBytes * 2};
    setup.peer_num_slots = setup.num_slots = kSlots;
    setup.peer_slot_bytes = setup.slot_bytes = kSlotBytes;
    setup.eager_bytes = kSlotBytes;
    setup.max_receive_bytes = kArenaBytes;
    setup.epoch = 1;
    setup.receives = receives;
    from.endpoint.emplace(&from.path, std::move(setup), &from.sink);
  }

  std::array<Side, 2> sides_;
};

TEST(CreditOrder, CreditsThatOvertakeEachOtherLoseNothing) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  ReorderedCredits both;
  constexpr uint64_t kMessages = 100'000;
  auto& client = both.client();
  auto& server = both.server();
  const std::vector<base::TensorSpec> specs = {{base::DType::kUInt8, {64}}};
  uint64_t sent = 0;
  uint64_t freed = 0;
  for (uint64_t round = 0; freed < kMessages; ++round) {
    ASSERT_LT(round, 100 * kMessages) << "stuck after " << freed;
    if (sent < kMessages && client.endpoint->num_waiting() < 3) {
      auto message = NewMessage(client.memory, MessageKind::kRequest, specs);
      ASSERT_TRUE(message.ok()) << message.status();
      std::memset((*message)->block.data() + (*message)->layout.payload_begin,
                  static_cast<int>(sent * 13 & 0xff), 64);
      client.endpoint->Send(*std::move(message), sent++,
                            absl::InfiniteFuture());
    }
    ASSERT_TRUE(both.Step(client, random).ok());
    ASSERT_TRUE(both.Step(server, random).ok());
    if (server.held.empty() || random() % 2 == 0) continue;
    const size_t at = random() % server.held.size();
    ASSERT_TRUE(
        HoldsOnly(*server.held[at].second, uint8_t(server.held[at].first * 13)))
        << "message " << server.held[at].first;
    server.held[at] = std::move(server.held.back());
    server.held.pop_back();
    ++freed;
  }
}

// With so few slots that a quarter of them is one slot, each message would
// bring a credit message of its own.
TEST(CreditOrder, FewSlotsDoNotComeBackOneByOne) {
  ReorderedCredits both;
  auto& client = both.client();
  auto& server = both.server();
  const std::vector<base::TensorSpec> specs = {{base::DType::kUInt8, {64}}};
  const auto step = [](ReorderedCredits::Side& side) {
    for (const uint32_t imm : std::exchange(side.credits, {})) {
      side.path.Notify(imm);
    }
    for (const uint32_t imm : std::exchange(side.messages, {})) {
      side.path.Notify(imm);
    }
    int worked = 0;
    int heard = 0;
    ASSERT_TRUE(
        side.endpoint->Progress(absl::UnixEpoch(), &worked, &heard).ok());
    side.path.CompletePuts(100);
  };
  const auto send = [&](ReorderedCredits::Side& from, MessageKind kind) {
    auto message = NewMessage(from.memory, kind, specs);
    ASSERT_TRUE(message.ok());
    from.endpoint->Send(*std::move(message), 1, absl::InfiniteFuture());
    step(from);
  };
  ASSERT_EQ(CreditThreshold(ReorderedCredits::kSlots), 2u);
  for (int i = 0; i < 10; ++i) {
    send(client, MessageKind::kRequest);
    step(server);
    ASSERT_EQ(server.held.size(), 1u);
    server.held.clear();
    step(server);
    EXPECT_EQ(client.credits.size(), i % 2 == 0 ? 0u : 2u) << "message " << i;
    step(client);
  }
  // Messages of the other direction bring no single credits, either.
  send(client, MessageKind::kRequest);
  step(server);
  server.held.clear();
  step(server);
  send(server, MessageKind::kResponse);
  EXPECT_EQ(client.messages.size(), 1u);
  EXPECT_TRUE(client.credits.empty());
}

TEST(CreditOrder, AQuarterOfTheSlotsIsKeptButOfFewOne) {
  EXPECT_EQ(CreditThreshold(2), 2u);
  EXPECT_EQ(CreditThreshold(4), 2u);
  EXPECT_EQ(CreditThreshold(11), 2u);
  EXPECT_EQ(CreditThreshold(65), 16u);
}

// Credits are posted after a message: each costs the path an operation, for
// which a message would wait.
TEST(CreditOrder, CreditsThatAreDueFollowMessages) {
  ReorderedCredits both;
  auto& client = both.client();
  auto& server = both.server();
  std::vector<ImmKind> posted;
  server.path.on_put = [&posted, forward = server.path.on_put](
                           const RemoteRegion& to, uint64_t offset,
                           absl::Span<const std::byte> source,
                           std::optional<uint32_t> imm) {
    posted.push_back(DecodeImm(*imm)->kind);
    forward(to, offset, source, imm);
  };
  std::mt19937 random(1);
  const std::vector<base::TensorSpec> specs = {{base::DType::kUInt8, {64}}};
  const auto send = [&specs](auto& side, MessageKind kind) {
    auto message = NewMessage(side.memory, kind, specs);
    ASSERT_TRUE(message.ok()) << message.status();
    side.endpoint->Send(*std::move(message), 1, absl::InfiniteFuture());
  };
  for (size_t i = 0; i < CreditThreshold(ReorderedCredits::kSlots); ++i) {
    send(client, MessageKind::kRequest);
  }
  while (server.held.size() < CreditThreshold(ReorderedCredits::kSlots)) {
    ASSERT_TRUE(both.Step(client, random).ok());
    ASSERT_TRUE(both.Step(server, random).ok());
  }
  server.held.clear();
  send(server, MessageKind::kResponse);
  while (client.held.empty()) {
    ASSERT_TRUE(both.Step(server, random).ok());
    ASSERT_TRUE(both.Step(client, random).ok());
  }
  EXPECT_EQ(posted, (std::vector<ImmKind>{ImmKind::kMessage, ImmKind::kCredit,
                                          ImmKind::kCredit}));
}

// A credit says "slot s, generation g", so a repeated credit is recognised.
TEST(CreditOrder, CreditThatComesTwiceEndsTheConnection) {
  ReorderedCredits both;
  auto& client = both.client();
  const std::vector<base::TensorSpec> specs = {{base::DType::kUInt8, {64}}};
  const auto step = [&] {
    int worked = 0;
    int heard = 0;
    return client.endpoint->Progress(absl::UnixEpoch(), &worked, &heard);
  };
  const auto send = [&](uint64_t id) {
    auto message = NewMessage(client.memory, MessageKind::kRequest, specs);
    ASSERT_TRUE(message.ok());
    client.endpoint->Send(*std::move(message), id, absl::InfiniteFuture());
  };
  send(0);
  ASSERT_TRUE(step().ok());
  const uint32_t credit = EncodeImm({ImmKind::kCredit, 0, 1});
  client.path.Notify(credit);
  ASSERT_TRUE(step().ok());
  // A repeated credit has no effect when the slot is in use again, either.
  send(1);
  ASSERT_TRUE(step().ok());
  client.path.Notify(credit);
  const absl::Status status = step();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace refract::transport
