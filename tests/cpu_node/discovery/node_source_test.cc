#include "cpu_node/discovery/node_source.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NodeSourceTest, ReadsEveryKind) {
  struct Case {
    const char* text;
    NodeSource::Kind kind;
    const char* name;
    int port;
  };
  for (const Case& expected : {
           Case{"hn1:8100", NodeSource::Kind::kFixed, "hn1:8100", 0},
           Case{"10.0.0.1:8100", NodeSource::Kind::kFixed, "10.0.0.1:8100", 0},
           Case{"[::1]:8100", NodeSource::Kind::kFixed, "[::1]:8100", 0},
           Case{"::1:8100", NodeSource::Kind::kFixed, "::1:8100", 0},
           // Hosts of these names worked before there were prefixes.
           Case{"dns:8100", NodeSource::Kind::kFixed, "dns:8100", 0},
           Case{"srv:8100", NodeSource::Kind::kFixed, "srv:8100", 0},
           Case{"file:8100", NodeSource::Kind::kFixed, "file:8100", 0},
           Case{"dns:hn.ranker.svc:8100", NodeSource::Kind::kAddresses,
                "hn.ranker.svc", 8100},
           Case{"srv:_refract._tcp.hn", NodeSource::Kind::kServices,
                "_refract._tcp.hn", 0},
           Case{"file:/etc/refract/nodes", NodeSource::Kind::kFile,
                "/etc/refract/nodes", 0},
           Case{"file:a:1", NodeSource::Kind::kFile, "a:1", 0},
       }) {
    const auto source = ParseNodeSource(expected.text);
    ASSERT_TRUE(source.ok()) << expected.text << ": " << source.status();
    EXPECT_EQ(source->kind, expected.kind) << expected.text;
    EXPECT_EQ(source->text, expected.text);
    EXPECT_EQ(source->name, expected.name) << expected.text;
    EXPECT_EQ(source->port, expected.port) << expected.text;
  }
}

TEST(NodeSourceTest, SaysWhatIsWrong) {
  struct Case {
    std::string text;
    const char* message;
  };
  for (const Case& bad :
       {Case{"", "'' is not HOST:PORT, dns:NAME:PORT, srv:NAME or file:PATH"},
        Case{"hn1", "'hn1' is not HOST:PORT"},
        Case{"hn1:0", "'hn1:0' is not HOST:PORT"},
        Case{"hn1:65536", "is not HOST:PORT"},
        Case{":8100", "is not HOST:PORT"},
        Case{"dns:hn", "'dns:hn' is not dns:NAME:PORT"},
        Case{"dns:hn:port", "is not dns:NAME:PORT"},
        Case{"dns:h n:8100", "'h n' in 'dns:h n:8100' is no DNS name"},
        Case{"srv:", "'' in 'srv:' is no DNS name"},
        Case{"srv:hn:8100", "'hn:8100' in 'srv:hn:8100' is no DNS name"},
        Case{absl::StrCat("srv:", std::string(254, 'a')), "is no DNS name"},
        Case{"file:", "'file:' names no file"}}) {
    const auto status = ParseNodeSource(bad.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

TEST(NodeFileTest, SkipsCommentsAndMergesRepeatedAddresses) {
  EXPECT_THAT(*ParseNodeFile("# pool A\n\n  hn1:8100 # rack 1\r\nhn2:8100\n"
                             "hn1:8100"),
              ElementsAre("hn1:8100", "hn2:8100"));
}

TEST(NodeFileTest, NamesTheLineThatIsNoAddress) {
  const auto bad = ParseNodeFile("hn1:8100\n# x\nhn2 8100\n").status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.message()),
              HasSubstr("line 3: 'hn2 8100' is not HOST:PORT"));
  EXPECT_FALSE(ParseNodeFile(std::string(1000, 'x')).ok());
  for (const char* empty : {"", "\n\n", "# hn1:8100\n"}) {
    EXPECT_TRUE(absl::IsNotFound(ParseNodeFile(empty).status())) << empty;
  }
}

}  // namespace
}  // namespace refract::cpu_node
