// Limits, connections and addresses of the gRPC server.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/frontend/frontend_fixture.h"
#include "transport/loop/socket.h"

namespace refract::cpu_node {
namespace {

using ::inference::GRPCInferenceService;
using ::testing::HasSubstr;

// A client that connects and says `greeting`; whether the server closes the
// connection.
bool IsClosed(int port, absl::string_view greeting) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
      0);
  const timeval patience = {absl::ToInt64Seconds(kPatience), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  EXPECT_EQ(send(fd, greeting.data(), greeting.size(), 0), greeting.size());
  char buffer[256];
  ssize_t bytes;
  do {
    bytes = recv(fd, buffer, sizeof(buffer), 0);
  } while (bytes > 0);
  const bool closed = bytes == 0 || errno == ECONNRESET;
  close(fd);
  return closed;
}

constexpr char kPreface[] =
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    "\0\0\0\4\0\0\0\0";  // and an empty SETTINGS frame

// A header field that enters no table (RFC 7541, 6.2.2).
std::string HeaderField(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string(1, '\0'),
                      std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

TEST_F(FrontendTest, RequestsThatDoNotFitAreRefusedAndOthersGiveTheirsBack) {
  FrontendOptions options;
  options.request_memory = 4 << 20;  // half of it for decoded requests
  Start({}, {}, options);
  inference::ModelInferResponse response;
  // 20 bytes a row; its message and its tensors at the same time.
  const grpc::Status status = Infer(Request(60000), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--request-memory"));
  for (int i = 0; i < 50; ++i) {
    const grpc::Status fits = Infer(Request(5000), &response);
    ASSERT_TRUE(fits.ok()) << i << ": " << fits.error_message();
  }
}

TEST_F(FrontendTest, ClosesConnectionsThatDoNotSpeakHttp2) {
  FrontendOptions options;
  options.handshake_timeout = absl::Milliseconds(100);
  options.max_idle = absl::Hours(1);
  Start({}, {}, options);
  EXPECT_TRUE(IsClosed(frontend_->port(), ""));
}

TEST_F(FrontendTest, ClosesConnectionsWithoutCalls) {
  FrontendOptions options;
  options.handshake_timeout = absl::Hours(1);
  options.max_idle = absl::Milliseconds(100);
  Start({}, {}, options);
  // With the final zero of the literal: a frame has nine bytes.
  EXPECT_TRUE(IsClosed(frontend_->port(), {kPreface, sizeof(kPreface)}));
  // A client whose connection is closed in between does not notice.
  inference::ModelInferResponse response;
  EXPECT_TRUE(Infer(Request(2), &response).ok());
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_TRUE(Infer(Request(2), &response).ok());
}

TEST_F(FrontendTest, ClosesOldConnectionsWhoseCallsDoNotEnd) {
  FrontendOptions options;
  options.max_age = absl::Milliseconds(100);
  options.age_grace = absl::Milliseconds(100);
  Start({}, {}, options);
  const std::string headers = absl::StrCat(
      HeaderField(":method", "POST"), HeaderField(":scheme", "http"),
      HeaderField(":path", "/inference.GRPCInferenceService/ModelInfer"),
      HeaderField(":authority", "localhost"),
      HeaderField("content-type", "application/grpc"),
      HeaderField("te", "trailers"));
  // HEADERS of stream 1 with END_HEADERS; its message never comes.
  ASSERT_LT(headers.size(), 256);
  const std::string frame = absl::StrCat(
      std::string("\0\0", 2), std::string(1, static_cast<char>(headers.size())),
      std::string("\1\4\0\0\0\1", 6), headers);
  EXPECT_TRUE(IsClosed(
      frontend_->port(),
      absl::StrCat(absl::string_view(kPreface, sizeof(kPreface)), frame)));
}

TEST(FrontendAddressTest, ListensOnEveryAddressOfAName) {
  struct Case {
    const char* host;
    const char* reached_at;
  };
  const bool has_ipv6 = transport::ListenTcp({"::1", 0}).ok();
  for (const Case& each :
       {Case{"0.0.0.0", "127.0.0.1"}, Case{"localhost", "127.0.0.1"},
        Case{"127.0.0.1", "127.0.0.1"}, Case{"0.0.0.0", "[::1]"},
        Case{"[::1]", "[::1]"}}) {
    if (each.reached_at[0] == '[' && !has_ipv6) continue;
    const std::unique_ptr<Engine> engine = *Engine::Create(Catalog({}), {});
    FrontendOptions options;
    options.host = each.host;
    options.port = 0;
    const auto frontend = Frontend::Create(options, engine.get());
    ASSERT_TRUE(frontend.ok()) << frontend.status();
    const auto channel = grpc::CreateChannel(
        absl::StrCat(each.reached_at, ":", (*frontend)->port()),
        grpc::InsecureChannelCredentials());
    EXPECT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() +
                                          std::chrono::seconds(30)))
        << each.host << ", " << each.reached_at;
    engine->Stop();  // before its front end ends
  }
  const std::unique_ptr<Engine> engine = *Engine::Create(Catalog({}), {});
  FrontendOptions options;
  options.host = "no.such.host.invalid";
  EXPECT_THAT(
      std::string(Frontend::Create(options, engine.get()).status().message()),
      HasSubstr("no.such.host.invalid:8001"));
}

TEST_F(FrontendTest, APortThatIsTakenIsAnError) {
  Start();
  const std::unique_ptr<Engine> other = *Engine::Create(Catalog({}), {});
  FrontendOptions options;
  options.host = "127.0.0.1";
  options.port = frontend_->port();
  const absl::Status status = Frontend::Create(options, other.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("127.0.0.1:", options.port)));
}

}  // namespace
}  // namespace refract::cpu_node
