#include "placement/policy/score.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/placement/clusters.h"

namespace refract::placement {
namespace {

constexpr std::array<int32_t, kGpuKinds> kIdle{};

Choice ScoreOf(Policy policy, const Node& node, const NodeFree& free,
               const Demand& demand,
               const std::array<int32_t, kGpuKinds>& kinds = kIdle) {
  return ScoreNode(
      policy, {.node = node, .free = free, .kinds = kinds, .demand = demand});
}

// 128 cores, 8 GPUs, 4 NICs on 4 PCIe switches of 2 sockets.
class ScoreTest : public testing::Test {
 protected:
  ScoreTest() : node_(builder_.Add(128, 8)), free_(AllFree(node_)) {}

  ClusterBuilder builder_;
  Node node_;
  NodeFree free_;
};

TEST_F(ScoreTest, BestFitIsTheSumOfWhatIsLeft) {
  free_.cpu_milli = 64000;
  free_.gpu_milli = {0, 0, 0, 0, 1000, 1000, 1000, 1000};
  // ½ · (64 − 32) ÷ 128 + ½ · (4 − 2) ÷ 8
  EXPECT_DOUBLE_EQ(
      ScoreOf(Policy::kBestFit, node_, free_, Asks(32, 2)).score.primary,
      -0.25);
}

TEST_F(ScoreTest, DotProdIsRoundedDownToPercent) {
  // 100 · (1 − (1 · ½ + 1 · ¼) ÷ 2) = 62.5
  EXPECT_EQ(ScoreOf(Policy::kDotProd, node_, free_, Asks(64, 2)).score.primary,
            62);
}

TEST_F(ScoreTest, PackingPrefersUsedGpusThenUsedNodes) {
  const Demand half = Asks(4, 1, 500);
  const auto score = [&] {
    return ScoreOf(Policy::kPacking, node_, free_, half).score.primary;
  };
  EXPECT_EQ(score(), 25);  // idle: 33 − 8
  free_.gpu_milli[3] = 400;
  EXPECT_EQ(score(), 49);  // a free GPU of a used node: 50 − 1
  free_.gpu_milli[5] = 700;
  EXPECT_EQ(score(), 93);  // 100 − 70 % ÷ 10
  EXPECT_EQ(ScoreOf(Policy::kPacking, node_, free_, half).devices.gpus, 1 << 5);
  EXPECT_EQ(ScoreOf(Policy::kPacking, node_, free_, Asks(4, 0)).score.primary,
            0);
}

TEST_F(ScoreTest, ClusteringPrefersItsOwnKind) {
  const Demand half = Asks(4, 1, 500);
  free_.gpu_milli[0] = 0;
  free_.gpu_milli[1] = 0;
  // A quarter of the GPUs is used: 6 of 25 points, rounded down.
  const auto score = [&](const std::array<int32_t, kGpuKinds>& kinds) {
    return ScoreOf(Policy::kClustering, node_, free_, half, kinds)
        .score.primary;
  };
  EXPECT_EQ(score({3, 0, 0, 0, 0, 0}), 31);  // CPU-only instances do not count
  EXPECT_EQ(score({0, 2, 0, 0, 0, 0}), 81);
  EXPECT_EQ(score({0, 2, 1, 0, 0, 0}), 56);
  EXPECT_EQ(score({0, 0, 1, 0, 0, 0}), 6);
}

TEST_F(ScoreTest, BaselinesTakeTheTightestGpu) {
  free_.gpu_milli = {1000, 600, 550, 500, 1000, 1000, 1000, 1000};
  for (const Policy policy : {Policy::kRandom, Policy::kBestFit,
                              Policy::kDotProd, Policy::kClustering}) {
    EXPECT_EQ(ScoreOf(policy, node_, free_, Asks(4, 1, 550)).devices.gpus,
              1 << 2)
        << Name(policy);
  }
  EXPECT_EQ(ScoreOf(Policy::kBestFit, node_, free_, Asks(4, 3)).devices.gpus,
            0b110001);
}

TEST(FgdBucket, RoundsTheSigmoidDown) {
  EXPECT_EQ(FgdBucket(1000, 1000), 50);
  // The last digits of a sum do not change a bucket.
  EXPECT_EQ(FgdBucket(1000, 1000 + 1e-9), 50);
  EXPECT_EQ(FgdBucket(1000, 0), 73);  // sigmoid(1) = 0.731
  EXPECT_EQ(FgdBucket(0, 1000), 26);
  EXPECT_EQ(FgdBucket(0, 8000), 0);
}

// A task of half a GPU: GPU 1 (free half) leaves no part, GPU 0 a half that the
// other shape of the workload, a whole GPU, cannot use.
TEST_F(ScoreTest, FgdTakesTheGpuThatLeavesTheLeastFragment) {
  const FragmentMeter meter({{{Asks(1, 1), 0.5}, {Asks(1, 1, 500), 0.5}}});
  free_.gpu_milli = {1000, 500, 0, 0, 0, 0, 0, 0};
  const Demand half = Asks(1, 1, 500);
  const Choice choice = ScoreNode(Policy::kFgd, {.node = node_,
                                                 .free = free_,
                                                 .kinds = kIdle,
                                                 .demand = half,
                                                 .meter = &meter,
                                                 .gpu_fragment = 250});
  EXPECT_EQ(choice.devices.gpus, 1 << 1);
  // Before: the half GPU is a fragment for half of the workload; after:
  // nothing.
  EXPECT_EQ(choice.score.primary, FgdBucket(250, 0));
}

TEST_F(ScoreTest, TopologyScoreIsThatOfTheFarthestGpu) {
  Devices devices;
  devices.nic = 0;  // switch 0, socket 0
  devices.gpus = 0b1;
  EXPECT_EQ(TopologyScore(node_, devices), kSameSwitch);
  devices.gpus = 0b101;
  EXPECT_EQ(TopologyScore(node_, devices), kSameSocket);
  devices.gpus = 0b10000001;
  EXPECT_EQ(TopologyScore(node_, devices), kOtherSocket);
  devices.nic = -1;
  EXPECT_EQ(TopologyScore(node_, devices), 1);
  devices.nic = 0;
  devices.gpus = 0;
  devices.socket_cpu_milli = {1000, 0};
  EXPECT_EQ(TopologyScore(node_, devices), kCoresAtNic);
  devices.socket_cpu_milli = {1000, 1};
  EXPECT_EQ(TopologyScore(node_, devices), kCoresElsewhere);
}

class CombinedTest : public ScoreTest {
 protected:
  Choice Combined(const Demand& demand) {
    return ScoreNode(Policy::kCombined,
                     {.node = node_,
                      .free = free_,
                      .kinds = kIdle,
                      .demand = demand,
                      .meter = &meter_,
                      .gpu_fragment = meter_.Measure(node_, free_).gpu_milli});
  }
  FragmentMeter meter_{{{{Asks(8, 1), 1.0}}}};
};

TEST_F(CombinedTest, PairsGpuAndNicOfOneSwitch) {
  Demand demand = Asks(8, 1);
  demand.nic_percent = 25;
  free_.gpu_milli = {0, 0, 0, 0, 0, 1000, 0, 1000};
  free_.nic_percent = {100, 100, 20, 50};
  const Choice choice = Combined(demand);
  EXPECT_EQ(choice.devices.nic, 3);
  EXPECT_EQ(choice.devices.gpus, 1 << 7);
  EXPECT_EQ(choice.score.topology, kSameSwitch);
  // The cores come from the NIC's socket.
  EXPECT_EQ(choice.devices.socket_cpu_milli[1], 8000);
}

TEST_F(CombinedTest, TakesTheFullestOfEquallyNearNics) {
  Demand demand = Asks(8, 1);
  demand.nic_percent = 25;
  free_.nic_percent = {100, 50, 75, 20};
  EXPECT_EQ(Combined(demand).devices.nic, 1);
}

TEST_F(CombinedTest, ScoresTwoGpusByTheFarther) {
  Demand demand = Asks(8, 2);
  demand.nic_percent = 50;
  free_.gpu_milli = {1000, 0, 1000, 0, 0, 0, 1000, 1000};
  const Choice choice = Combined(demand);
  EXPECT_EQ(choice.devices.gpus, 0b11000000);
  EXPECT_EQ(choice.devices.nic, 3);
  demand.gpus = 3;
  EXPECT_EQ(Combined(demand).score.topology, kOtherSocket);
}

TEST_F(CombinedTest, GivesMigSlices) {
  Demand demand = AsksMig(4, MigProfile::k2g);
  demand.nic_percent = 8;
  const Choice choice = Combined(demand);
  EXPECT_EQ(__builtin_popcount(choice.devices.mig_slices), 2);
  EXPECT_EQ(choice.score.topology, kSameSwitch);
}

TEST_F(CombinedTest, PrefersTheSocketOfTheNicForCores) {
  Demand demand = Asks(48, 0);
  demand.nic_percent = 100;
  free_.socket_cpu_milli = {10000, 64000};
  free_.cpu_milli = 74000;
  const Choice choice = Combined(demand);
  EXPECT_EQ(choice.devices.nic, 2);  // the first of socket 1
  EXPECT_EQ(choice.devices.socket_cpu_milli[1], 48000);
}

TEST(Policies, HaveNames) {
  for (int i = 0; i < kPolicies; ++i) {
    const auto policy = static_cast<Policy>(i);
    EXPECT_EQ(PolicyFromName(Name(policy)), policy);
  }
  EXPECT_EQ(PolicyFromName("worst"), std::nullopt);
}

}  // namespace
}  // namespace refract::placement
