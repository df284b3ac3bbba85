// TLS between two ends of one thread: handshakes that succeed or are refused,
// bytes in all sizes, and bytes that are cut, changed or nonsense.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "tests/base/random_seed.h"
#include "tests/transport/testing/certificates.h"
#include "transport/loop/stream.h"

namespace refract::transport {
namespace {

using base::TlsUse;

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int fds[2];
  PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                    fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Reads as much as there is. False: the stream has ended; `error` says how.
bool Drain(Stream& stream, std::string* bytes, absl::Status* error) {
  std::array<char, 5000> buffer;
  while (true) {
    const iovec place = {buffer.data(), buffer.size()};
    const ssize_t got = stream.Receive({&place, 1});
    if (got < 0 && errno == EAGAIN) return true;
    if (got < 0) *error = stream.Error("read");
    if (got == 0) *error = PeerEnded("end");
    if (got <= 0) return false;
    bytes->append(buffer.data(), static_cast<size_t>(got));
  }
}

// Both ends of a connection, the bytes that arrived and the errors.
struct Ends {
  Stream client;
  Stream server;
  std::string to_client;
  std::string to_server;
  absl::Status client_error;
  absl::Status server_error;
};

class TlsStreamTest : public testing::Test {
 protected:
  TlsStreamTest() {
    certificates_.Make({.name = "hn"});
    certificates_.Make({.name = "cn"});
    certificates_.Make({.name = "old", .from_s = -7200, .until_s = -3600});
    certificates_.Make({.name = "early", .from_s = 3600, .until_s = 7200});
    certificates_.Make({.name = "forged", .issuer = "stranger"});
    certificates_.Make(
        {.name = "elsewhere", .alternative = "IP:10.0.0.7,DNS:hn.example"});
    certificates_.Make({.name = "client-only", .usage = "clientAuth"});
  }

  std::shared_ptr<SSL_CTX> Good(bool server) {
    return certificates_
        .Contexts(server ? "hn" : "cn",
                  server ? TlsUse::kAcceptNodes : TlsUse::kDialNodes)
        ->context();
  }
  Ends Connect(SSL_CTX* client, SSL_CTX* server,
               const std::string& name = "127.0.0.1") {
    auto [a, b] = SocketPair();
    Ends ends;
    auto dialled = Stream::DialTls(std::move(a), client, name);
    auto accepted = Stream::AcceptTls(std::move(b), server);
    CHECK(dialled.ok() && accepted.ok()) << dialled.status();
    ends.client = *std::move(dialled);
    ends.server = *std::move(accepted);
    return ends;
  }
  // Steps both ends until nothing moves any more. Each end sends a word first,
  // as peers of the transport do.
  void Talk(Ends& ends) {
    const auto waker = ThreadWaker::Create();
    base::ManualClock clock(absl::FromUnixSeconds(1));
    const Wait wait{**waker, clock, [] { return absl::OkStatus(); }};
    bool said = false;
    for (int round = 0; round < 10; ++round) {
      // The deadline has passed: one step that does not wait.
      if (ends.client_error.ok() && ends.client.shaking_hands()) {
        const absl::Status status = ends.client.ShakeHands(wait, clock.Now());
        if (!status.ok() && !absl::IsDeadlineExceeded(status)) {
          ends.client_error = status;
        }
      }
      if (ends.client_error.ok() && !ends.client.shaking_hands()) {
        if (!std::exchange(said, true)) Say(ends.client, "hello");
        Drain(ends.client, &ends.to_client, &ends.client_error);
      }
      if (ends.server_error.ok() &&
          !Drain(ends.server, &ends.to_server, &ends.server_error)) {
        // A server closes a connection that it refuses.
        ends.server = Stream();
      }
    }
  }
  static void Say(Stream& stream, const std::string& text) {
    const iovec bytes = {const_cast<char*>(text.data()), text.size()};
    ASSERT_EQ(stream.Send({&bytes, 1}), static_cast<ssize_t>(text.size()));
  }

