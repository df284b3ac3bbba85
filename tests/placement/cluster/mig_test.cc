#include "placement/cluster/mig.h"

#include <vector>

#include "gtest/gtest.h"

namespace refract::placement {
namespace {

// How many slices of a profile fit into an empty GPU, chosen one by one.
int Fill(MigProfile profile) {
  uint8_t used = 0;
  int count = 0;
  while (const uint8_t slices = ChooseMigSlices(profile, used)) {
    EXPECT_EQ(slices & used, 0);
    used |= slices;
    ++count;
  }
  return count;
}

// The number of instances that NVIDIA's table gives for each profile.
TEST(Mig, FillsAGpuWithAsManySlicesAsNvidiaSays) {
  EXPECT_EQ(Fill(MigProfile::k1g), 7);
  EXPECT_EQ(Fill(MigProfile::k2g), 3);
  EXPECT_EQ(Fill(MigProfile::k3g), 2);
  EXPECT_EQ(Fill(MigProfile::k4g), 1);
  EXPECT_EQ(Fill(MigProfile::k7g), 1);
}

// A 1g slice in the first half would keep a 4g slice out.
TEST(Mig, LeavesRoomForLargeProfiles) {
  const uint8_t used = ChooseMigSlices(MigProfile::k1g, 0);
  EXPECT_NE(ChooseMigSlices(MigProfile::k4g, used), 0);
  // 3g + 2g + 1g in the worst order.
  uint8_t all = 0;
  for (const MigProfile profile :
       {MigProfile::k1g, MigProfile::k2g, MigProfile::k3g}) {
    const uint8_t slices = ChooseMigSlices(profile, all);
    ASSERT_NE(slices, 0) << Name(profile) << " after " << int{all};
    all |= slices;
  }
}

TEST(Mig, TakesNamesOfNvidiaProfiles) {
  EXPECT_EQ(MigProfileFromName("2g.20gb"), MigProfile::k2g);
  EXPECT_EQ(MigProfileFromName("7g"), MigProfile::k7g);
  EXPECT_EQ(MigProfileFromName("5g"), std::nullopt);
  EXPECT_EQ(MigGpuMilli(MigProfile::k2g), 250);
}

}  // namespace
}  // namespace refract::placement
