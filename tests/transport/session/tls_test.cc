// Servers and clients with TLS: requests over every path, refusals that both
// ends explain, certificates that change, and ends without TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/session.pb.h"
#include "tests/base/random_seed.h"
#include "tests/transport/testing/certificates.h"
#include "tests/transport/testing/channel_fixture.h"
#include "transport/loop/socket.h"
#include "transport/loop/stream.h"
#include "transport/session/handshake.h"
#include "transport/session/session_socket.h"

namespace refract::transport {
namespace {

using base::TlsUse;
using testing::HasSubstr;

class TlsTest : public ChannelTest {
 protected:
  TlsTest() {
    certificates_.Make({.name = "hn"});
    certificates_.Make({.name = "cn"});
    certificates_.Make({.name = "stray", .issuer = "stranger"});
    certificates_.Make({.name = "named", .alternative = "DNS:hn.example"});
    server_options_.tls = certificates_.Contexts("hn", TlsUse::kAcceptNodes);
    client_options_.tls.contexts =
        certificates_.Contexts("cn", TlsUse::kDialNodes);
  }

  void ExpectEcho(size_t max_bytes, int requests) {
    std::mt19937 random(base::RandomSeed());
    for (int i = 0; i < requests; ++i) {
      const auto specs = RandomSpecs(random, max_bytes);
      const auto contents = Contents(random(), specs);
      auto message = client_->Allocate(0, specs);
      ASSERT_TRUE(message.ok()) << message.status();
      Fill(*message, contents);
      Call call;
      client_->Send(*std::move(message), absl::InfiniteFuture(),
                    call.callback());
      const auto& answer = call.Await();
      ASSERT_TRUE(answer.ok()) << answer.status();
      ExpectTensors(answer->tensors(), specs, contents);
    }
  }
  void ExpectRefusal(absl::StatusCode code, const std::string& why) {
    ASSERT_NO_FATAL_FAILURE(Serve(Echo));
    ASSERT_NO_FATAL_FAILURE(StartClient());
    ASSERT_TRUE(Eventually([&] {
      return server_->stats().refused > 0 &&
             client_->state().last_error.code() == code;
    })) << client_->state().last_error;
    EXPECT_THAT(std::string(client_->state().last_error.message()),
                HasSubstr(why));
    EXPECT_FALSE(client_->state().connected);
    EXPECT_EQ(server_->stats().accepted, 0u);
  }
  // A stranger's connection to the server's port.
  UniqueFd Knock() {
    auto waker = ThreadWaker::Create();
    const Wait wait{**waker, base::Clock::Real(),
                    [] { return absl::OkStatus(); }};
    auto fd = ConnectTcp({"127.0.0.1", server_->port()}, wait,
                         absl::Now() + kPatience);
    CHECK(fd.ok()) << fd.status();
    return *std::move(fd);
  }

