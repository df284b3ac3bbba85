#include "metrics/client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace refract::metrics {
namespace {

using testing::HasSubstr;

// A server that answers one request with `bytes`, then with `more` for as long
// as its client reads.
class Peer {
 public:
  explicit Peer(std::string bytes, std::string more = "")
      : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size),
        0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, bytes = std::move(bytes),
                           more = std::move(more)] { Serve(bytes, more); });
  }
  ~Peer() {
    thread_.join();
    close(listener_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  void Serve(const std::string& bytes, const std::string& more) {
    const int fd = accept(listener_, nullptr, nullptr);
    char request[4096];
    EXPECT_GT(recv(fd, request, sizeof(request), 0), 0);
    const auto sent = [&](const std::string& part) {
      return send(fd, part.data(), part.size(), MSG_NOSIGNAL) > 0;
    };
    if (sent(bytes)) {
      while (!more.empty() && sent(more)) {
      }
    }
    close(fd);
  }

  const int listener_;
  int port_ = 0;
  std::thread thread_;
};

absl::StatusOr<Reply> Ask(const Peer& peer) {
  return Request(peer.address(), /*changes=*/false, "/", absl::Seconds(30));
}

TEST(ClientTest, ReadsAnAnswer) {
  const Peer peer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  const auto reply = Ask(peer);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body, "hello");
}

TEST(ClientTest, AnAnnouncedLengthTakesNoMemory) {
  const Peer peer("HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n",
                  std::string(1 << 16, 'x'));
  const auto reply = Ask(peer);
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(reply.status().message()),
              HasSubstr("body limit exceeded"));
}

TEST(ClientTest, EndlessAnswersAreCut) {
  for (const char* begin :
       {"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nName: "}) {
    const Peer peer(begin, std::string(1 << 16, 'x'));
    EXPECT_EQ(Ask(peer).status().code(), absl::StatusCode::kUnavailable)
        << begin;
  }
}

TEST(ClientTest, AnswersThatAreNoHttpOrHalfAreRefused) {
  const Peer other("nonsense\r\n\r\n");
  const absl::Status refused = Ask(other).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("not HTTP"));
  for (const char* bytes :
       {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nContent-Len"}) {
    const Peer peer(bytes);
    EXPECT_EQ(Ask(peer).status().code(), absl::StatusCode::kUnavailable)
        << bytes;
  }
}

}  // namespace
}  // namespace refract::metrics
