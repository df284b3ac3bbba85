#include "tools/transport_meter/config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::transport_meter {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ConfigTest, ReadsSizes) {
  EXPECT_THAT(*ParseSizes("2M,64,14K,64"), ElementsAre(64, 14336, 2097152));
  for (const char* text : {"", "0", "-1", "64,", "1.5K", "K", "65M", "4G"}) {
    const auto sizes = ParseSizes(text);
    ASSERT_TRUE(absl::IsInvalidArgument(sizes.status())) << text;
    EXPECT_THAT(std::string(sizes.status().message()), HasSubstr("--sizes"));
  }
}

TEST(ConfigTest, NamesTheWordThatItDoesNotKnow) {
  EXPECT_THAT(*ParseOps("stream,pingpong,stream"),
              ElementsAre(Op::kStream, Op::kPingPong));
  EXPECT_EQ(ParseOps("pingpong,pong").status().message(),
            "--ops: no 'pong'; there is pingpong, pull, get, stream, "
            "get-stream, fan-in");
  EXPECT_EQ(ParseLevels("").status().message(),
            "--levels: no ''; there is path, message, channel");
  EXPECT_EQ(ParseModes("spin").status().message(),
            "--modes: no 'spin'; there is busy, event");
  EXPECT_THAT(std::string(ParsePaths("shm,udp").status().message()),
              HasSubstr("--paths: no 'udp'"));
}

TEST(ConfigTest, WantsTwoProcessorsOfThisProcess) {
  const auto automatic = ParseCpus("");
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  ASSERT_EQ(automatic->size(), 2u);
  const std::string first = std::to_string(automatic->front());
  EXPECT_THAT(*ParseCpus(first + "," + first),
              ElementsAre(automatic->front(), automatic->front()));
  for (const std::string& text : {first, first + "," + first + "," + first,
                                  first + ",99999", std::string("a,b")}) {
    EXPECT_THAT(std::string(ParseCpus(text).status().message()),
                HasSubstr("--cpus"))
        << text;
  }
}

}  // namespace
}  // namespace refract::transport_meter