  Certificates certificates_;
};

TEST_P(TlsTest, RequestsOfAllSizes) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  ExpectEcho(2'000, 200);
  ExpectEcho(8'000'000, 12);
  EXPECT_EQ(client_->state().losses, 0u);
}

TEST_P(TlsTest, ManyRequestsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  const std::vector<base::TensorSpec> specs = {
      {base::DType::kFloat32, {40'000}}};
  for (int round = 0; round < 5; ++round) {
    std::vector<std::vector<std::string>> contents;
    std::deque<Call> calls;
    for (uint32_t i = 0; i < 32; ++i) {
      contents.push_back(Contents(100 * i, specs));
      auto message = client_->Allocate(0, specs);
      ASSERT_TRUE(message.ok()) << message.status();
      Fill(*message, contents.back());
      client_->Send(*std::move(message), absl::InfiniteFuture(),
                    calls.emplace_back().callback());
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto& answer = calls[i].Await();
      ASSERT_TRUE(answer.ok()) << answer.status();
      ExpectTensors(answer->tensors(), specs, contents[i]);
    }
  }
}

TEST_P(TlsTest, ClientOfOtherRootsIsRefused) {
  client_options_.tls.contexts =
      certificates_.Contexts("stray", TlsUse::kDialNodes);
  ExpectRefusal(absl::StatusCode::kUnauthenticated,
                "refuses this node's certificate /CN=stray");
}

TEST_P(TlsTest, ServerOfOtherRootsIsRefused) {
  server_options_.tls = certificates_.Contexts("stray", TlsUse::kAcceptNodes);
  ExpectRefusal(absl::StatusCode::kUnauthenticated,
                "the peer's certificate /CN=stray: unable to get local issuer");
}

TEST_P(TlsTest, ServerOfAnotherNameIsRefusedUnlessTheNameIsExpected) {
  server_options_.tls = certificates_.Contexts("named", TlsUse::kAcceptNodes);
  ExpectRefusal(absl::StatusCode::kUnauthenticated,
                "the peer's certificate /CN=named: IP address mismatch");
  client_.reset();
  client_options_.tls.name = "hn.example";
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  ExpectEcho(2'000, 5);
}

TEST_P(TlsTest, PlainClientIsRefused) {
  client_options_.tls.contexts = nullptr;
  ExpectRefusal(absl::StatusCode::kFailedPrecondition,
                "this node takes TLS alone (--node-tls-cert)");
}

TEST_P(TlsTest, PlainServerIsRefused) {
  server_options_.tls = nullptr;
  ExpectRefusal(absl::StatusCode::kFailedPrecondition,
                "the peer does not use TLS (--node-tls-cert)");
}

// New certificates are for new connections, whatever the new files are.
TEST_P(TlsTest, CertificatesChangeWithoutARestart) {
  base::ManualClock files_clock(absl::FromUnixSeconds(1));
  server_options_.tls =
      certificates_.Contexts("hn", TlsUse::kAcceptNodes, "root", files_clock);
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  const std::string address = client_options_.address;

  // A certificate that the client's roots do not vouch for.
  certificates_.Make({.name = "hn", .issuer = "stranger"});
  files_clock.Advance(absl::Seconds(2));
  ExpectEcho(2'000, 5);
  EXPECT_EQ(client_->state().epoch, 1u);
  auto second = Client::Create(client_options_, nullptr);
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(Eventually([&] {
    return absl::IsUnauthenticated((*second)->state().last_error);
  })) << (*second)->state().last_error;

  // The client that was refused keeps trying and gets in.
  certificates_.Make({.name = "hn"});
  files_clock.Advance(absl::Seconds(2));
  ASSERT_TRUE(Eventually([&] { return (*second)->state().connected; }))
      << (*second)->state().last_error;
  EXPECT_EQ(client_->state().epoch, 1u);
  ExpectEcho(2'000, 5);
}

TEST_P(TlsTest, HalfAHandshakeTimesOut) {
  server_options_.handshake_timeout = absl::Milliseconds(200);
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  const auto silent = Knock();
  const auto half = Knock();
  // A record of 300 bytes, of which 3 come.
  ASSERT_EQ(send(half.get(), "\x16\x03\x01\x01\x2c\x01\x00\x01", 8, 0), 8);
  for (const UniqueFd* fd : {&silent, &half}) {
    pollfd look = {fd->get(), POLLIN, 0};
    ASSERT_EQ(poll(&look, 1, 20'000), 1);
    char byte;
    EXPECT_LE(recv(fd->get(), &byte, 1, MSG_DONTWAIT), 0);
  }
  EXPECT_TRUE(Eventually([&] { return server_->stats().refused == 2; }));
}

// Bytes of strangers, in TLS and before it: others are served meanwhile.
TEST_P(TlsTest, NonsenseDisturbsNobody) {
  ASSERT_NO_FATAL_FAILURE(Serve(Echo));
  ASSERT_NO_FATAL_FAILURE(StartClient());
  ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  std::mt19937 random(base::RandomSeed());
  auto waker = ThreadWaker::Create();
  const Wait wait{**waker, base::Clock::Real(),
                  [] { return absl::OkStatus(); }};
  constexpr int kStrangers = 60;
  for (int i = 0; i < kStrangers; ++i) {
    std::string text(1 + random() % 3000, '\0');
    for (char& byte : text) byte = static_cast<char>(random());
    UniqueFd fd = Knock();
    if (i % 3 == 0) text.replace(0, 3, "\x16\x03\x01");
    if (i % 3 < 2) {
      send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    } else {
      // An end with a good certificate speaks nonsense, or attaches to a
      // session that is not its own.
      auto stream = Stream::DialTls(
          std::move(fd), client_options_.tls.contexts->context().get(),
          "127.0.0.1");
      ASSERT_TRUE(stream.ok());
      ASSERT_TRUE(stream->ShakeHands(wait, absl::Now() + kPatience).ok());
      proto::Attach attach;
      attach.set_token(std::string(16, 't'));
      attach.set_path(proto::TRANSPORT_PATH_TCP);
      if (i % 2 == 0) {
        text =
            EncodeSessionFrame(FrameKind::kAttach, attach.SerializeAsString());
      }
      const iovec bytes = {text.data(), text.size()};
      EXPECT_GT(stream->Send({&bytes, 1}), 0);
      char byte;
      const iovec place = {&byte, 1};
      EXPECT_TRUE(Eventually([&] {
        const ssize_t got = stream->Receive({&place, 1});
        return got == 0 || (got < 0 && errno != EAGAIN);
      }));
    }
  }
  EXPECT_TRUE(Eventually([&] {
    return server_->stats().refused == kStrangers;
  })) << server_->stats().refused;
  ExpectEcho(2'000, 5);
  EXPECT_EQ(client_->state().epoch, 1u);
}

INSTANTIATE_TEST_SUITE_P(Paths, TlsTest, testing::ValuesIn(PathsUnderTest()),
                         PathParamName);

TEST(TlsContexts, FilesThatDoNotFitAreNamed) {
  Certificates certificates;
  certificates.Make({.name = "hn"});
  certificates.Make({.name = "cn"});
  certificates.Make({.name = "old", .from_s = -7200, .until_s = -3600});
  const base::TlsFiles good = certificates.Files("hn");
  struct Case {
    base::TlsFiles files = {};
    std::string why;
  };
  std::vector<Case> cases(5, {good});
  cases[0].files.key = certificates.path("cn.key");
  cases[0].why =
      "--node-tls-key " + cases[0].files.key + ": key values mismatch";
  cases[1].files = certificates.Files("old");
  cases[1].why = "--node-tls-cert " + cases[1].files.certificate +
                 ": the certificate of /CN=old has expired";
  cases[2].files.roots = certificates.path("hn.key");
  cases[2].why = "--node-tls-ca " + cases[2].files.roots + ": ";
  cases[3].files.roots = "";
  cases[3].why = "--node-tls-ca ";
  cases[4].files.certificate = certificates.path("none");
  cases[4].why = "--node-tls-cert " + cases[4].files.certificate + ": ";
  for (const TlsUse use : {TlsUse::kAcceptNodes, TlsUse::kDialNodes}) {
    EXPECT_TRUE(base::TlsContexts::Create(good, use, base::Clock::Real()).ok());
    for (const Case& c : cases) {
      const auto status =
          base::TlsContexts::Create(c.files, use, base::Clock::Real()).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), testing::StartsWith(c.why));
    }
  }
}

}  // namespace
}  // namespace refract::transport
