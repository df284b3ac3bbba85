// The choice of a connection's path, and the fallback if the best path fails.
#include <sys/socket.h>

#include "absl/strings/match.h"
#include "tests/transport/testing/channel_fixture.h"
#include "transport/session/handshake.h"
#include "transport/session/session_socket.h"
#include "transport/loop/socket.h"

namespace refract::transport {
namespace {

class FallbackTest : public testing::Test {
 protected:
  void Start(PathPreference server_path, PathPreference client_path) {
    ServerOptions server_options;
    server_options.host = "127.0.0.1";
    server_options.path = server_path;
    auto server = Server::Create(server_options, &handler_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ClientOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    options.path = client_path;
    options.models.push_back({"model", 1, {}, {}});
    auto client = Client::Create(options, nullptr);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  std::string Path() {
    EXPECT_TRUE(Eventually([&] { return client_->state().connected; }))
        << client_->state().last_error;
    return client_->state().path;
  }
  absl::Status Error() {
    EXPECT_TRUE(Eventually([&] {
      return !absl::StrContains(client_->state().last_error.message(),
                                "not connected yet");
    }));
    return client_->state().last_error;
  }
  void ExpectEcho() {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kFloat32, {200'000}}};
    auto request = client_->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, Contents(3, specs));
    Call call;
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    ASSERT_TRUE(call.Await().ok()) << call.Await().status();
    ExpectTensors(call.Await()->tensors(), specs, Contents(3, specs));
  }

  FunctionHandler handler_{Echo};
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(FallbackTest, OneMachineTakesSharedMemory) {
  Start(PathPreference::kAuto, PathPreference::kAuto);
  EXPECT_EQ(Path(), "shm");
  ExpectEcho();
}

TEST_F(FallbackTest, EitherSideMayInsistOnTcp) {
  Start(PathPreference::kTcp, PathPreference::kAuto);
  EXPECT_EQ(Path(), "tcp");
  client_.reset();
  Start(PathPreference::kAuto, PathPreference::kTcp);
  EXPECT_EQ(Path(), "tcp");
}

TEST_F(FallbackTest, NothingInCommonIsTold) {
  Start(PathPreference::kTcp, PathPreference::kShm);
  EXPECT_EQ(Error(), absl::FailedPreconditionError(
                         "no transport is common to client and server"));
}

TEST_F(FallbackTest, FailedSharedMemoryFallsBackToTcp) {
  NoSharedMemory limit;
  Start(PathPreference::kAuto, PathPreference::kAuto);
  EXPECT_EQ(Path(), "tcp");
  ExpectEcho();
}

TEST_F(FallbackTest, FailedSharedMemoryWithoutAlternativeSaysWhy) {
  NoSharedMemory limit;
  Start(PathPreference::kAuto, PathPreference::kShm);
  const absl::Status error = Error();
  EXPECT_TRUE(absl::StrContains(error.message(), "shm: ")) << error;
  EXPECT_FALSE(client_->state().connected);
}

// The server's side: a client says that it attached to a path, but did not.
TEST_F(FallbackTest, ServerAnswersAPathThatNeverCame) {
  base::ManualClock clock;
  ServerOptions options;
  options.host = "127.0.0.1";
  options.clock = &clock;
  options.handshake_timeout = absl::Hours(1);
  auto server = Server::Create(options, &handler_);
  ASSERT_TRUE(server.ok());
  auto waker = ThreadWaker::Create();
  ASSERT_TRUE(waker.ok());
  base::Clock& real = base::Clock::Real();
  const Wait wait{**waker, real, [] { return absl::OkStatus(); }};
  const absl::Time deadline = real.Now() + kPatience;
  auto fd = ConnectTcp({"127.0.0.1", (*server)->port()}, wait, deadline);
  ASSERT_TRUE(fd.ok()) << fd.status();
  SessionSocket session(*std::move(fd));
  proto::Hello hello;
  hello.add_paths(proto::TRANSPORT_PATH_TCP);
  hello.mutable_limits()->set_num_slots(4);
  hello.mutable_limits()->set_slot_bytes(64 << 10);
  hello.mutable_limits()->set_max_message_bytes(1 << 20);
  hello.mutable_limits()->set_max_in_flight(3);
  ASSERT_TRUE(session.Send(FrameKind::kHello, hello).ok());
  auto frame = AwaitFrame(session, wait, deadline);
  ASSERT_TRUE(frame.ok()) << frame.status();
  proto::PathStart start;
  start.set_path(proto::TRANSPORT_PATH_TCP);
  ASSERT_TRUE(session.Send(FrameKind::kPathStart, start).ok());
  // The server's wait for the path probe begins during these calls.
  absl::StatusOr<std::optional<SessionFrame>> reply;
  ASSERT_TRUE(Eventually([&] {
    clock.Advance(absl::Milliseconds(600));
    reply = session.Receive();
    return !reply.ok() || reply->has_value();
  }));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ((*reply)->kind, FrameKind::kPathReply);
  proto::PathReply body;
  ASSERT_TRUE(body.ParseFromString((*reply)->body));
  EXPECT_NE(body.status().code(), 0u);
  // A path over a data connection may be tried once.
  ASSERT_TRUE(session.Send(FrameKind::kPathStart, start).ok());
  EXPECT_TRUE(Eventually([&] { return (*server)->stats().refused == 1; }));
}

// The client dials listeners that are no servers of Refract.
TEST_F(FallbackTest, ClientSurvivesServersThatAreNone) {
  auto listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  ClientOptions options;
  options.address = "127.0.0.1:" + std::to_string(listener->port);
  options.first_backoff = absl::Milliseconds(1);
  options.last_backoff = absl::Milliseconds(5);
  auto client = Client::Create(options, nullptr);
  ASSERT_TRUE(client.ok());
  proto::HelloReply refusal;
  refusal.mutable_status()->set_code(9);
  refusal.mutable_status()->set_message("not today");
  proto::HelloReply nonsense;
  nonsense.mutable_limits()->set_num_slots(1 << 30);
  for (const auto& [answer, expected] :
       std::vector<std::pair<std::string, std::string>>{
           {"HTTP/1.1 400 Bad Request\r\n\r\n", "not a Refract peer"},
           {EncodeSessionFrame(FrameKind::kHelloReply, "", 7), "protocol 7.1"},
           {EncodeSessionFrame(FrameKind::kHelloReply,
                               refusal.SerializeAsString()),
            "not today"},
           {EncodeSessionFrame(FrameKind::kHelloReply,
                               nonsense.SerializeAsString()),
            "impossible limits"},
           {EncodeSessionFrame(FrameKind::kGoaway, ""),
            "did not answer the hello"},
           {"", "closed the connection"}}) {
    ASSERT_TRUE(Eventually([&, &answer = answer, &expected = expected] {
      auto fd = Accept(listener->fd.get());
      if (fd.ok() && fd->valid()) {
        [[maybe_unused]] const ssize_t n =
            send(fd->get(), answer.data(), answer.size(), MSG_NOSIGNAL);
        // Unread bytes would turn the close into a reset.
        shutdown(fd->get(), SHUT_WR);
        std::array<char, 4096> sink;
        while (true) {
          const ssize_t got = recv(fd->get(), sink.data(), sink.size(), 0);
          if (got == 0 || (got < 0 && errno != EAGAIN)) break;
        }
      }
      return absl::StrContains((*client)->state().last_error.message(),
                               expected);
    })) << expected
        << " in " << (*client)->state().last_error;
  }
  EXPECT_FALSE((*client)->state().connected);
}

}  // namespace
}  // namespace refract::transport
