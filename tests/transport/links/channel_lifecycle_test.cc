// Deadlines, losses, refusals and ends of a channel, over every path.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/base/forbidden_call.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::transport {
namespace {

// Keeps calls until told otherwise. Thread-safe.
class Holder {
 public:
  void Take(std::unique_ptr<ServerCall> call) {
    absl::MutexLock lock(&mu_);
    calls_.push_back(std::move(call));
  }
  size_t size() {
    absl::MutexLock lock(&mu_);
    return calls_.size();
  }
  // Null when none comes.
  std::unique_ptr<ServerCall> Pop() {
    if (!Eventually([&] { return size() > 0; })) return nullptr;
    absl::MutexLock lock(&mu_);
    std::unique_ptr<ServerCall> call = std::move(calls_.front());
    calls_.erase(calls_.begin());
    return call;
  }

 private:
  absl::Mutex mu_;
  std::vector<std::unique_ptr<ServerCall>> calls_;
};

class ChannelLifecycle : public ChannelTest {
 protected:
  ChannelLifecycle()
      : holding_([this](std::unique_ptr<ServerCall> call) {
          holder_.Take(std::move(call));
        }) {}

  void Send(Call& call, absl::Time deadline = absl::InfiniteFuture(),
            int64_t count = 10) {
    auto request = client_->Allocate(0, Floats(count));
    ASSERT_TRUE(request.ok()) << request.status();
    client_->Send(*std::move(request), deadline, call.callback());
  }
  void ExpectEchoWorks() {
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call));
    EXPECT_TRUE(call.Await().ok()) << call.Await().status();
  }

  Holder holder_;
  FunctionHandler holding_;
};

TEST_P(ChannelLifecycle, DeadlineTravelsAsTimeLeft) {
  client_options_.clock = &client_clock_;
  server_options_.clock = &server_clock_;
  ASSERT_NO_FATAL_FAILURE(Start(&holding_));
  Call with;
  Call without;
  ASSERT_NO_FATAL_FAILURE(
      Send(with, client_clock_.Now() + absl::Milliseconds(1500)));
  ASSERT_NO_FATAL_FAILURE(Send(without));
  std::unique_ptr<ServerCall> first = holder_.Pop();
  std::unique_ptr<ServerCall> second = holder_.Pop();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(first->deadline(), server_clock_.Now() + absl::Milliseconds(1500));
  EXPECT_EQ(second->deadline(), absl::InfiniteFuture());
  client_.reset();
}

