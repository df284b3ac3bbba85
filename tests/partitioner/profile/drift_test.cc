#include "partitioner/profile/drift.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Left(const Drift& drift) {
  std::vector<std::string> names;
  for (const Compared& left : drift.left) names.push_back(left.name);
  return names;
}

// Measured ÷ predicted of one operator that is all there is.
TEST(DriftTest, TheBoundsAreInside) {
  const struct {
    double ratio;
    bool left;
  } cases[] = {{0.5, true},   {0.79, true}, {0.8, false}, {1.0, false},
               {1.25, false}, {1.26, true}, {3.0, true}};
  for (const auto& c : cases) {
    const Drift drift = FindDrift({{"op", 1e-3, c.ratio * 1e-3}});
    EXPECT_EQ(!drift.left.empty(), c.left) << c.ratio;
    EXPECT_EQ(drift.reprofile, c.left) << c.ratio;
    EXPECT_NEAR(drift.ratio, c.ratio, 1e-12);
  }
}

TEST(DriftTest, ListsTheLargestDifferencesFirst) {
  const Drift drift = FindDrift({{"steady", 50e-6, 55e-6},
                                 {"slower", 10e-6, 14e-6},
                                 {"faster", 30e-6, 20e-6},
                                 {"noise", 20e-9, 90e-9}});
  EXPECT_THAT(Left(drift), ElementsAre("faster", "slower"));
  // (55 + 14 + 20 + 0.09) ÷ (50 + 10 + 30 + 0.02).
  EXPECT_NEAR(drift.ratio, 89.09 / 90.02, 1e-12);
  // (30 + 14) ÷ (55 + 14 + 30 + 0.09).
  EXPECT_NEAR(drift.share, 44 / 99.09, 1e-12);
  EXPECT_TRUE(drift.reprofile);  // nearly half of the time, though it evens out
}

TEST(DriftTest, FewLittleOperatorsAreNoReason) {
  const Drift drift =
      FindDrift({{"large", 100e-6, 101e-6}, {"little", 2e-6, 5e-6}});
  EXPECT_THAT(Left(drift), ElementsAre("little"));
  EXPECT_NEAR(drift.share, 5.0 / 106, 1e-12);
  EXPECT_FALSE(drift.reprofile);
}

TEST(DriftTest, ManySmallDriftsThatAllHoldAddUpToNone) {
  const Drift drift = FindDrift({{"a", 10e-6, 12e-6}, {"b", 10e-6, 12.4e-6}});
  EXPECT_THAT(drift.left, IsEmpty());
  EXPECT_FALSE(drift.reprofile);
}

TEST(DriftTest, WhatWasNotPredictedIsOutside) {
  const Drift drift = FindDrift({{"new", 0, 10e-6}});
  EXPECT_THAT(Left(drift), ElementsAre("new"));
  EXPECT_TRUE(std::isinf(drift.ratio));
  EXPECT_TRUE(drift.reprofile);
  const Drift gone = FindDrift({{"gone", 10e-6, 0}});
  EXPECT_TRUE(gone.reprofile);
  EXPECT_EQ(gone.ratio, 0);
}

TEST(DriftTest, NothingHolds) {
  for (const Drift& drift :
       {FindDrift({}), FindDrift({{"a", 0, 0}}), FindDrift({{"a", 0, 1e-8}})}) {
    EXPECT_THAT(drift.left, IsEmpty());
    EXPECT_EQ(drift.ratio, 1);
    EXPECT_FALSE(drift.reprofile);
  }
  // A coarser clock.
  EXPECT_FALSE(FindDrift({{"a", 1e-6, 5e-6}}, 1e-5).reprofile);
}

}  // namespace
}  // namespace refract::partitioner
