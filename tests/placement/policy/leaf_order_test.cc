#include "placement/policy/leaf_order.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "placement/cluster/random.h"
#include "placement/policy/placer.h"
#include "tests/placement/clusters.h"

namespace refract::placement {
namespace {

TEST(Entropy, OfKnownDistributions) {
  EXPECT_EQ(Entropy({}), 0);
  EXPECT_EQ(Entropy({0, 7}), 0);
  EXPECT_NEAR(Entropy({3, 3, 0, 3, 3}), std::log(4), 1e-12);
  EXPECT_NEAR(Entropy({1, 3}), 0.25 * std::log(4) + 0.75 * std::log(4.0 / 3),
              1e-12);
}

// Random leaves that hold some instances and have room for others, against
// every division of the batch over them.
TEST(LeafOrder, SpreadsLessThanAnyOtherDivision) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ClusterBuilder builder;
    constexpr int kLeaves = 4;
    std::vector<int> rooms;
    for (int leaf = 0; leaf < kLeaves; ++leaf) {
      if (leaf > 0) builder.AddLeaf(0);
      rooms.push_back(static_cast<int>(random.Below(5)));
      // A node of 4 cores for each instance, and one that is too small.
      for (int i = 0; i < rooms[leaf]; ++i) builder.Add(4, 0, leaf);
      builder.Add(2, 0, leaf);
    }
    const State state(builder.cluster(), 1);
    const int count = 1 + static_cast<int>(random.Below(8));
    const std::vector<Instance> batch(count, Of(Asks(4, 0), 0, Role::kCn));
    std::vector<int> leaves(kLeaves);
    std::iota(leaves.begin(), leaves.end(), 0);
    std::vector<int> counts(kLeaves, 0);
    int left = count;
    for (const int leaf : LeafOrder(state, leaves, batch)) {
      ASSERT_EQ(counts[leaf], 0) << "leaf " << leaf << " is there twice";
      ASSERT_GT(left, 0);
      counts[leaf] = std::min(rooms[leaf], left);
      EXPECT_GT(counts[leaf], 0);
      left -= counts[leaf];
    }
    const int room = std::accumulate(rooms.begin(), rooms.end(), 0);
    EXPECT_EQ(left, std::max(0, count - room));
    double least = std::numeric_limits<double>::infinity();
    std::vector<int> tried(kLeaves, 0);
    const std::function<void(int, int)> divide = [&](int leaf, int rest) {
      if (leaf == kLeaves) {
        if (rest == 0) least = std::min(least, Entropy(tried));
        return;
      }
      for (int n = 0; n <= std::min(rooms[leaf], rest); ++n) {
        tried[leaf] = n;
        divide(leaf + 1, rest - n);
      }
      tried[leaf] = 0;
    };
    divide(0, count - left);
    EXPECT_NEAR(Entropy(counts), least, 1e-9);
  }
}

// A leaf that has the app's instances comes before an emptier one.
TEST(LeafOrder, GoesOnWhereTheAppIs) {
  ClusterBuilder builder;
  const int other = builder.AddLeaf(0);
  for (int i = 0; i < 4; ++i) builder.Add(8, 0);
  for (int i = 0; i < 6; ++i) builder.Add(8, 0, other);
  State state(builder.cluster(), 1);
  const Instance instance = Of(Asks(8, 0), 0, Role::kCn);
  for (int node = 0; node < 2; ++node) {
    Devices devices;
    TakeCores(builder.cluster().nodes[node], state.free(node), 8000, 0,
              devices);
    state.Add(instance, node, devices);
  }
  EXPECT_EQ(LeafOrder(state, {0, other}, std::vector(2, instance)),
            (std::vector<int>{0}));
  // Six others fit under one leaf, but beside two there is room for two.
  EXPECT_EQ(LeafOrder(state, {0, other}, std::vector(6, instance)),
            (std::vector<int>{other}));
}

// The placer fills the leaf that takes the whole batch, although a node of
// another leaf fits a little better.
TEST(LeafOrder, IsWhatABatchFills) {
  ClusterBuilder builder;
  const int other = builder.AddLeaf(0);
  builder.Add(8, 0);
  for (int i = 0; i < 3; ++i) builder.Add(9, 0, other);
  State state(builder.cluster(), 1);
  const FragmentMeter meter({{{Asks(8, 0), 1.0}}});
  Placer placer(
      state, &meter, {},
      {.policy = Policy::kCombined, .pack_leaves = true, .leaf_slack = 0.02});
  const std::vector<Instance> batch(3, Of(Asks(8, 0), 0, Role::kCn));
  EXPECT_EQ(placer.Decide(batch[0]).node, 0);
  placer.BeginBatch(batch);
  for (const Instance& instance : batch) {
    const Decision decision = placer.Decide(instance);
    ASSERT_GE(decision.node, 0);
    EXPECT_EQ(builder.cluster().nodes[decision.node].leaf, other);
    state.Add(instance, decision.node, decision.choice.devices);
  }
}

}  // namespace
}  // namespace refract::placement
