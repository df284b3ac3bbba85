// Peers that guess the keys of other connections. Keys travel in clear and
// devices give them out nearly in order, so guessing is no obstacle.
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/sim/paths.h"
#include "transport/verbs/descriptor.h"

namespace refract::transport::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kBytes = 4096;

// A server's path and its client's, connected.
struct Connection {
  Connection(Process& server, Process& client)
      : server(server.NewPath()), client(client.NewPath()) {
    slots = *this->server->CreateRegion(kBytes, Access::kRemoteWrite);
    answers = *this->server->CreateRegion(kBytes, Access::kRemoteRead);
    own = *this->client->CreateRegion(kBytes, Access::kLocal);
    const Region inbox =
        *this->client->CreateRegion(kBytes, Access::kRemoteWrite);
    CHECK(this->server->Import(*this->client->Export(inbox)).ok());
    peer_slots = *this->client->Import(*this->server->Export(slots));
  }
  // A region that this client forges from the descriptor of another client: the
  // other client's address and key, over its own queue pairs.
  RemoteRegion Forge(const Connection& other, const Region& region,
                     uint32_t id) {
    verbs::RegionDescription forged =
        *verbs::DecodeRegion(*other.server->Export(region));
    forged.endpoint = verbs::DecodeRegion(*server->Export(slots))->endpoint;
    forged.id = id;
    auto imported = client->Import(verbs::EncodeRegion(forged));
    CHECK(imported.ok()) << imported.status();
    return *imported;
  }

  std::unique_ptr<DataPath> server;
  std::unique_ptr<DataPath> client;
  Region slots;
  Region answers;
  Region own;
  RemoteRegion peer_slots;
};

class SimForeignKeyTest : public testing::Test {
 protected:
  SimForeignKeyTest() : fabric_(FabricOptions()) {
    for (int host = 0; host < 3; ++host) {
      fabric_.AddHost();
      processes_.push_back(std::make_unique<Process>(fabric_, host));
    }
  }
  Process& server() { return *processes_[0]; }
  Process& first() { return *processes_[1]; }
  Process& second() { return *processes_[2]; }
  // Until the attacker's operation has ended, one way or the other.
  void Run(Connection& attacker) {
    std::array<Completion, 4> out;
    size_t completed = 0;
    while (completed == 0 && attacker.client->status().ok()) {
      completed = attacker.client->Poll(absl::MakeSpan(out));
      attacker.server->Poll(absl::MakeSpan(out));
      fabric_.RunFor(absl::Microseconds(2));
    }
  }

  Fabric fabric_;
  std::vector<std::unique_ptr<Process>> processes_;
};

TEST_F(SimForeignKeyTest, AnotherClientsSlotsCannotBeWritten) {
  Connection victim(server(), first());
  Connection attacker(server(), second());
  const RemoteRegion forged = attacker.Forge(victim, victim.slots, 7);
  std::memset(attacker.own.data(), 0x66, kBytes);
  ASSERT_EQ(attacker.client->PutNotify(forged, 0, {attacker.own.data(), kBytes},
                                       1, 1),
            PostResult::kPosted);
  Run(attacker);
  EXPECT_EQ(victim.slots.data()[0], std::byte{0});
  EXPECT_FALSE(attacker.client->status().ok());
  EXPECT_TRUE(victim.server->status().ok());
  EXPECT_TRUE(victim.client->status().ok());
  EXPECT_THAT(fabric_.violations(),
              ElementsAre(HasSubstr("another protection domain")));
}

TEST_F(SimForeignKeyTest, AnotherClientsAnswersCannotBeRead) {
  Connection victim(server(), first());
  Connection attacker(server(), second());
  const RemoteRegion forged = attacker.Forge(victim, victim.answers, 7);
  std::memset(victim.answers.data(), 0x55, kBytes);
  ASSERT_EQ(attacker.client->Get(forged, 0, {attacker.own.data(), kBytes}, 1),
            PostResult::kPosted);
  Run(attacker);
  EXPECT_EQ(attacker.own.data()[0], std::byte{0});
  EXPECT_FALSE(attacker.client->status().ok());
  EXPECT_THAT(fabric_.violations(),
              ElementsAre(HasSubstr("another protection domain")));
}

// The same bytes to the own slots arrive: it is the key that is refused.
TEST_F(SimForeignKeyTest, OwnSlotsCanBeWritten) {
  Connection victim(server(), first());
  Connection client(server(), second());
  std::memset(client.own.data(), 0x66, kBytes);
  ASSERT_EQ(client.client->PutNotify(client.peer_slots, 0,
                                     {client.own.data(), kBytes}, 1, 1),
            PostResult::kPosted);
  Run(client);
  EXPECT_EQ(client.slots.data()[0], std::byte{0x66});
  EXPECT_TRUE(client.client->status().ok());
  EXPECT_THAT(fabric_.violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::transport::sim
