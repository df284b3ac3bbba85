#include "cpu_node/http/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/serving_fixture.h"
#include "transport/loop/fd.h"

namespace refract::cpu_node {
namespace {

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    std::vector<Catalog::Entry> entries;
    const auto model =
        testing_models::MakeSmallModel({.name = "whole", .split = false});
    entries.push_back({"whole", 1, *ServedModel::Create(model, {}), {}});
    EngineOptions options;
    options.workers = 2;
    engine_ = *Engine::Create(Catalog(std::move(entries)), options);
    HttpServerOptions http;
    http.port = 0;
    http.threads = 2;
    server_ = *HttpServer::Create(http, engine_.get(), &memory_);
  }
  ~HttpServerTest() override { engine_->Stop(); }

  // Sends `text` over a connection of its own.
  transport::UniqueFd Send(const std::string& text) {
    transport::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(server_->port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    return fd;
  }

  // All bytes until the server closes the connection.
  static std::string Receive(const transport::UniqueFd& fd) {
    std::string all;
    std::array<char, 4096> part;
    ssize_t got;
    while ((got = recv(fd.get(), part.data(), part.size(), 0)) > 0) {
      all.append(part.data(), static_cast<size_t>(got));
    }
    EXPECT_EQ(got, 0);
    return all;
  }

  static std::string Request(absl::string_view fields) {
    const std::string body =
        R"({"inputs":[)"
        R"({"name":"dense","datatype":"FP32","shape":[1,3],"data":[1,2,3]},)"
        R"({"name":"ids","datatype":"INT64","shape":[1],"data":[4]}]})";
    return absl::StrCat("POST /v2/models/whole/infer HTTP/1.1\r\nHost: h\r\n",
                        fields, "Content-Length: ", body.size(), "\r\n\r\n",
                        body);
  }

  // Whether all connections end within kPatience.
  bool AwaitNoConnections() const {
    const absl::Time give_up = absl::Now() + kPatience;
    while (server_->connections() > 0) {
      if (absl::Now() >= give_up) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  base::ByteBudget memory_{size_t{64} << 20, base::kRequestMemoryFlag};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HttpServer> server_;
};

// An answer comes from a worker's thread, and the connection may end before
// that thread drops its reference: the connection must end on its own thread
// even so, beside which others begin. ThreadSanitizer sees it where it does not.
TEST_F(HttpServerTest, ConnectionsEndWhileWorkersAnswer) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([this, t] {
      for (int round = 0; round < kRounds; ++round) {
        const bool leaves = (t + round) % 2 == 0;
        const transport::UniqueFd fd =
            Send(Request(leaves ? "" : "Connection: close\r\n"));
        if (leaves) continue;
        const std::string answer = Receive(fd);
        EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 200 OK")) << answer;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(AwaitNoConnections()) << server_->connections();
}

// The connection's next request waits in its buffer until the answer is sent.
TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  constexpr int kRequests = 20;
  std::string all;
  for (int i = 1; i < kRequests; ++i) all += Request("");
  all += Request("Connection: close\r\n");
  const std::string text = Receive(Send(all));
  int answers = 0;
  for (size_t at = text.find("HTTP/1.1 200 OK"); at != std::string::npos;
       at = text.find("HTTP/1.1 200 OK", at + 1)) {
    ++answers;
  }
  EXPECT_EQ(answers, kRequests);
  EXPECT_TRUE(AwaitNoConnections());
}

// Clients of HTTP/1.0 would read 100 as the answer.
TEST_F(HttpServerTest, OldClientsGetNoAnswerBeforeTheLast) {
  for (const bool old : {false, true}) {
    const std::string request =
        Request("Expect: 100-continue\r\nConnection: close\r\n");
    const std::string answer = Receive(
        Send(old ? absl::StrReplaceAll(request, {{"HTTP/1.1", "HTTP/1.0"}})
                 : request));
    EXPECT_EQ(absl::StrContains(answer, "100 Continue"), !old) << answer;
    EXPECT_TRUE(absl::StrContains(answer, " 200 OK")) << answer;
  }
}

// A body after the header of an answer to HEAD would be read as the beginning
// of the next answer.
TEST_F(HttpServerTest, HeadIsAnsweredAsGetWithoutTheBody) {
  const std::string get = Receive(Send(
      "GET /v2/health/ready HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
  const std::string close =
      "HEAD /v2/health/ready HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  const std::string head = Receive(Send(close));
  EXPECT_EQ(head, get.substr(0, get.find("\r\n\r\n") + 4));
  EXPECT_TRUE(absl::StrContains(head, "\r\nContent-Length: "));
  for (absl::string_view path : {"/v2/models/none", "/v2/models/whole/infer"}) {
    const std::string two = Receive(Send(
        absl::StrCat("HEAD ", path, " HTTP/1.1\r\nHost: h\r\n\r\n", close)));
    EXPECT_TRUE(absl::StartsWith(two, "HTTP/1.1 40")) << two;
    EXPECT_EQ(two.find('{'), std::string::npos) << two;
    EXPECT_TRUE(absl::StrContains(two, "\r\n\r\nHTTP/1.1 200 OK")) << two;
  }
}

}  // namespace
}  // namespace refract::cpu_node
