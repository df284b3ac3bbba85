#include "metrics/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "metrics/client.h"

namespace refract::metrics {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Connected to the port on loopback, or -1.
int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    return fd;
  }
  close(fd);
  return -1;
}

// The server's answer to `request`, until it closes the connection.
std::string Ask(int port, const std::string& request) {
  const int fd = Connect(port);
  if (fd < 0) return "no connection";
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  ssize_t count;
  while ((count = recv(fd, part, sizeof(part), 0)) > 0) {
    answer.append(part, static_cast<size_t>(count));
  }
  close(fd);
  return answer;
}

std::string Get(int port, const std::string& path) {
  return Ask(port, "GET " + path +
                       " HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
}

TEST(ExpositionTest, WritesFamiliesWithEscapedLabelsAndShortBounds) {
  static constexpr uint64_t kBounds[] = {50'000, 1'500'000};
  Histogram histogram(kBounds);
  histogram.Record(absl::Microseconds(60));
  histogram.Record(absl::Microseconds(40));
  histogram.Record(absl::Milliseconds(2));
  Exposition exposition;
  const Labels model = {{"model", "a\"b\\c\nd"}};
  exposition.AddCounter("requests_total", "Requests", model, 3);
  exposition.AddGauge("ready", "Ready", {}, 1);
  exposition.AddHistogram("time_seconds", "Time", {}, histogram.snapshot(),
                          1e-9);
  // Joins its family, which has its help already.
  exposition.AddCounter("requests_total", "", {{"model", "z"}}, 1e15);
  EXPECT_EQ(exposition.Text(),
            "# HELP requests_total Requests\n"
            "# TYPE requests_total counter\n"
            "requests_total{model=\"a\\\"b\\\\c\\nd\"} 3\n"
            "requests_total{model=\"z\"} 1000000000000000\n"
            "# HELP ready Ready\n"
            "# TYPE ready gauge\n"
            "ready 1\n"
            "# HELP time_seconds Time\n"
            "# TYPE time_seconds histogram\n"
            "time_seconds_count 3\n"
            "time_seconds_sum 0.0021\n"
            "time_seconds_bucket{le=\"5e-05\"} 1\n"
            "time_seconds_bucket{le=\"0.0015\"} 2\n"
            "time_seconds_bucket{le=\"+Inf\"} 3\n");
}

TEST(MetricsServerTest, CollectsForEachScrapeAndNothingElse) {
  int collected = 0;
  auto server = Server::Create("127.0.0.1", 0, [&](Exposition& exposition) {
    exposition.AddCounter("scrapes_total", "Scrapes", {}, ++collected);
  });
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_THAT(Get(port, "/metrics"), HasSubstr("\nscrapes_total 1\n"));
  EXPECT_THAT(Get(port, "/metrics?name[]=up"),
              HasSubstr("\nscrapes_total 2\n"));
  EXPECT_THAT(Get(port, "/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get(port, "/etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get(port, "/metrics/../../etc/passwd"), Not(HasSubstr("root:")));
  EXPECT_THAT(Ask(port,
                  "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n"
                  "Connection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask(port,
                  "HEAD /etc/passwd HTTP/1.1\r\n\r\n"
                  "HEAD /etc HTTP/1.1\r\nConnection: close\r\n\r\n"),
              AllOf(HasSubstr("\r\n\r\nHTTP/1.1 404"), EndsWith("\r\n\r\n")));
  EXPECT_THAT(Ask(port, "no request\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask(port, "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_EQ(collected, 2);
  EXPECT_THAT(Ask(port, "HEAD /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: "),
                    EndsWith("\r\n\r\n")));
}

TEST(MetricsServerTest, AnswersBesideClientsThatSayNothing) {
  auto server = Server::Create("127.0.0.1", 0, [](Exposition& exposition) {
    exposition.AddGauge("up", "Up", {}, 1);
  });
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<int> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connect((*server)->port()));
  EXPECT_THAT(Get((*server)->port(), "/metrics"), HasSubstr("\nup 1\n"));
  for (const int fd : silent) close(fd);
}

TEST(MetricsServerTest, NamesATakenAddressAndOneOfAnotherMachine) {
  auto first = Server::Create("127.0.0.1", 0, [](Exposition&) {});
  ASSERT_TRUE(first.ok()) << first.status();
  const int port = (*first)->port();
  auto second = Server::Create("127.0.0.1", port, [](Exposition&) {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("127.0.0.1:" + std::to_string(port)));
  for (const char* host : {"a..b", "", "[]", "192.0.2.1"}) {
    EXPECT_EQ(Server::Create(host, 0, [](Exposition&) {}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << host;
  }
}

TEST(MetricsServerTest, ListensOnANameAsOnItsAddress) {
  auto server = Server::Create("localhost", 0, [](Exposition& exposition) {
    exposition.AddGauge("up", "Up", {}, 1);
  });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/metrics"), HasSubstr("\nup 1\n"));
}

TEST(MetricsServerTest, FailsForATakenPortOnlyIfItWasAskedFor) {
  auto first = Server::Create("127.0.0.1", 0, [](Exposition&) {});
  ASSERT_TRUE(first.ok()) << first.status();
  Flags flags;
  flags.port.text = std::to_string((*first)->port());
  auto by_default = Serve(flags, [](Exposition&) {});
  ASSERT_TRUE(by_default.ok()) << by_default.status();
  EXPECT_EQ(*by_default, nullptr);
  flags.port.given = true;
  EXPECT_FALSE(Serve(flags, [](Exposition&) {}).ok());
  flags.port.text = "off";
  auto off = Serve(flags, [](Exposition&) {});
  ASSERT_TRUE(off.ok());
  EXPECT_EQ(*off, nullptr);
}

Routes TestRoutes(int* changes, bool remote) {
  Routes routes;
  routes.remote_changes = remote;
  routes.remote_flag = "--remote";
  routes.routes = {
      {"/status", false, [] { return Route::Answer{.body = "{}\n"}; }},
      {"/ready", false,
       [] {
         return Route::Answer{
             .status = 503, .type = "text/plain", .body = "no\n"};
       }},
      {"/change", true, [changes] {
         ++*changes;
         return Route::Answer{.body = "changed\n"};
       }}};
  return routes;
}

TEST(ServerTest, AnswersOtherRoutes) {
  int changes = 0;
  auto server = Server::Create(
      "127.0.0.1", 0, [](Exposition&) {}, TestRoutes(&changes, false));
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_THAT(Get(port, "/status"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("application/json"),
                    HasSubstr("\r\n\r\n{}\n")));
  EXPECT_THAT(Get(port, "/ready"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("text/plain")));
  EXPECT_THAT(Get(port, "/metrics"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(port, "/change"),
              AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: POST")));
  EXPECT_EQ(changes, 0);
  const std::string post = "POST /change HTTP/1.1\r\nHost: here\r\n";
  EXPECT_THAT(Ask(port, post + "Connection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("changed")));
  EXPECT_EQ(changes, 1);
  // A page in a browser on this machine.
  EXPECT_THAT(
      Ask(port, post + "Origin: http://evil\r\nConnection: close\r\n\r\n"),
      StartsWith("HTTP/1.1 403"));
  // A body is more than any route takes.
  EXPECT_THAT(Ask(port, post + "Content-Length: 3\r\n\r\nabc"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_EQ(changes, 1);
}

TEST(ServerTest, GivesBodiesToRoutesThatTakeThem) {
  int changes = 0;
  Routes routes = TestRoutes(&changes, false);
  routes.routes.push_back(
      {.target = "/echo",
       .changes = true,
       .answer_body =
           [](const std::string& body) { return Route::Answer{.body = body}; },
       .most_body_bytes = 20'000});
  auto server = Server::Create(
      "127.0.0.1", 0, [](Exposition&) {}, std::move(routes));
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string address = "127.0.0.1:" + std::to_string((*server)->port());
  const auto post = [&](const char* target, size_t bytes) {
    return Post(address, target, "text/plain", std::string(bytes, 'x'),
                absl::Seconds(10));
  };
  // Longer than the buffer of the head.
  EXPECT_EQ(post("/echo", 20'000)->body, std::string(20'000, 'x'));
  EXPECT_EQ(post("/echo", 0)->body, "");
  EXPECT_EQ(post("/echo", 20'001)->status, 400);
  // Other routes take none still.
  EXPECT_EQ(post("/change", 1)->status, 400);
  EXPECT_EQ(post("/metrics", 1)->status, 400);
  EXPECT_EQ(changes, 0);
}

TEST(ClientTest, AsksAServer) {
  int changes = 0;
  auto server = Server::Create(
      "127.0.0.1", 0, [](Exposition&) {}, TestRoutes(&changes, false));
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string address = "127.0.0.1:" + std::to_string((*server)->port());
  const auto ask = [&](bool change, const char* target) {
    return Request(address, change, target, absl::Seconds(10));
  };
  EXPECT_EQ(ask(false, "/status")->body, "{}\n");
  EXPECT_EQ(ask(false, "/ready")->status, 503);
  EXPECT_EQ(ask(true, "/change")->status, 200);
  EXPECT_EQ(changes, 1);
  server->reset();
  const absl::Status gone = ask(false, "/status").status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr(address));
  for (const char* bad : {"", "here", "here:", ":1", "here:0", "here:70000"}) {
    EXPECT_EQ(Request(bad, false, "/", absl::Seconds(1)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

double ProcessSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

// The kernel keeps the connection, so that accepting it fails again and again.
TEST(ServerTest, RestsWhileThereIsNoFreeDescriptor) {
  const auto server = Server::Create("127.0.0.1", 0, [](Exposition&) {});
  ASSERT_TRUE(server.ok()) << server.status();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int next = dup(fd);
  close(next);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none_left = {static_cast<rlim_t>(next), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>((*server)->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  const double seconds = ProcessSeconds();
  pollfd waits = {fd, POLLIN, 0};
  EXPECT_EQ(poll(&waits, 1, /*timeout=*/300), 0);
  EXPECT_LT(ProcessSeconds() - seconds, 0.1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const std::string request =
      "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  EXPECT_EQ(poll(&waits, 1, /*timeout=*/10'000), 1);
  close(fd);
}

TEST(ClientTest, GivesUpOnASilentServer) {
  // Listens and accepts nothing.
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  EXPECT_EQ(Request("127.0.0.1:" + std::to_string(ntohs(address.sin_port)),
                    false, "/status", absl::Milliseconds(100))
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  close(fd);
}

}  // namespace
}  // namespace refract::metrics