  Certificates certificates_;
};

TEST_F(TlsStreamTest, BothEndsKnowEachOther) {
  Ends ends = Connect(Good(false).get(), Good(true).get());
  Talk(ends);
  EXPECT_TRUE(ends.client_error.ok()) << ends.client_error;
  EXPECT_TRUE(ends.server_error.ok()) << ends.server_error;
  EXPECT_EQ(ends.to_server, "hello");
  EXPECT_EQ(ends.server.PeerText(), ", certificate /CN=cn");
  EXPECT_EQ(ends.client.PeerText(), ", certificate /CN=hn");
  EXPECT_FALSE(ends.server.may_have_more());
  ends.client = Stream();
  const iovec word = {ends.to_server.data(), 1};
  EXPECT_EQ(ends.server.Send({&word, 1}), -1);
  EXPECT_TRUE(IsPeerEnd(ends.server.Error("write")));
  EXPECT_FALSE(Drain(ends.server, &ends.to_server, &ends.server_error));
  EXPECT_TRUE(IsPeerEnd(ends.server_error));
}

// The end with the bad certificate checks nothing itself, so that only the
// other end can refuse the connection.
TEST_F(TlsStreamTest, RefusedCertificatesAreNamedAtBothEnds) {
  const struct {
    const char* client;  // empty: none
    const char* server;
    const char* dialled;
    const char* client_says;
    const char* server_says;
  } kCases[] = {
      {"cn", "forged", "127.0.0.1",
       "the peer's certificate /CN=forged: unable to get local issuer",
       "refuses this node's certificate /CN=forged"},
      {"cn", "old", "127.0.0.1",
       "the peer's certificate /CN=old: certificate has expired",
       "refuses this node's certificate /CN=old"},
      {"cn", "early", "127.0.0.1",
       "the peer's certificate /CN=early: certificate is not yet valid",
       "refuses this node's certificate /CN=early"},
      {"cn", "elsewhere", "127.0.0.1",
       "the peer's certificate /CN=elsewhere: IP address mismatch with "
       "127.0.0.1 (--node-tls-name)",
       "refuses this node's certificate /CN=elsewhere"},
      {"cn", "hn", "hn.example",
       "the peer's certificate /CN=hn: hostname mismatch with hn.example",
       "refuses this node's certificate /CN=hn"},
      {"cn", "client-only", "127.0.0.1",
       "the peer's certificate /CN=client-only: unsuitable certificate purpose",
       "refuses this node's certificate /CN=client-only"},
      {"", "hn", "127.0.0.1",
       "refuses to go on without a certificate of this node",
       "peer did not return a certificate"},
      {"forged", "hn", "127.0.0.1",
       "refuses this node's certificate /CN=forged",
       "the peer's certificate /CN=forged: unable to get local issuer"},
      {"old", "hn", "127.0.0.1", "refuses this node's certificate /CN=old",
       "the peer's certificate /CN=old: certificate has expired"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(absl::StrCat(c.client, " ", c.server, " ", c.dialled));
    const bool bad_server = std::string(c.client) == "cn";
    Ends ends = Connect(
        (bad_server ? Good(false) : certificates_.Careless(false, c.client))
            .get(),
        (bad_server ? certificates_.Careless(true, c.server) : Good(true))
            .get(),
        c.dialled);
    Talk(ends);
    EXPECT_EQ(ends.client_error.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(ends.server_error.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(ends.client_error.message()),
                testing::HasSubstr(c.client_says));
    EXPECT_THAT(std::string(ends.server_error.message()),
                testing::HasSubstr(c.server_says));
    EXPECT_EQ(ends.to_server, "");
    EXPECT_EQ(ends.to_client, "");
  }
  // The right name is enough for the certificate of another address.
  Ends ends =
      Connect(Good(false).get(),
              certificates_.Careless(true, "elsewhere").get(), "hn.example");
  Talk(ends);
  EXPECT_TRUE(ends.client_error.ok()) << ends.client_error;
  EXPECT_EQ(ends.to_server, "hello");
}

TEST_F(TlsStreamTest, OlderTlsIsRefused) {
  const auto old = certificates_.Careless(false, "cn");
  SSL_CTX_set_max_proto_version(old.get(), TLS1_2_VERSION);
  Ends ends = Connect(old.get(), Good(true).get());
  Talk(ends);
  EXPECT_THAT(std::string(ends.server_error.message()),
              testing::HasSubstr("unsupported protocol"));
  EXPECT_FALSE(ends.client_error.ok());
}

TEST_F(TlsStreamTest, NoNameIsNoPermission) {
  auto [a, b] = SocketPair();
  EXPECT_EQ(
      Stream::DialTls(std::move(a), Good(false).get(), "").status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(TlsStreamTest, PlainPeersAreRecognised) {
  auto [a, b] = SocketPair();
  auto server = Stream::AcceptTls(std::move(b), Good(true).get());
  ASSERT_TRUE(server.ok());
  ASSERT_EQ(send(a.get(), "RRFS, a hello", 13, 0), 13);
  std::string bytes;
  absl::Status error;
  EXPECT_FALSE(Drain(*server, &bytes, &error));
  EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition) << error;
  EXPECT_TRUE(server->peer_is_plain());

  Ends ends = Connect(Good(false).get(), Good(true).get());
  auto [c, d] = SocketPair();
  auto client = Stream::DialTls(std::move(c), Good(false).get(), "127.0.0.1");
  ASSERT_TRUE(client.ok());
  ASSERT_EQ(send(d.get(), "RRFS, a refusal", 15, 0), 15);
  ends.client = *std::move(client);
  Talk(ends);
  EXPECT_EQ(ends.client_error.code(), absl::StatusCode::kFailedPrecondition);
}

// Random pieces through a small socket, both ways at once: they arrive as they
// were sent, and nothing waits for an event that never comes.
TEST_F(TlsStreamTest, BytesOfAllSizesArriveInOrder) {
  Ends ends = Connect(Good(false).get(), Good(true).get());
  Talk(ends);
  for (const Stream* end : {&ends.client, &ends.server}) {
    const int small = 4096;
    setsockopt(end->fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  }
  std::mt19937 random(base::RandomSeed());
  constexpr size_t kTotal = size_t{1} << 20;
  std::array<std::string, 2> sent;
  for (std::string& text : sent) {
    text.resize(kTotal);
    for (char& byte : text) byte = static_cast<char>(random());
  }
  std::array<size_t, 2> done = {};
  std::array<std::string, 2> got;
  bool was_full = false;
  const std::array<Stream*, 2> from = {&ends.client, &ends.server};
  for (int idle = 0; got[0].size() < kTotal || got[1].size() < kTotal;) {
    ASSERT_LT(++idle, 1000) << got[0].size() << " " << got[1].size();
    for (size_t i = 0; i < 2; ++i) {
      std::vector<iovec> pieces;
      size_t at = done[i];
      for (size_t n = random() % 5; n > 0 && at < kTotal; --n) {
        const size_t most = random() % 3 == 0 ? 100'000 : 100;
        const size_t bytes = std::min<size_t>(random() % most, kTotal - at);
        pieces.push_back({sent[i].data() + at, bytes});
        at += bytes;
      }
      const ssize_t n = from[i]->Send(pieces);
      ASSERT_TRUE(n >= 0 || errno == EAGAIN) << from[i]->Error("send");
      was_full |= from[i]->has_unsent();
      if (n > 0) done[i] += static_cast<size_t>(n);
      ASSERT_TRUE(from[i]->Flush() == 0 || errno == EAGAIN);

      std::array<std::string, 2> places = {
          std::string(random() % 300, '\0'),
          std::string(random() % 40'000, '\0')};
      const std::array<iovec, 2> into = {
          iovec{places[0].data(), places[0].size()},
          iovec{places[1].data(), places[1].size()}};
      const ssize_t received = from[1 - i]->Receive(into);
      ASSERT_NE(received < 0 && errno != EAGAIN, true);
      if (received <= 0) {
        EXPECT_FALSE(received < 0 && from[1 - i]->may_have_more());
        continue;
      }
      idle = 0;
      const std::string all = places[0] + places[1];
      got[i].append(all, 0, static_cast<size_t>(received));
    }
  }
  EXPECT_TRUE(was_full);
  EXPECT_TRUE(got[0] == sent[0] && got[1] == sent[1]);
}

// A relay between the ends, which sees the encrypted bytes.
class RelayedTlsTest : public TlsStreamTest {
 protected:
  using Change = std::function<bool(bool to_server, std::string& bytes)>;

  // As Connect() and Talk() over the relay; `change` returns false to close.
  Ends Run(const Change& change) {
    auto [a, a_relay] = SocketPair();
    auto [b_relay, b] = SocketPair();
    Ends ends;
    ends.client =
        *Stream::DialTls(std::move(a), Good(false).get(), "127.0.0.1");
    ends.server = *Stream::AcceptTls(std::move(b), Good(true).get());
    const auto waker = ThreadWaker::Create();
    base::ManualClock clock(absl::FromUnixSeconds(1));
    const Wait wait{**waker, clock, [] { return absl::OkStatus(); }};
    bool said = false;
    bool answered = false;
    for (int round = 0; round < 12; ++round) {
      if (ends.client_error.ok() && ends.client.shaking_hands()) {
        const absl::Status status = ends.client.ShakeHands(wait, clock.Now());
        if (!absl::IsDeadlineExceeded(status)) ends.client_error = status;
      }
      if (ends.client_error.ok() && !ends.client.shaking_hands()) {
        if (!std::exchange(said, true)) Say(ends.client, "hello");
        Drain(ends.client, &ends.to_client, &ends.client_error);
      }
      if (ends.server_error.ok()) {
        Drain(ends.server, &ends.to_server, &ends.server_error);
      }
      if (ends.server_error.ok() && !ends.to_server.empty() &&
          !std::exchange(answered, true)) {
        Say(ends.server, "welcome");
      }
      Pass(a_relay, b_relay, true, change);
      Pass(b_relay, a_relay, false, change);
    }
    return ends;
  }

 private:
  static void Pass(UniqueFd& from, UniqueFd& to, bool to_server,
                   const Change& change) {
    if (!from.valid() || !to.valid()) return;
    std::string bytes(100'000, '\0');
    const ssize_t got =
        recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return;
    bytes.resize(static_cast<size_t>(got));
    if (got > 0 && change(to_server, bytes)) {
      send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      return;
    }
    if (got > 0 && !bytes.empty()) {
      send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    from.Reset(-1);
    to.Reset(-1);
  }
};

TEST_F(RelayedTlsTest, ConnectionsCutAnywhereEndInAnError) {
  size_t whole = 0;
  const Ends good = Run([&](bool to_server, std::string& bytes) {
    if (to_server) whole += bytes.size();
    return true;
  });
  ASSERT_EQ(good.to_client, "welcome") << good.client_error;
  ASSERT_GT(whole, 100u);
  for (size_t cut = 0; cut < whole; cut += cut < 40 ? 1 : 23) {
    SCOPED_TRACE(cut);
    size_t passed = 0;
    const Ends ends = Run([&](bool to_server, std::string& bytes) {
      if (!to_server) return true;
      passed += bytes.size();
      if (passed < cut) return true;
      bytes.resize(bytes.size() - (passed - cut));
      return false;
    });
    EXPECT_FALSE(ends.client_error.ok());
    EXPECT_FALSE(ends.server_error.ok());
    EXPECT_EQ(ends.to_client, "");
  }
}

// An end accepts only bytes that the other end sent, unchanged.
TEST_F(RelayedTlsTest, ChangedBytesNeverPass) {
  std::mt19937 random(base::RandomSeed());
  int failed = 0;
  for (int i = 0; i < 300; ++i) {
    const bool direction = random() % 2 == 0;
    size_t left = random() % 1500;
    bool changed = false;
    const Ends ends = Run([&](bool to_server, std::string& bytes) {
      if (to_server != direction || changed) return true;
      if (left >= bytes.size()) {
        left -= bytes.size();
        return true;
      }
      bytes[left] = static_cast<char>(bytes[left] ^ (1 << random() % 8));
      changed = true;
      return true;
    });
    EXPECT_TRUE(ends.to_server.empty() || ends.to_server == "hello");
    EXPECT_TRUE(ends.to_client.empty() || ends.to_client == "welcome");
    const bool done = ends.to_client == "welcome";
    // Bits of the versions in record headers have no effect.
    EXPECT_TRUE(done || changed);
    failed += !done;
  }
  EXPECT_GT(failed, 100);
}

TEST_F(TlsStreamTest, NonsenseIsAnError) {
  std::mt19937 random(base::RandomSeed());
  for (int i = 0; i < 300; ++i) {
    auto [a, b] = SocketPair();
    auto server = Stream::AcceptTls(std::move(b), Good(true).get());
    ASSERT_TRUE(server.ok());
    std::string text(1 + random() % 600, '\0');
    for (char& byte : text) byte = static_cast<char>(random());
    // Most look like a handshake at first.
    if (random() % 4 != 0) text.replace(0, 3, "\x16\x03\x01");
    ASSERT_GT(send(a.get(), text.data(), text.size(), 0), 0);
    a.Reset(-1);
    std::string bytes;
    absl::Status error;
    EXPECT_FALSE(Drain(*server, &bytes, &error));
    EXPECT_FALSE(error.ok());
    EXPECT_EQ(bytes, "");
  }
}

}  // namespace
}  // namespace refract::transport
