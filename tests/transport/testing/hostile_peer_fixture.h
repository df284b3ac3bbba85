#ifndef REFRACT_TESTS_TRANSPORT_TESTING_HOSTILE_PEER_FIXTURE_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_HOSTILE_PEER_FIXTURE_H_

// A server, and helpers for connecting to its port as something other than a
// good client.

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "absl/strings/match.h"
#include "tests/transport/testing/channel_fixture.h"
#include "transport/messages/byte_order.h"
#include "transport/messages/crc32c.h"
#include "transport/paths/path_setup.h"
#include "transport/paths/paths.h"
#include "transport/session/handshake.h"
#include "transport/session/identity.h"

namespace refract::transport {

class HostilePeer : public testing::Test {
 protected:
  void SetUp() override {
    options_.host = "127.0.0.1";
    options_.limits.max_in_flight = 8;
    options_.limits.max_message_bytes = 1 << 20;
    options_.limits.source_arena_bytes = 4 << 20;
    StartServer();
    auto waker = ThreadWaker::Create();
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
    const Dial dial{.options = options,
                    .address = address,
                    .paths = {proto::TRANSPORT_PATH_TCP},
                    .epoch = 1,
                    .offers = {{1, options.models[0]}},
                    .link_waker = waker_,
                    .resources = &resources_};
    DialReport report;
    return ClientHandshake(dial, wait(), &report);
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

  // For tests that move the server's time.
  base::ManualClock clock_;
  ServerOptions options_;
  FunctionHandler handler_{Echo};
  std::unique_ptr<Server> server_;
  std::shared_ptr<ThreadWaker> waker_;
  PathResources resources_;
};

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_HOSTILE_PEER_FIXTURE_H_
