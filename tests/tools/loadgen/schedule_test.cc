#include "tools/loadgen/schedule.h"

#include <fstream>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(QuerySizesTest, MlperfHasTwentyQuantilesOfMean270) {
  const auto sizes = QuerySizes::Parse("mlperf");
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->values().size(), 20u);
  EXPECT_DOUBLE_EQ(sizes->mean(), 270);
  Random random(5, "test");
  std::map<int64_t, int> drawn;
  for (int i = 0; i < 20'000; ++i) ++drawn[sizes->Draw(random)];
  // MLPerf's shares: 100 twice, 200 twelve times, 300 twice, the others once.
  // Five standard deviations of a count of mean 1000 are about 155.
  const std::map<int64_t, int> shares = {
      {100, 2}, {200, 12}, {300, 2}, {400, 1}, {500, 1}, {600, 1}, {700, 1}};
  ASSERT_EQ(drawn.size(), shares.size());
  for (const auto& [size, share] : shares) {
    EXPECT_NEAR(drawn[size], 1000 * share, 350) << size;
  }
}

TEST(QuerySizesTest, ReadsFixedAndFile) {
  EXPECT_THAT(QuerySizes::Parse("fixed:33")->values(), ElementsAre(33));
  const std::string path = testing::TempDir() + "/query_sizes.txt";
  std::ofstream(path) << "# sizes\n10\n\n 20 # twice as many\n";
  const auto sizes = QuerySizes::Parse("file:" + path);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_THAT(sizes->values(), ElementsAre(10, 20));
}

TEST(QuerySizesTest, NamesWhatIsWrong) {
  const std::string path = testing::TempDir() + "/bad_sizes.txt";
  std::ofstream(path) << "10\n0\n";
  const auto bad_line = QuerySizes::Parse("file:" + path);
  EXPECT_EQ(bad_line.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad_line.status().message()),
              HasSubstr("bad_sizes.txt:2"));
  for (const char* spec : {"", "mlperf2", "fixed:", "fixed:0", "fixed:-3",
                           "fixed:9999999", "file:/nowhere/at/all"}) {
    EXPECT_EQ(QuerySizes::Parse(spec).status().code(),
              absl::StatusCode::kInvalidArgument)
        << spec;
  }
}

}  // namespace
}  // namespace refract::loadgen
