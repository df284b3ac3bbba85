#include "transport/client_hub.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/transport/testing/channel_fixture.h"
#include "transport/loop/socket.h"

namespace refract::transport {
namespace {

constexpr size_t kServers = 16;

// Threads of this process, as the kernel counts them.
size_t NumThreads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

Limits SmallLimits() {
  Limits limits;
  limits.max_message_bytes = size_t{1} << 20;
  limits.source_arena_bytes = size_t{8} << 20;
  return limits;
}

// Servers that answer with the request's contents.
class ClientHubTest : public testing::Test {
 protected:
  void StartServers(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      ServerOptions options;
      options.host = "127.0.0.1";
      options.path = PathPreference::kTcp;
      options.limits = SmallLimits();
      auto server = Server::Create(options, &handler_);
      ASSERT_TRUE(server.ok()) << server.status();
      servers_.push_back(*std::move(server));
    }
  }
  void CreateHub(size_t max_clients) {
    ClientHub::Options options = ClientHub::OptionsFor(OptionsOf(0));
    options.max_clients = max_clients;
    auto hub = ClientHub::Create(options);
    ASSERT_TRUE(hub.ok()) << hub.status();
    hub_ = *std::move(hub);
  }
  static ClientOptions OptionsOf(int port) {
    ClientOptions options;
    options.address = absl::StrCat("127.0.0.1:", port);
    options.path = PathPreference::kTcp;
    options.limits = SmallLimits();
    options.models = {{"model", 1, {}, {}}};
    options.last_backoff = absl::Milliseconds(200);
    return options;
  }
  std::unique_ptr<Client> Connect(int port,
                                  std::function<void()> on_change = nullptr) {
    auto client = Client::Create(OptionsOf(port), std::move(on_change), hub_);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  static bool AwaitConnected(const Client& client, bool connected = true) {
    return Eventually([&] { return client.state().connected == connected; });
  }
  static absl::Status Echoed(Client& client, uint32_t seed) {
    const std::vector<base::TensorSpec> specs = {{base::DType::kFloat32, {64}}};
    auto request = client.Allocate(0, specs);
    if (!request.ok()) return request.status();
    Fill(*request, Contents(seed, specs));
    Call call;
    client.Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    auto& response = call.Await();
    if (!response.ok()) return response.status();
    ExpectTensors(response->tensors(), specs, Contents(seed, specs));
    return absl::OkStatus();
  }

  FunctionHandler handler_{Echo};
  std::vector<std::unique_ptr<Server>> servers_;
  std::shared_ptr<ClientHub> hub_;
};

TEST_F(ClientHubTest, ThreadsDoNotGrowWithPeers) {
  ASSERT_NO_FATAL_FAILURE(StartServers(kServers));
  ASSERT_NO_FATAL_FAILURE(CreateHub(kServers));
  std::vector<std::unique_ptr<Client>> clients;
  clients.push_back(Connect(servers_[0]->port(), [] {}));
  ASSERT_TRUE(AwaitConnected(*clients[0]));
  // Threads of handshakes end by themselves, and so do servers' threads.
  size_t with_one = 0;
  absl::SleepFor(absl::Milliseconds(300));
  with_one = NumThreads();
  for (size_t i = 1; i < kServers; ++i) {
    clients.push_back(Connect(servers_[i]->port(), [] {}));
  }
  for (const auto& client : clients) ASSERT_TRUE(AwaitConnected(*client));
  EXPECT_TRUE(Eventually([&] { return NumThreads() <= with_one; }))
      << NumThreads() << " threads, " << with_one << " with one server";
  // All clients of the hub work.
  for (size_t i = 0; i < kServers; ++i) {
    EXPECT_TRUE(Echoed(*clients[i], static_cast<uint32_t>(i)).ok());
  }
}

TEST_F(ClientHubTest, RequestsToAllServersAtOnceComeBackToTheirOwn) {
  ASSERT_NO_FATAL_FAILURE(StartServers(kServers));
  ASSERT_NO_FATAL_FAILURE(CreateHub(kServers));
  std::vector<std::unique_ptr<Client>> clients;
  for (const auto& server : servers_)
    clients.push_back(Connect(server->port()));
  for (const auto& client : clients) ASSERT_TRUE(AwaitConnected(*client));
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 200; ++i) {
        Client& client = *clients[(i * 5 + t) % kServers];
        if (!Echoed(client, t * 1000 + i).ok()) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

TEST_F(ClientHubTest, AClientThatLeavesLeavesTheOthersAlone) {
  ASSERT_NO_FATAL_FAILURE(StartServers(2));
  ASSERT_NO_FATAL_FAILURE(CreateHub(2));
  auto stays = Connect(servers_[0]->port());
  ASSERT_TRUE(AwaitConnected(*stays));
  for (uint32_t round = 0; round < 20; ++round) {
    auto leaves = Connect(servers_[1]->port(), [] {});
    if (round % 3 != 0) {
      ASSERT_TRUE(AwaitConnected(*leaves));
    }
    if (round % 3 == 2) {
      EXPECT_TRUE(Echoed(*leaves, round).ok());
    }
    leaves.reset();
    EXPECT_TRUE(Echoed(*stays, round).ok());
  }
  EXPECT_EQ(stays->state().epoch, 1u);
}

TEST_F(ClientHubTest, WhatIsInFlightEndsWithItsClient) {
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> held;
  FunctionHandler holding([&](std::unique_ptr<ServerCall> call) {
    absl::MutexLock lock(&mu);
    held.push_back(std::move(call));
  });
  ServerOptions options;
  options.host = "127.0.0.1";
  options.path = PathPreference::kTcp;
  options.limits = SmallLimits();
  auto server = Server::Create(options, &holding);
  ASSERT_TRUE(server.ok());
  ASSERT_NO_FATAL_FAILURE(CreateHub(2));
  auto client = Connect((*server)->port());
  auto other = Connect((*server)->port());
  ASSERT_TRUE(AwaitConnected(*client));
  ASSERT_TRUE(AwaitConnected(*other));
  Call calls[8];
  for (Call& call : calls) {
    auto request = client->Allocate(0, {});
    ASSERT_TRUE(request.ok());
    client->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  }
  client.reset();
  for (Call& call : calls) {
    ASSERT_TRUE(call.done());
    EXPECT_TRUE(absl::IsCancelled(call.Await().status()));
  }
  EXPECT_TRUE(other->state().connected);
  other.reset();
  server->reset();
}

TEST_F(ClientHubTest, AServerThatNeverAnswersKeepsNoOtherWaiting) {
  ASSERT_NO_FATAL_FAILURE(StartServers(1));
  // Take connections and say nothing: an attempt lasts until its time-out.
  std::vector<Listener> deaf;
  ASSERT_NO_FATAL_FAILURE(CreateHub(2 * ClientHub::kMaxDials + 1));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 2 * ClientHub::kMaxDials; ++i) {
    auto listener = ListenTcp({"127.0.0.1", 0});
    ASSERT_TRUE(listener.ok());
    ClientOptions options = OptionsOf(listener->port);
    options.handshake_timeout = absl::Milliseconds(200);
    auto client = Client::Create(options, nullptr, hub_);
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(*std::move(client));
    deaf.push_back(*std::move(listener));
  }
  const absl::Time start = absl::Now();
  auto good = Connect(servers_[0]->port());
  EXPECT_TRUE(AwaitConnected(*good));
  // Two time-outs are before it, and many more would be without the order.
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_TRUE(Echoed(*good, 1).ok());
}

TEST_F(ClientHubTest, NobodyIsNotifiedOnceGone) {
  ASSERT_NO_FATAL_FAILURE(StartServers(2));
  ASSERT_NO_FATAL_FAILURE(CreateHub(2));
  std::atomic<int> others = 0;
  auto other = Connect(servers_[0]->port(), [&] { ++others; });
  for (int round = 0; round < 20; ++round) {
    auto alive = std::make_unique<std::atomic<int>>(0);
    auto client = Connect(servers_[1]->port(), [raw = alive.get()] {
      ++*raw;
      absl::SleepFor(absl::Milliseconds(2));
    });
    if (round % 2 == 0) {
      ASSERT_TRUE(Eventually([&] { return *alive > 0; }));
    }
    client.reset();
    alive.reset();  // a late call would use it
  }
  EXPECT_TRUE(Eventually([&] { return others > 0; }));
}

TEST_F(ClientHubTest, RefusesWhatItCannotServe) {
  ASSERT_NO_FATAL_FAILURE(StartServers(1));
  ASSERT_NO_FATAL_FAILURE(CreateHub(1));
  ClientOptions other_clock = OptionsOf(servers_[0]->port());
  base::ManualClock clock;
  other_clock.clock = &clock;
  EXPECT_TRUE(absl::IsInvalidArgument(
      Client::Create(other_clock, nullptr, hub_).status()));
  auto first = Connect(servers_[0]->port());
  EXPECT_TRUE(absl::IsResourceExhausted(
      Client::Create(OptionsOf(servers_[0]->port()), nullptr, hub_).status()));
  first.reset();
  EXPECT_TRUE(
      Client::Create(OptionsOf(servers_[0]->port()), nullptr, hub_).ok());
}

}  // namespace
}  // namespace refract::transport
