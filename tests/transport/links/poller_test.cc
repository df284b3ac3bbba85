// Many clients of one server: who runs them, and that none is in the way of the
// others.
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::transport {
namespace {

constexpr int kManyClients = 64;

class PollerTest : public ChannelTest {
 protected:
  PollerTest() {
    // 64 of them live in this process.
    for (Limits* limits : {&server_options_.limits, &client_options_.limits}) {
      limits->max_in_flight = 16;
      limits->max_message_bytes = size_t{4} << 20;
      limits->source_arena_bytes = size_t{32} << 20;
    }
  }

  std::unique_ptr<Client> NewClient() {
    ClientOptions options = client_options_;
    options.address = absl::StrCat("127.0.0.1:", server_->port());
    options.path = GetParam();
    options.models = {{"model", 1, {1, 2}, {3, 4}}};
    auto client = Client::Create(options, nullptr);
    EXPECT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE(Eventually([&] { return (*client)->state().connected; }))
        << (*client)->state().last_error;
    return *std::move(client);
  }
  std::vector<std::unique_ptr<Client>> NewClients(int count) {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < count; ++i) clients.push_back(NewClient());
    return clients;
  }
  // One echo of its own content.
  void ExpectEcho(Client& client, uint32_t seed, int64_t count = 100) {
    const auto specs = Floats(count);
    auto request = client.Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, Contents(seed, specs));
    Call call;
    client.Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ExpectTensors(call.Await()->tensors(), specs, Contents(seed, specs));
  }
};

TEST_P(PollerTest, ManyClientsShareOneThread) {
  absl::Mutex mu;
  std::set<std::thread::id> threads;
  ASSERT_NO_FATAL_FAILURE(Serve([&](std::unique_ptr<ServerCall> call) {
    {
      absl::MutexLock lock(&mu);
      threads.insert(std::this_thread::get_id());
    }
    Echo(std::move(call));
  }));
  const auto clients = NewClients(kManyClients);
  EXPECT_EQ(server_->stats().connections, kManyClients);
  for (uint32_t round = 0; round < 10; ++round) {
    for (size_t i = 0; i < clients.size(); ++i) {
      // Some of them long enough to be pulled.
      ASSERT_NO_FATAL_FAILURE(
          ExpectEcho(*clients[i], round * 1000 + static_cast<uint32_t>(i),
                     i % 8 == 0 ? 50'000 : 100));
    }
  }
  EXPECT_EQ(threads.size(), 1u);
}

TEST_P(PollerTest, ConnectionsAreSpreadAndStayWithTheirThread) {
  server_options_.pollers = 3;
  absl::Mutex mu;
  std::map<int64_t, std::set<std::thread::id>> threads_of;  // by client
  ASSERT_NO_FATAL_FAILURE(Serve([&](std::unique_ptr<ServerCall> call) {
    {
      absl::MutexLock lock(&mu);
      int64_t client;
      std::memcpy(&client, call->tensors()[0].data, sizeof(client));
      threads_of[client].insert(std::this_thread::get_id());
    }
    Echo(std::move(call));
  }));
  const auto clients = NewClients(9);
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < clients.size(); ++i) {
      auto request = clients[i]->Allocate(0, {{base::DType::kInt64, {1}}});
      ASSERT_TRUE(request.ok()) << request.status();
      const auto number = static_cast<int64_t>(i);
      std::memcpy(request->data(0), &number, sizeof(number));
      Call call;
      clients[i]->Send(*std::move(request), absl::InfiniteFuture(),
                       call.callback());
      ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    }
  }
  absl::MutexLock lock(&mu);
  std::map<std::thread::id, int> clients_of;
  for (const auto& [client, threads] : threads_of) {
    EXPECT_EQ(threads.size(), 1u) << "client " << client;
    ++clients_of[*threads.begin()];
  }
  ASSERT_EQ(clients_of.size(), 3u);
  for (const auto& [thread, count] : clients_of) EXPECT_EQ(count, 3);
}

