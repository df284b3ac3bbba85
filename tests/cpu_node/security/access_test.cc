#include "cpu_node/security/access.h"

#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace refract::cpu_node {
namespace {

using testing::HasSubstr;

constexpr char kClientToken[] = "client-token-0123456789";
constexpr char kControlToken[] = "control-token-0123456789";

class AccessTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/access_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // By rename, as docs/how-to/security.md says.
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }
  std::unique_ptr<AccessControl> Make(const AccessFiles& files) {
    auto access = AccessControl::Create(files, clock_);
    EXPECT_TRUE(access.ok()) << access.status();
    return *std::move(access);
  }
  static absl::StatusCode Code(const AccessControl& access, Access what,
                               const std::string& header) {
    return access.Check(what, header).code();
  }

  std::string folder_;
  base::ManualClock clock_;
};

TEST_F(AccessTest, TellsClientsFromControl) {
  const std::string clients =
      Write("clients", absl::StrCat("# ours\n\n  ", kClientToken, "\r\n"));
  const std::string control = Write("control", kControlToken);
  const std::string client = absl::StrCat("Bearer ", kClientToken);
  const std::string operations = absl::StrCat("bearer ", kControlToken, " ");
  const absl::StatusCode ok = absl::StatusCode::kOk;
  const absl::StatusCode unknown = absl::StatusCode::kUnauthenticated;
  const absl::StatusCode denied = absl::StatusCode::kPermissionDenied;
  struct Case {
    AccessFiles files;
    std::string header;
    absl::StatusCode client, control;
  };
  for (const Case& test : std::vector<Case>{
           {{clients, control}, "", unknown, unknown},
           {{clients, control}, client, ok, denied},
           {{clients, control}, operations, ok, ok},
           {{clients, control},
            "Bearer client-token-012345678",
            unknown,
            unknown},
           {{clients, control}, client + "0", unknown, unknown},
           {{clients, control}, "Bearer ", unknown, unknown},
           {{clients, control}, "Bearer", unknown, unknown},
           {{clients, control}, kClientToken, unknown, unknown},
           {{clients, control},
            "Basic client-token-0123456789",
            unknown,
            unknown},
           {{clients, control}, "Bearer # ours", unknown, unknown},
           {{clients, control},
            "Bearer " + std::string(100'000, 'x'),
            unknown,
            unknown},
           {{clients, ""}, client, ok, ok},
           {{clients, ""}, "", unknown, unknown},
           {{"", control}, "", ok, unknown},
           {{"", control}, client, ok, unknown},
           {{"", control}, operations, ok, ok},
           {{"", ""}, "", ok, ok}}) {
    const auto access = Make(test.files);
    SCOPED_TRACE(absl::StrCat(test.files.client_tokens, ", ",
                              test.files.control_tokens, ", ",
                              test.header.substr(0, 40)));
    EXPECT_EQ(Code(*access, Access::kAnybody, test.header), ok);
    EXPECT_EQ(Code(*access, Access::kClient, test.header), test.client);
    EXPECT_EQ(Code(*access, Access::kControl, test.header), test.control);
  }
}

TEST_F(AccessTest, ChangedFilesAreReadAgain) {
  const std::string path = Write("clients", kClientToken);
  const auto access = Make({path, ""});
  const std::string first = absl::StrCat("Bearer ", kClientToken);
  const std::string second = "Bearer another-token-of-some-length";
  Write("clients", "another-token-of-some-length\n");
  EXPECT_TRUE(access->Check(Access::kClient, first).ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(access->Check(Access::kClient, first).ok());
  EXPECT_TRUE(access->Check(Access::kClient, second).ok());
  // A broken or missing file changes nothing.
  for (const char* text : {"", "short\n"}) {
    Write("clients", text);
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(access->Check(Access::kClient, second).ok());
  }
  std::filesystem::remove(path);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(access->Check(Access::kClient, second).ok());
  Write("clients", kClientToken);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(access->Check(Access::kClient, first).ok());
}

TEST_F(AccessTest, EachBadChangeIsLoggedOnce) {
  class Warnings : public google::LogSink {
   public:
    Warnings() { google::AddLogSink(this); }
    ~Warnings() override { google::RemoveLogSink(this); }
    void send(google::LogSeverity severity, const char*, const char*, int,
              const google::LogMessageTime&, const char*, size_t) override {
      count += severity == google::GLOG_WARNING;
    }
    int count = 0;
  } warnings;
  const std::string path = Write("clients", kClientToken);
  const auto access = Make({path, ""});
  const auto look = [&] {
    for (int i = 0; i < 100; ++i) {
      clock_.Advance(absl::Seconds(1));
      (void)access->Check(Access::kClient, "Bearer x");
    }
  };
  for (int round = 1; round <= 3; ++round) {
    Write("clients", "short\n");
    look();
    EXPECT_EQ(warnings.count, 2 * round - 1);
    std::filesystem::remove(path);
    look();
    EXPECT_EQ(warnings.count, 2 * round);
    Write("clients", kClientToken);
    look();
  }
}

// The quota of a client in virtual time, beside a client without a quota.
TEST_F(AccessTest, AClientHasItsQuota) {
  const std::string other = "another-token-of-some-length";
  const std::string path = Write(
      "clients", absl::StrCat(kClientToken, "  name=shop in-flight=2 rate=4\n",
                              other, "\n"));
  const auto access = Make({path, ""});
  const std::string shop = absl::StrCat("Bearer ", kClientToken);
  const auto counts = [&] { return access->Quotas()[0]->counts(); };
  absl::StatusOr<ClientQuota::Hold> first = access->Admit(shop);
  absl::StatusOr<ClientQuota::Hold> second = access->Admit(shop);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status();
  const absl::Status third = access->Admit(shop).status();
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(third.message(), HasSubstr("'shop' has 2 requests in flight"));
  // Questions and other clients are free.
  EXPECT_TRUE(access->Check(Access::kClient, shop).ok());
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(access->Admit(absl::StrCat("Bearer ", other)).ok());
  }
  *second = ClientQuota::Hold();
  EXPECT_EQ(counts().in_flight, 1);
  // The same line read again goes on counting.
  Write("clients", absl::StrCat(kClientToken, " name=shop in-flight=2 rate=4"));
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(access->Admit(shop).ok());
  EXPECT_EQ(counts().in_flight, 1);
  // Four requests a second: three of this second are left.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(access->Admit(shop).ok()) << i;
  EXPECT_THAT(access->Admit(shop).status().message(),
              HasSubstr("'shop' sends more than 4 requests/s"));
  clock_.Advance(absl::Milliseconds(250));
  EXPECT_TRUE(access->Admit(shop).ok());
  EXPECT_FALSE(access->Admit(shop).ok());
  EXPECT_EQ(counts().taken, 7);
  EXPECT_EQ(counts().refused, 3);
  EXPECT_EQ(access->Admit("Bearer nothing").status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(AccessTest, WrongQuotasAreNamed) {
  for (const auto& [fields, reason] :
       std::vector<std::pair<std::string, std::string>>{
           {"in-flight=3", "needs name=NAME"},
           {"name=", "'name='"},
           {"name=a in-flight=0", "'in-flight=0'"},
           {"name=a rate=nan", "'rate=nan'"},
           {"name=a rate", "'rate'"},
           {"name=a burst=3", "'burst=3'"},
           {"name=a\nanother-token-of-some-length name=a", "a is given twice"},
       }) {
    const std::string path =
        Write("clients", absl::StrCat(kClientToken, " ", fields));
    const absl::Status status =
        AccessControl::Create({path, ""}, clock_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << fields;
    EXPECT_THAT(status.message(), HasSubstr(reason));
    EXPECT_THAT(status.message(), testing::Not(HasSubstr(kClientToken)));
  }
}

TEST_F(AccessTest, BadFilesAreNamedAndTheirTokensAreNot) {
  const auto refused = [&](const std::string& path) {
    const absl::Status status =
        AccessControl::Create({path, ""}, clock_).status();
    EXPECT_THAT(status.message(), HasSubstr(path));
    return status;
  };
  EXPECT_EQ(refused(folder_ + "/missing").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(refused(Write("empty", "# nothing\n")).message(),
              HasSubstr("no token"));
  const absl::Status status =
      refused(Write("short", absl::StrCat(kClientToken, "\nguessable\n")));
  EXPECT_THAT(status.message(), HasSubstr("line 2"));
  EXPECT_THAT(status.message(), testing::Not(HasSubstr("guessable")));
}

}  // namespace
}  // namespace refract::cpu_node
