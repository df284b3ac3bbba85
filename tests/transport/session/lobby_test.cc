#include "transport/session/lobby.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "proto/session.pb.h"
#include "transport/loop/socket.h"

namespace refract::transport {
namespace {

class LobbyTest : public testing::Test {
 protected:
  static Lobby::Options SmallOptions() {
    return {absl::Seconds(2), /*max_connections=*/4, /*max_per_host=*/2};
  }
  void SetUp() override {
    auto listener = ListenTcp({"127.0.0.1", 0});
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  // A connection of host 127.0.0.`host` joins the lobby. Its client's end.
  SessionSocket Join(int host) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(0x7f000000u + static_cast<unsigned>(host));
    PCHECK(bind(fd.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0);
    sockaddr_in to = own;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(listener_.port));
    PCHECK(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) ==
           0);
    pollfd come = {listener_.fd.get(), POLLIN, 0};
    PCHECK(poll(&come, 1, 20'000) == 1);
    auto accepted = Accept(listener_.fd.get());
    CHECK(accepted.ok() && accepted->valid()) << accepted.status();
    lobby_.Add(*std::move(accepted), false, now_);
    return SessionSocket(std::move(fd));
  }
  // Waits for an event of `count` connections.
  void Step(int count) {
    std::vector<pollfd> fds;
    int ready = 0;
    do {
      fds.clear();
      lobby_.Arm(&fds);
      ready = poll(fds.data(), fds.size(), count == 0 ? 0 : 20'000);
    } while (ready < count && ready > 0);
    lobby_.Step(absl::MakeSpan(fds), now_);
  }

  struct Left {
    std::string host;
    absl::StatusCode code;
  };
  std::vector<Left> left_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  Listener listener_;
  Lobby lobby_{SmallOptions(), [this](Lobby::Visitor visitor,
                                      absl::StatusOr<SessionFrame> frame) {
                 left_.push_back({visitor.host, frame.status().code()});
               }};
};

TEST_F(LobbyTest, FirstFrameLetsAConnectionIn) {
  SessionSocket silent = Join(1);
  SessionSocket speaker = Join(2);
  ASSERT_TRUE(speaker.Send(FrameKind::kHello, proto::Hello()).ok());
  Step(1);
  ASSERT_EQ(left_.size(), 1u);
  EXPECT_EQ(left_[0].host, "127.0.0.2");
  EXPECT_EQ(left_[0].code, absl::StatusCode::kOk);
  EXPECT_EQ(lobby_.size(), 1u);
}

TEST_F(LobbyTest, ConnectionsThatEndOrSayNonsenseLeave) {
  SessionSocket ends = Join(1);
  SessionSocket garbage = Join(2);
  ends = SessionSocket();
  ASSERT_EQ(send(garbage.fd(), "GET /", 5, 0), 5);
  Step(2);
  ASSERT_EQ(left_.size(), 2u);
  EXPECT_EQ(left_[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(left_[1].code, absl::StatusCode::kInvalidArgument);
}

TEST_F(LobbyTest, SilenceIsLimited) {
  SessionSocket a = Join(1);
  now_ += absl::Seconds(1);
  SessionSocket b = Join(2);
  EXPECT_EQ(lobby_.next_timer(), now_ + absl::Seconds(1));
  now_ += absl::Seconds(1);
  Step(0);
  ASSERT_EQ(left_.size(), 1u);
  EXPECT_EQ(left_[0].host, "127.0.0.1");
  EXPECT_EQ(left_[0].code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(lobby_.next_timer(), now_ + absl::Seconds(1));
}

TEST_F(LobbyTest, OldestOfAHostMakesRoomForItsNext) {
  SessionSocket other = Join(9);
  SessionSocket a = Join(1);
  SessionSocket b = Join(1);
  EXPECT_TRUE(left_.empty());
  SessionSocket c = Join(1);
  ASSERT_EQ(left_.size(), 1u);
  EXPECT_EQ(left_[0].host, "127.0.0.1");
  EXPECT_EQ(left_[0].code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(lobby_.size(), 3u);
}

TEST_F(LobbyTest, OldestOfAllMakesRoomWhenThereAreTooMany) {
  std::vector<SessionSocket> clients;
  for (int host = 1; host <= 5; ++host) clients.push_back(Join(host));
  ASSERT_EQ(left_.size(), 1u);
  EXPECT_EQ(left_[0].host, "127.0.0.1");
  lobby_.DropOldest();
  ASSERT_EQ(left_.size(), 2u);
  EXPECT_EQ(left_[1].host, "127.0.0.2");
}

}  // namespace
}  // namespace refract::transport