// A client that takes nothing more, with as much on its way to it as it may ask
// for, is not noticed by the others.
TEST_P(PollerTest, StalledClientDelaysNobody) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  absl::Notification release;
  std::atomic<int> answers = 0;
  const std::unique_ptr<Client> stalled = NewClient();
  for (int i = 0; i < 16; ++i) {
    auto request = stalled->Allocate(0, Floats(200'000));
    ASSERT_TRUE(request.ok()) << request.status();
    // Blocks the client's thread, against the rules.
    stalled->Send(*std::move(request), absl::InfiniteFuture(),
                  [&](const absl::StatusOr<IncomingMessage>&) {
                    ++answers;
                    release.WaitForNotification();
                  });
  }
  ASSERT_TRUE(Eventually([&] { return answers.load() == 1; }));
  const auto clients = NewClients(8);
  for (uint32_t round = 0; round < 50; ++round) {
    for (const auto& client : clients) {
      ASSERT_NO_FATAL_FAILURE(ExpectEcho(*client, round));
    }
  }
  EXPECT_EQ(answers.load(), 1);
  release.Notify();
}

// Keeps `depth` long requests open until it is stopped.
class Flooder {
 public:
  Flooder(Client* client, int depth) : client_(client) {
    for (int i = 0; i < depth; ++i) SendOne();
  }
  ~Flooder() {
    stop_ = true;
    EXPECT_TRUE(Eventually([&] { return open_.load() == 0; }));
  }
  int answers() const { return answers_.load(); }

 private:
  void SendOne() {
    auto request = client_->Allocate(0, Floats(250'000));
    if (!request.ok()) return;
    ++open_;
    client_->Send(*std::move(request), absl::InfiniteFuture(),
                  [this](const absl::StatusOr<IncomingMessage>& response) {
                    if (response.ok()) ++answers_;
                    if (!stop_) SendOne();
                    --open_;
                  });
  }
  Client* const client_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> open_ = 0;
  std::atomic<int> answers_ = 0;
};

TEST_P(PollerTest, FloodOfLongRequestsStarvesNobody) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  const std::unique_ptr<Client> greedy = NewClient();
  const auto modest = NewClients(4);
  Flooder flood(greedy.get(), 8);
  ASSERT_TRUE(Eventually([&] { return flood.answers() > 0; }));
  // The flood ends only after this, so starvation would be for ever.
  for (uint32_t round = 0; round < 50; ++round) {
    for (const auto& client : modest) {
      ASSERT_NO_FATAL_FAILURE(ExpectEcho(*client, round));
    }
  }
}

TEST_P(PollerTest, StopsInTimeWithManyClientsInTheMiddleOfWork) {
  absl::Mutex mu;
  std::vector<std::unique_ptr<ServerCall>> held;
  server_options_.pollers = 2;
  ASSERT_NO_FATAL_FAILURE(Serve([&](std::unique_ptr<ServerCall> call) {
    absl::MutexLock lock(&mu);
    held.push_back(std::move(call));
  }));
  const auto clients = NewClients(kManyClients);
  std::vector<Call> calls(clients.size());
  for (size_t i = 0; i < clients.size(); ++i) {
    auto request = clients[i]->Allocate(0, Floats(i % 2 == 0 ? 10 : 100'000));
    ASSERT_TRUE(request.ok()) << request.status();
    clients[i]->Send(*std::move(request), absl::InfiniteFuture(),
                     calls[i].callback());
  }
  ASSERT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mu);
    return held.size() == clients.size();
  }));
  const absl::Time start = absl::Now();
  server_.reset();
  // Half a second for answers, of which there are none, and joining.
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  for (Call& call : calls) {
    EXPECT_TRUE(absl::IsUnavailable(call.Await().status()))
        << call.Await().status();
  }
  // The calls outlive the server; answers to them are dropped.
  for (auto& call : held) {
    EXPECT_TRUE(call->abandoned());
    Echo(std::move(call));
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, PollerTest,
                         testing::Values(PathPreference::kShm,
                                         PathPreference::kTcp),
                         PathParamName);

TEST(PollerOptions, BadNumbersAreRefused) {
  FunctionHandler handler(Echo);
  for (const int pollers : {-1, 0, 65}) {
    ServerOptions options;
    options.host = "127.0.0.1";
    options.pollers = pollers;
    EXPECT_TRUE(
        absl::IsInvalidArgument(Server::Create(options, &handler).status()))
        << pollers;
  }
}

}  // namespace
}  // namespace refract::transport
