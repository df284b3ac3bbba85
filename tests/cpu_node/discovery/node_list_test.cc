// NodeList: a resolver that the test answers for, and time by hand.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cpu_node/discovery/node_watch.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;
using Records = std::vector<Resolver::Service>;

class FakeResolver : public Resolver {
 public:
  absl::StatusOr<Strings> Addresses(const std::string& name,
                                    std::stop_token) override {
    ++asked;
    const auto found = addresses.find(name);
    if (found == addresses.end()) return absl::NotFoundError("no such name");
    return found->second;
  }
  absl::StatusOr<Records> Services(const std::string& name,
                                   std::stop_token) override {
    ++asked;
    const auto found = services.find(name);
    if (found == services.end()) return absl::NotFoundError("no such name");
    return found->second;
  }
  std::map<std::string, absl::StatusOr<Strings>> addresses;
  std::map<std::string, absl::StatusOr<Records>> services;
  int asked = 0;
};

// Lines of the log while it lives.
class CapturedLog : public google::LogSink {
 public:
  CapturedLog() { google::AddLogSink(this); }
  ~CapturedLog() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int,
            const google::LogMessageTime&, const char* text,
            size_t length) override {
    lines.emplace_back(text, length);
  }
  std::vector<std::string> lines;
};

class NodeListTest : public ::testing::Test {
 protected:
  NodeList Make(const std::vector<std::string>& entries) {
    std::vector<NodeSource> sources;
    for (const std::string& entry : entries) {
      sources.push_back(*ParseNodeSource(entry));
    }
    return NodeList(std::move(sources), absl::Seconds(5), &resolver_);
  }
  // Looks after `seconds`.
  std::optional<Strings> After(NodeList& list, double seconds) {
    now_ += absl::Seconds(seconds);
    return list.Look(now_);
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  FakeResolver resolver_;
};

TEST_F(NodeListTest, FollowsTheAddressesOfAName) {
  resolver_.addresses["hn"] = Strings{"10.0.0.2", "10.0.0.1"};
  NodeList list = Make({"dns:hn:8100"});
  EXPECT_EQ(list.next_due(), absl::InfinitePast());
  EXPECT_THAT(*After(list, 0), ElementsAre("10.0.0.2:8100", "10.0.0.1:8100"));
  EXPECT_EQ(list.next_due(), now_ + absl::Seconds(5));
  // Asked no sooner than that; another order is no change.
  EXPECT_EQ(After(list, 4.9), std::nullopt);
  EXPECT_EQ(resolver_.asked, 1);
  resolver_.addresses["hn"] = Strings{"10.0.0.1", "10.0.0.2"};
  EXPECT_EQ(After(list, 0.1), std::nullopt);
  EXPECT_EQ(resolver_.asked, 2);
  resolver_.addresses["hn"] = Strings{"10.0.0.2", "fd00::7"};
  EXPECT_THAT(*After(list, 5), ElementsAre("10.0.0.2:8100", "[fd00::7]:8100"));
}

TEST_F(NodeListTest, TakesTheFirstPriorityOfServiceRecords) {
  resolver_.services["_refract._tcp.hn"] = Records{{"spare.hn", 8100, 20},
                                                   {"hn-0.hn.", 8101, 10},
                                                   {"hn-1.hn", 8102, 10},
                                                   {"none", 0, 1},
                                                   {".", 8100, 0}};
  NodeList list = Make({"srv:_refract._tcp.hn"});
  EXPECT_THAT(*After(list, 0), ElementsAre("hn-0.hn:8101", "hn-1.hn:8102"));
  resolver_.services["_refract._tcp.hn"] = Records{{"spare.hn", 8100, 20}};
  EXPECT_THAT(*After(list, 5), ElementsAre("spare.hn:8100"));
  // "." alone: in RFC 2782 it means that the service does not exist.
  resolver_.services["_refract._tcp.hn"] = Records{{".", 0, 0}};
  EXPECT_EQ(After(list, 5), std::nullopt);
  EXPECT_FALSE(list.sources()[0].status.ok());
}

TEST_F(NodeListTest, MergesSources) {
  resolver_.addresses["hn"] = Strings{"10.0.0.1"};
  NodeList list = Make({"x:1", "dns:hn:8100", "10.0.0.1:8100"});
  EXPECT_THAT(*After(list, 0), ElementsAre("x:1", "10.0.0.1:8100"));
  // A node that one source drops may still be listed by another source.
  resolver_.addresses["hn"] = Strings{"10.0.0.9"};
  EXPECT_THAT(*After(list, 5),
              ElementsAre("x:1", "10.0.0.9:8100", "10.0.0.1:8100"));
}

TEST_F(NodeListTest, ABadAnswerKeepsTheLastGoodOneAndIsLoggedOnce) {
  NodeList list = Make({"dns:hn:8100"});
  CapturedLog log;
  // Before there ever was an answer: no nodes, which is what was known.
  EXPECT_EQ(After(list, 0), std::nullopt);
  EXPECT_EQ(After(list, 5), std::nullopt);
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_THAT(log.lines[0],
              HasSubstr("dns:hn:8100: no such name; the source is asked again"));
  resolver_.addresses["hn"] = Strings{"10.0.0.1", "10.0.0.2"};
  EXPECT_THAT(*After(list, 5), ElementsAre("10.0.0.1:8100", "10.0.0.2:8100"));
  ASSERT_EQ(log.lines.size(), 2u);
  EXPECT_THAT(log.lines[1], HasSubstr("answers again, with 2 node(s)"));
  const std::vector<absl::StatusOr<Strings>> bad = {
      absl::NotFoundError("no such name"),
      absl::DeadlineExceededError("no answer"), Strings{},
      absl::UnavailableError("refused")};
  for (const auto& answer : bad) {
    resolver_.addresses["hn"] = answer;
    EXPECT_EQ(After(list, 5), std::nullopt);
    EXPECT_THAT(list.sources()[0].nodes,
                ElementsAre("10.0.0.1:8100", "10.0.0.2:8100"));
  }
  EXPECT_EQ(list.sources()[0].failures, 2 + bad.size());
  ASSERT_EQ(log.lines.size(), 3u);
  EXPECT_THAT(log.lines[2],
              HasSubstr("no such name; the 2 nodes of its last answer stay in use"));
  resolver_.addresses["hn"] = Strings{"10.0.0.2"};
  EXPECT_THAT(*After(list, 5), ElementsAre("10.0.0.2:8100"));
}

class NodeFileListTest : public NodeListTest {
 protected:
  NodeFileListTest()
      : path_(std::filesystem::temp_directory_path() /
              absl::StrCat("nodes_", getpid())) {}
  ~NodeFileListTest() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  const std::filesystem::path path_;
};

TEST_F(NodeFileListTest, FollowsAFile) {
  NodeList list = Make({absl::StrCat("file:", path_.string())});
  EXPECT_EQ(After(list, 0), std::nullopt);  // it is not there yet
  Write("x:1\n");
  EXPECT_EQ(list.next_due(), now_ + absl::Seconds(1));
  EXPECT_EQ(After(list, 0.5), std::nullopt);
  EXPECT_THAT(*After(list, 0.5), ElementsAre("x:1"));
  Write("x:1\ny:1\n");
  EXPECT_THAT(*After(list, 1), ElementsAre("x:1", "y:1"));
  CapturedLog log;
  // Lines of garbage, no line, no file: nothing changes.
  for (const char* text : {"x:1\nbroken\n", "", "# none\n", "\x01\xff"}) {
    Write(text);
    EXPECT_EQ(After(list, 1), std::nullopt) << text;
  }
  std::filesystem::remove(path_);
  EXPECT_EQ(After(list, 1), std::nullopt);
  EXPECT_THAT(list.sources()[0].nodes, ElementsAre("x:1", "y:1"));
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_THAT(log.lines[0], HasSubstr("line 2: 'broken' is not HOST:PORT"));
  Write("y:1\n");
  EXPECT_THAT(*After(list, 1), ElementsAre("y:1"));
}

}  // namespace
}  // namespace refract::cpu_node