TEST_P(ChannelLifecycle, MissedDeadlineCancelsAtTheServerAndFreesTheSlot) {
  client_options_.clock = &client_clock_;
  client_options_.liveness_timeout = absl::Hours(10);
  client_options_.limits.max_in_flight = 2;
  ASSERT_NO_FATAL_FAILURE(Start(&holding_));
  // More rounds than there are slots, small and pulled ones.
  for (int round = 0; round < 12; ++round) {
    Call call;
    ASSERT_NO_FATAL_FAILURE(Send(call, client_clock_.Now() + absl::Seconds(1),
                                 round % 2 == 0 ? 10 : 100'000));
    std::unique_ptr<ServerCall> held = holder_.Pop();
    ASSERT_NE(held, nullptr) << "round " << round;
    EXPECT_FALSE(held->abandoned());
    EXPECT_FALSE(call.done());
    client_clock_.Advance(absl::Seconds(2));
    EXPECT_EQ(call.Await().status().code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Eventually([&] { return held->abandoned(); }));
    // A late answer calls no callback again and leaks nothing.
    if (round % 3 != 0) Echo(std::move(held));
  }
  EXPECT_EQ(client_->state().in_flight, 0);
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  std::unique_ptr<ServerCall> held = holder_.Pop();
  ASSERT_NE(held, nullptr);
  Echo(std::move(held));
  EXPECT_TRUE(call.Await().ok()) << call.Await().status();
}

TEST_P(ChannelLifecycle, DeadlineInThePastFailsWithoutHarm) {
  ASSERT_NO_FATAL_FAILURE(Start(&holding_));
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call, absl::InfinitePast()));
  EXPECT_EQ(call.Await().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(client_->state().connected);
}

TEST_P(ChannelLifecycle, ServerGoesAwayAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(StartServer(&holding_));
  std::atomic<int> changes = 0;
  ASSERT_NO_FATAL_FAILURE(StartClient([&] { ++changes; }));
  ASSERT_TRUE(AwaitConnected());
  ASSERT_TRUE(Eventually([&] { return changes == 1; }));
  Call small;
  Call large;
  ASSERT_NO_FATAL_FAILURE(Send(small));
  ASSERT_NO_FATAL_FAILURE(Send(large, absl::InfiniteFuture(), 1 << 20));
  auto stale = client_->Allocate(0, Floats(5));
  ASSERT_TRUE(stale.ok());
  std::unique_ptr<ServerCall> held = holder_.Pop();
  ASSERT_NE(held, nullptr);
  std::unique_ptr<ServerCall> held_too = holder_.Pop();
  ASSERT_NE(held_too, nullptr);

  const int port = server_->port();
  server_.reset();
  EXPECT_EQ(small.Await().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(large.Await().status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(AwaitConnected(false));
  EXPECT_EQ(client_->state().path, "");
  EXPECT_FALSE(client_->state().last_error.ok());
  EXPECT_EQ(client_->Allocate(0, Floats(1)).status().code(),
            absl::StatusCode::kUnavailable);
  // Attempts to connect that fail count as well.
  ASSERT_TRUE(Eventually([&] { return changes >= 2; }));
  // Calls outlive the server that made them.
  EXPECT_TRUE(held->abandoned());
  EXPECT_EQ(held->tensors().size(), 1u);
  EXPECT_EQ(held->AllocateReply(Floats(1)).status().code(),
            absl::StatusCode::kUnavailable);
  held->Fail(absl::InternalError("too late"));
  held.reset();
  held_too.reset();

  ASSERT_NO_FATAL_FAILURE(Serve(Echo, port));
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  EXPECT_EQ(client_->state().epoch, 2u);
  ASSERT_TRUE(Eventually([&] { return changes >= 3; }));
  ExpectEchoWorks();
  // Allocated before the loss: its memory belongs to the old connection.
  Call call;
  client_->Send(*std::move(stale), absl::InfiniteFuture(), call.callback());
  EXPECT_EQ(call.Await().status().code(), absl::StatusCode::kUnavailable);
  client_.reset();
}

TEST_P(ChannelLifecycle, KilledProcessFailsWhatIsInFlight) {
  std::array<int, 2> pipe_fds;
  ASSERT_EQ(pipe(pipe_fds.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Answers small requests and keeps the others.
    Holder holder;
    FunctionHandler handler([&](std::unique_ptr<ServerCall> call) {
      if (call->tensors().front().bytes < 1000) return Echo(std::move(call));
      holder.Take(std::move(call));
    });
    ServerOptions options;
    options.host = "127.0.0.1";
    options.path = GetParam();
    auto server = Server::Create(options, &handler);
    const int port = server.ok() ? (*server)->port() : -1;
    if (write(pipe_fds[1], &port, sizeof(port)) != sizeof(port)) _exit(1);
    while (true) pause();
  }
  int port = -1;
  ASSERT_EQ(read(pipe_fds[0], &port, sizeof(port)),
            static_cast<ssize_t>(sizeof(port)));
  client_options_.address = "127.0.0.1:" + std::to_string(port);
  client_options_.path = GetParam();
  client_options_.models.push_back({"model", 1, {}, {}});
  auto client = Client::Create(client_options_, nullptr);
  ASSERT_TRUE(client.ok());
  client_ = *std::move(client);
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  ExpectEchoWorks();
  std::vector<Call> calls(4);
  for (Call& call : calls) {
    ASSERT_NO_FATAL_FAILURE(Send(call, absl::InfiniteFuture(),
                                 &call == &calls[0] ? 1000 : 900'000));
  }
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  for (Call& call : calls) {
    EXPECT_EQ(call.Await().status().code(), absl::StatusCode::kUnavailable)
        << call.Await().status();
  }
  ASSERT_TRUE(AwaitConnected(false));
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST_P(ChannelLifecycle, ConnectsToAServerThatStartsLater) {
  ASSERT_NO_FATAL_FAILURE(StartServer(&holding_));
  const int port = server_->port();
  server_.reset();
  client_options_.address = "127.0.0.1:" + std::to_string(port);
  client_options_.path = GetParam();
  client_options_.models.push_back({"model", 1, {}, {}});
  client_options_.last_backoff = absl::Milliseconds(100);
  auto client = Client::Create(client_options_, nullptr);
  ASSERT_TRUE(client.ok());
  client_ = *std::move(client);
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(client_->state().last_error.message(), "refused");
  })) << client_->state().last_error;
  ASSERT_NO_FATAL_FAILURE(Serve(Echo, port));
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  ExpectEchoWorks();
  client_.reset();
  server_.reset();
}

TEST_P(ChannelLifecycle, DestroyedClientCancelsWhatIsInFlight) {
  ASSERT_NO_FATAL_FAILURE(Start(&holding_));
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  std::unique_ptr<ServerCall> held = holder_.Pop();
  ASSERT_NE(held, nullptr);
  client_.reset();
  ASSERT_TRUE(call.done());
  EXPECT_EQ(call.Await().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return held->abandoned(); }));
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
  Echo(std::move(held));
}

TEST_P(ChannelLifecycle, ResponsesOutliveTheClient) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(Connect());
  for (const int64_t count : {10, 100'000}) {
    const std::vector<base::TensorSpec> specs = Floats(count);
    const std::vector<std::string> contents = Contents(9, specs);
    if (client_ == nullptr) {
      ASSERT_NO_FATAL_FAILURE(StartClient());
    }
    ASSERT_TRUE(AwaitConnected());
    auto request = client_->Allocate(0, specs);
    ASSERT_TRUE(request.ok());
    Fill(*request, contents);
    Call call;
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    client_.reset();
    ExpectTensors(call.Await()->tensors(), specs, contents);
  }
}

TEST_P(ChannelLifecycle, RefusedModelLeavesOthersWorking) {
  FunctionHandler handler(
      [](const ModelOffer& offer) -> absl::StatusOr<size_t> {
        if (offer.version != 7 || offer.schema != base::Digest{8, 9}) {
          return absl::FailedPreconditionError("another schema digest");
        }
        return size_t{40} + offer.model.low;
      },
      [](std::unique_ptr<ServerCall> call) {
        EXPECT_EQ(call->model(), 42u);
        Echo(std::move(call));
      });
  client_options_.models = {{"bad", 7, {1, 0}, {8, 10}},
                            {"good", 7, {2, 0}, {8, 9}}};
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  const ClientState state = client_->state();
  ASSERT_EQ(state.models.size(), 2u);
  EXPECT_EQ(state.models[0],
            absl::FailedPreconditionError("another schema digest"));
  EXPECT_TRUE(state.models[1].ok());
  const absl::Status refused = client_->Allocate(0, Floats(1)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(refused.message(), "another schema digest"));
  EXPECT_EQ(client_->Allocate(2, Floats(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto request = client_->Allocate(1, Floats(4));
  ASSERT_TRUE(request.ok());
  Call call;
  client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  EXPECT_TRUE(call.Await().ok()) << call.Await().status();
  client_.reset();
  server_.reset();  // before its handler
}

TEST_P(ChannelLifecycle, StopAdmittingLetsWhatArrivedFinish) {
  ASSERT_NO_FATAL_FAILURE(Start(&holding_));
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  auto unsent = client_->Allocate(0, Floats(5));
  ASSERT_TRUE(unsent.ok());
  std::unique_ptr<ServerCall> held = holder_.Pop();
  ASSERT_NE(held, nullptr);
  server_->StopAdmitting();
  ASSERT_TRUE(AwaitConnected(false));
  EXPECT_EQ(client_->Allocate(0, Floats(1)).status().code(),
            absl::StatusCode::kUnavailable);
  Call refused;
  client_->Send(*std::move(unsent), absl::InfiniteFuture(), refused.callback());
  EXPECT_EQ(refused.Await().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(call.done());
  EXPECT_EQ(client_->state().in_flight, 1);
  Echo(std::move(held));
  // Destroyed at once: the answer must get out all the same.
  const int port = server_->port();
  server_.reset();
  EXPECT_TRUE(call.Await().ok()) << call.Await().status();
  ASSERT_NO_FATAL_FAILURE(Serve(Echo, port));
  ASSERT_TRUE(AwaitConnected());
  ExpectEchoWorks();
  client_.reset();
  server_.reset();
}

// A request that its client sent before it heard of the stop.
TEST_P(ChannelLifecycle, RequestsOnTheirWayAreServedUntilStopAdmitting) {
  struct Stopping : FunctionHandler {
    using FunctionHandler::FunctionHandler;
    absl::Status OnAnnounced(const RequestDescriptor&) override {
      on_announced();
      return absl::OkStatus();
    }
    std::function<void()> on_announced;
  };
  Stopping handler(Echo);
  // Orders the writes to `server_` before calls of it: ThreadSanitizer sees no
  // order through shared memory, which each end has at another address.
  std::atomic<Server*> server = nullptr;
  handler.on_announced = [&] { server.load()->AnnounceStop(); };
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  server = server_.get();
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call, absl::InfiniteFuture(), 300'000));
  EXPECT_TRUE(call.Await().ok()) << call.Await().status();
  ASSERT_TRUE(AwaitConnected(false));
  const int port = server_->port();
  server_.reset();
  handler.on_announced = [&] { server.load()->StopAdmitting(); };
  ASSERT_NO_FATAL_FAILURE(StartServer(&handler, port));
  server = server_.get();
  ASSERT_TRUE(AwaitConnected());
  Call late;
  ASSERT_NO_FATAL_FAILURE(Send(late, absl::InfiniteFuture(), 300'000));
  EXPECT_EQ(late.Await().status().code(), absl::StatusCode::kUnavailable);
  client_.reset();
  server_.reset();
}

TEST_P(ChannelLifecycle, PayloadsOfAllConnectionsShareABudget) {
  base::ByteBudget budget(3'000'000, "--some-memory");
  server_options_.request_memory = &budget;
  ASSERT_NO_FATAL_FAILURE(Start(&holding_));
  // 1.2 MB each, held by the handler.
  Call first, second, third;
  ASSERT_NO_FATAL_FAILURE(Send(first, absl::InfiniteFuture(), 300'000));
  ASSERT_NO_FATAL_FAILURE(Send(second, absl::InfiniteFuture(), 300'000));
  std::unique_ptr<ServerCall> held = holder_.Pop();
  std::unique_ptr<ServerCall> other = holder_.Pop();
  ASSERT_NE(held, nullptr);
  ASSERT_NE(other, nullptr);
  EXPECT_GE(budget.held(), 2'400'000);
  ASSERT_NO_FATAL_FAILURE(Send(third, absl::InfiniteFuture(), 300'000));
  EXPECT_EQ(third.Await().status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(
      absl::StrContains(third.Await().status().message(), "--some-memory"));
  // Short ones lie in slots, which are there anyway.
  Call small;
  ASSERT_NO_FATAL_FAILURE(Send(small));
  Echo(holder_.Pop());
  EXPECT_TRUE(small.Await().ok()) << small.Await().status();
  Echo(std::move(held));
  EXPECT_TRUE(first.Await().ok()) << first.Await().status();
  Call fourth;
  ASSERT_NO_FATAL_FAILURE(Send(fourth, absl::InfiniteFuture(), 300'000));
  Echo(holder_.Pop());
  EXPECT_TRUE(fourth.Await().ok()) << fourth.Await().status();
  // A connection that ends gives its requests' memory back when their calls
  // end, too.
  client_.reset();
  other.reset();
  server_.reset();
  EXPECT_EQ(budget.held(), 0);
}

TEST_P(ChannelLifecycle, LargeAnswerGetsOutBeforeTheServerIsGone) {
  ASSERT_NO_FATAL_FAILURE(Start(&holding_));
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call, absl::InfiniteFuture(), 300'000));
  std::unique_ptr<ServerCall> held = holder_.Pop();
  ASSERT_NE(held, nullptr);
  Echo(std::move(held));
  server_.reset();
  EXPECT_TRUE(call.Await().ok()) << call.Await().status();
}

TEST_P(ChannelLifecycle, HungServerCountsAsLost) {
  absl::Notification go_on;
  FunctionHandler handler([&](std::unique_ptr<ServerCall> call) {
    // A thread that no longer polls: the process lives, its sockets are open.
    go_on.WaitForNotification();
    call->Fail(absl::InternalError("woke up"));
  });
  client_options_.liveness_timeout = absl::Milliseconds(300);
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  Call call;
  ASSERT_NO_FATAL_FAILURE(Send(call));
  const absl::Status status = call.Await().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "no sign of life")) << status;
  client_.reset();
  go_on.Notify();
  server_.reset();  // its thread has left `go_on` then
}

TEST_P(ChannelLifecycle, SixteenClientsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 16; ++i) {
    ASSERT_NO_FATAL_FAILURE(StartClient());
    clients.push_back(std::move(client_));
  }
  for (auto& client : clients) {
    ASSERT_TRUE(Eventually([&] { return client->state().connected; }))
        << client->state().last_error;
  }
  EXPECT_EQ(server_->stats().connections, 16);
  constexpr int kEach = 40;
  std::vector<Call> calls(16 * kEach);
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::vector<base::TensorSpec> specs =
        Floats(i % 10 == 0 ? 50'000 : 9);
    auto request = clients[i % 16]->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, Contents(static_cast<uint32_t>(i), specs));
    clients[i % 16]->Send(*std::move(request), absl::InfiniteFuture(),
                          calls[i].callback());
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    ASSERT_TRUE(calls[i].Await().ok()) << calls[i].Await().status();
    const std::vector<base::TensorSpec> specs =
        Floats(i % 10 == 0 ? 50'000 : 9);
    ExpectTensors(calls[i].Await()->tensors(), specs,
                  Contents(static_cast<uint32_t>(i), specs));
  }
  EXPECT_EQ(server_->stats().requests, calls.size());
}

TEST_P(ChannelLifecycle, TooManyConnectionsAreRefusedWithTheReason) {
  server_options_.max_connections = 2;
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  std::unique_ptr<Client> first = std::move(client_);
  ASSERT_NO_FATAL_FAILURE(StartClient());
  std::unique_ptr<Client> second = std::move(client_);
  ASSERT_TRUE(Eventually(
      [&] { return first->state().connected && second->state().connected; }));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(Eventually([&] {
    return absl::IsResourceExhausted(client_->state().last_error);
  })) << client_->state().last_error;
  // The client may have the reason before the server counts the refusal.
  EXPECT_TRUE(Eventually([&] { return server_->stats().refused >= 1; }));
  first.reset();
  EXPECT_TRUE(AwaitConnected()) << client_->state().last_error;
}

TEST_P(ChannelLifecycle, PortInUseIsNamed) {
  ASSERT_NO_FATAL_FAILURE(StartServer(&holding_));
  ServerOptions options = server_options_;
  options.port = server_->port();
  const absl::Status status = Server::Create(options, &holding_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(),
                                absl::StrCat("127.0.0.1:", options.port)))
      << status;
}

INSTANTIATE_TEST_SUITE_P(Paths, ChannelLifecycle,
                         testing::ValuesIn(PathsUnderTest()), PathParamName);

// A machine without process ids gives an error, not the end of the process.
TEST(ChannelThreads, WithoutRoomForThreadsNothingStarts) {
  bool forbidden = false;
  absl::Status server;
  absl::Status client;
  std::thread([&] {
    forbidden = base::ForbidThreads();
    FunctionHandler handler(Echo);
    server = Server::Create({.host = "127.0.0.1"}, &handler).status();
    ClientOptions options;
    options.address = "127.0.0.1:1";
    client = Client::Create(options, nullptr).status();
  }).join();
  if (!forbidden) GTEST_SKIP() << "no seccomp filters on this machine";
  EXPECT_TRUE(absl::IsResourceExhausted(server)) << server;
  EXPECT_TRUE(absl::IsResourceExhausted(client)) << client;
}

TEST(ChannelOptions, BadOnesAreRefused) {
  ClientOptions good;
  good.address = "127.0.0.1:1";
  const auto refused = [](const ClientOptions& options) {
    return Client::Create(options, nullptr).status();
  };
  ClientOptions bad = good;
  bad.rdma_device = "mlx5_0:x";
  EXPECT_EQ(refused(bad).code(), absl::StatusCode::kInvalidArgument);
  bad.rdma_device = "no_such_device";
  bad.path = PathPreference::kVerbs;
  EXPECT_FALSE(refused(bad).ok());
  EXPECT_TRUE(absl::StrContains(refused(bad).message(), "verbs transport"))
      << refused(bad);
  for (const char* address :
       {"", "host", "host:", ":80", "host:0", "host:65536", "host:x"}) {
    bad = good;
    bad.address = address;
    EXPECT_EQ(refused(bad).code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
  bad = good;
  bad.limits.max_in_flight = 0;
  EXPECT_EQ(refused(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.limits.source_arena_bytes = 1 << 20;
  EXPECT_EQ(refused(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.liveness_timeout = absl::ZeroDuration();
  EXPECT_EQ(refused(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.models.resize(257);
  EXPECT_EQ(refused(bad).code(), absl::StatusCode::kInvalidArgument);
  FunctionHandler handler(Echo);
  ServerOptions server;
  server.path = PathPreference::kVerbs;
  server.rdma_device = "no_such_device";
  EXPECT_FALSE(Server::Create(server, &handler).ok());
  server = {};
  server.host = "256.0.0.1";
  EXPECT_FALSE(Server::Create(server, &handler).ok());
}

}  // namespace
}  // namespace refract::transport
