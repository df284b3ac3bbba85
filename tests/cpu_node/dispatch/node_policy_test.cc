#include "cpu_node/dispatch/node_policy.h"

#include <optional>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::cpu_node {
namespace {

using transport::PeerState;

constexpr std::optional<size_t> kNone = std::nullopt;

NodeSnapshot Snapshot(int latency_ms, int in_flight) {
  return {.serves = true,
          .health = PeerState::kReady,
          .latency = absl::Milliseconds(latency_ms),
          .in_flight = in_flight};
}
NodeSnapshot InState(PeerState health, int latency_ms) {
  NodeSnapshot node = Snapshot(latency_ms, 0);
  node.health = health;
  return node;
}
NodeSnapshot Ejected(int latency_ms) {
  return InState(PeerState::kEjected, latency_ms);
}
NodeSnapshot Suspect(int latency_ms) {
  return InState(PeerState::kSuspect, latency_ms);
}
NodeSnapshot Full(NodeSnapshot node) {
  node.full = true;
  return node;
}
NodeSnapshot At(int tier, NodeSnapshot node) {
  node.tier = tier;
  return node;
}
NodeSnapshot Down() { return {}; }
// Connected, but does not serve the model.
NodeSnapshot Refusing() {
  NodeSnapshot node = Snapshot(1, 0);
  node.serves = false;
  return node;
}

TEST(ChooseNodeTest, FollowsTheTable) {
  struct Case {
    const char* what;
    std::vector<NodeSnapshot> nodes;
    std::optional<size_t> avoid;
    uint64_t draw_a, draw_b;
    std::optional<size_t> choice;
  };
  const Case cases[] = {
      {"no node at all", {}, kNone, 0, 0, kNone},
      {"none usable", {Down(), Down()}, kNone, 3, 5, kNone},
      {"the only one", {Down(), Snapshot(5, 9)}, kNone, 7, 7, 1},
      // Draws 0 and 0: candidates 0 and 1.
      {"lower latency", {Snapshot(5, 0), Snapshot(4, 0)}, kNone, 0, 0, 1},
      {"fewer in flight", {Snapshot(5, 1), Snapshot(5, 0)}, kNone, 0, 0, 1},
      {"product decides: 4×2 > 5×1",
       {Snapshot(4, 1), Snapshot(5, 0)},
       kNone,
       0,
       0,
       1},
      {"product decides: 2×2 < 5×1",
       {Snapshot(2, 1), Snapshot(5, 0)},
       kNone,
       0,
       0,
       0},
      {"tie: the first drawn",
       {Snapshot(3, 1), Snapshot(3, 1)},
       kNone,
       1,
       0,
       1},
      {"unmeasured first", {Snapshot(1, 2), Snapshot(0, 2)}, kNone, 0, 0, 1},
      {"unmeasured is not flooded",
       {Snapshot(9, 1), Snapshot(0, 2)},
       kNone,
       0,
       0,
       0},
      {"both unmeasured", {Snapshot(0, 2), Snapshot(0, 1)}, kNone, 0, 0, 1},
      // Three candidates, draws 1 and 1: candidate 1, then 2 of the others.
      {"only the two drawn count",
       {Snapshot(1, 0), Snapshot(9, 0), Snapshot(8, 0)},
       kNone,
       1,
       1,
       2},
      {"draws wrap around", {Snapshot(1, 0), Snapshot(9, 0)}, kNone, 4, 8, 0},
      {"ejected is skipped", {Ejected(1), Snapshot(9, 9)}, kNone, 0, 0, 1},
      {"all ejected: one of them all the same",
       {Ejected(2), Ejected(1)},
       kNone,
       0,
       0,
       1},
      {"suspect is skipped", {Suspect(1), Snapshot(9, 9)}, kNone, 0, 0, 1},
      {"suspect is skipped when it comes last",
       {Snapshot(9, 9), Suspect(1)},
       kNone,
       1,
       0,
       0},
      {"suspect before ejected", {Ejected(1), Suspect(9)}, kNone, 0, 0, 1},
      {"serves another model only",
       {Refusing(), Snapshot(9, 9)},
       kNone,
       0,
       0,
       1},
      {"is stopping, not here yet, or down",
       {InState(PeerState::kDraining, 1), InState(PeerState::kConnecting, 1),
        InState(PeerState::kDown, 1)},
       kNone,
       0,
       0,
       kNone},
      {"the failed one is stopping",
       {InState(PeerState::kDraining, 1)},
       0,
       0,
       0,
       kNone},
      {"all suspect: the better of two",
       {Suspect(2), Suspect(1)},
       kNone,
       0,
       0,
       1},
      {"a suspect other before the failed one",
       {Snapshot(1, 0), Suspect(9)},
       0,
       0,
       0,
       1},
      {"avoids the failed one", {Snapshot(1, 0), Snapshot(9, 9)}, 0, 0, 0, 1},
      {"an ejected other before the failed one",
       {Snapshot(1, 0), Ejected(9)},
       0,
       0,
       0,
       1},
      {"the failed one if it is all there is",
       {Snapshot(1, 0), Down()},
       0,
       0,
       0,
       0},
      {"the failed one is gone", {Down(), Down()}, 0, 0, 0, kNone},
      {"a full one is skipped",
       {Full(Snapshot(1, 0)), Snapshot(9, 9)},
       kNone,
       0,
       0,
       1},
      {"full ones keep requests from suspect and ejected ones",
       {Suspect(1), Full(Snapshot(9, 9)), Ejected(1)},
       kNone,
       0,
       0,
       kNone},
      {"a full suspect one keeps them from ejected ones",
       {Full(Suspect(1)), Ejected(1)},
       kNone,
       0,
       0,
       kNone},
      {"a full ejected one keeps them from none",
       {Full(Ejected(1)), Suspect(1)},
       kNone,
       0,
       0,
       1},
      {"the failed one rather than a suspect one beside full ones",
       {Snapshot(1, 0), Full(Snapshot(9, 9)), Suspect(1)},
       0,
       0,
       0,
       0},
      {"not the failed one if it is ejected and others are full",
       {Ejected(1), Full(Snapshot(9, 9))},
       0,
       0,
       0,
       kNone},
      {"the failed one was full: ready others only",
       {Full(Snapshot(1, 0)), Suspect(1), Snapshot(9, 9)},
       0,
       0,
       0,
       2},
      {"the failed one was full: not a suspect one",
       {Full(Snapshot(1, 0)), Suspect(1)},
       0,
       0,
       0,
       kNone},
      {"the failed one was full, and is the only one",
       {Full(Snapshot(1, 0))},
       0,
       0,
       0,
       kNone},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ChooseNode(c.nodes, c.avoid, c.draw_a, c.draw_b), c.choice)
        << c.what;
  }
}

TEST(ChooseNodeTest, PrefersNearTiersUntilTheLoadRatio) {
  struct Case {
    const char* what;
    std::vector<NodeSnapshot> nodes;
    double ratio;
    std::optional<size_t> avoid;
    std::optional<size_t> choice;
  };
  // Draws 0 and 0: candidates 0 and 1 of every tier.
  const Case cases[] = {
      {"near, though slower",
       {At(4, Snapshot(5, 0)), At(1, Snapshot(9, 0))},
       2,
       kNone,
       1},
      {"ratio reached, not passed: 5×2 = 2×5×1",
       {At(0, Snapshot(5, 1)), At(2, Snapshot(5, 0))},
       2,
       kNone,
       0},
      {"ratio passed: 5×3 > 2×5×1",
       {At(0, Snapshot(5, 2)), At(2, Snapshot(5, 0))},
       2,
       kNone,
       1},
      {"the ratio is the caller's: 5×3 < 4×5×1",
       {At(0, Snapshot(5, 2)), At(2, Snapshot(5, 0))},
       4,
       kNone,
       0},
      {"the better of two near ones decides",
       {At(0, Snapshot(5, 9)), At(0, Snapshot(5, 1)), At(2, Snapshot(5, 0))},
       2,
       kNone,
       1},
      {"the better of two far ones takes over",
       {At(0, Snapshot(5, 9)), At(3, Snapshot(5, 2)), At(3, Snapshot(5, 1))},
       2,
       kNone,
       2},
      {"of two overloaded tiers the third takes over",
       {At(0, Snapshot(5, 9)), At(1, Snapshot(5, 8)), At(2, Snapshot(5, 0))},
       2,
       kNone,
       2},
      {"the second tier before the third",
       {At(0, Snapshot(5, 9)), At(1, Snapshot(5, 1)), At(2, Snapshot(5, 0))},
       2,
       kNone,
       1},
      {"an unmeasured far one: by requests in flight, 3 > 2×1",
       {At(0, Snapshot(5, 2)), At(1, Snapshot(0, 0))},
       2,
       kNone,
       1},
      {"an unmeasured far one is not asked without need",
       {At(0, Snapshot(5, 1)), At(1, Snapshot(0, 0))},
       2,
       kNone,
       0},
      {"an unmeasured near one: by requests in flight",
       {At(0, Snapshot(0, 3)), At(1, Snapshot(9, 0))},
       2,
       kNone,
       1},
      {"far and ready before near and suspect",
       {At(0, Suspect(1)), At(5, Snapshot(9, 9))},
       2,
       kNone,
       1},
      {"near ones are full",
       {At(0, Full(Snapshot(1, 0))), At(5, Snapshot(9, 9))},
       2,
       kNone,
       1},
      {"the near one has failed",
       {At(0, Snapshot(1, 0)), At(5, Snapshot(9, 9))},
       2,
       0,
       1},
      {"tiers out of range count as the last",
       {At(99, Snapshot(1, 0)), At(kMaxTier, Snapshot(2, 0))},
       2,
       kNone,
       0},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ChooseNode(c.nodes, c.avoid, 0, 0, c.ratio), c.choice) << c.what;
  }
}

TEST(ChooseNodeTest, GivesFasterNodesMoreAndSlowerNodesSome) {
  // Two of four equally likely pairs-of-two rule: the fastest node wins every
  // pair it is in (1/2 of all), the slowest none.
  const std::vector<NodeSnapshot> nodes = {Snapshot(1, 0), Snapshot(2, 0),
                                           Snapshot(3, 0), Snapshot(4, 0)};
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<int> counts(4, 0);
  constexpr int kDraws = 60000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[*ChooseNode(nodes, std::nullopt, random(), random())];
  }
  // Shares 3/6, 2/6, 1/6, 0; five standard deviations are under 0.011.
  EXPECT_NEAR(counts[0] / double{kDraws}, 3.0 / 6, 0.011);
  EXPECT_NEAR(counts[1] / double{kDraws}, 2.0 / 6, 0.011);
  EXPECT_NEAR(counts[2] / double{kDraws}, 1.0 / 6, 0.011);
  EXPECT_EQ(counts[3], 0);
}

TEST(SmoothedLatencyTest, StartsWithTheFirstSampleAndMovesByAnEighth) {
  const absl::Duration first =
      SmoothedLatency(absl::ZeroDuration(), absl::Milliseconds(8));
  EXPECT_EQ(first, absl::Milliseconds(8));
  EXPECT_EQ(SmoothedLatency(first, absl::Milliseconds(16)),
            absl::Milliseconds(9));
  EXPECT_EQ(SmoothedLatency(first, absl::ZeroDuration()),
            absl::Milliseconds(7));
  // exp(-1) of the old mean is left after the time constant.
  EXPECT_NEAR(absl::ToDoubleMilliseconds(SmoothedLatency(
                  first, absl::ZeroDuration(), kLatencyAge)),
              8 * 0.36788, 1e-4);
}

TEST(AgedLatencyTest, FallsAndStaysMeasured) {
  const absl::Duration latency = absl::Milliseconds(8);
  EXPECT_EQ(AgedLatency(latency, absl::ZeroDuration()), latency);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(AgedLatency(latency, kLatencyAge)),
              8 * 0.36788, 1e-4);
  EXPECT_GT(AgedLatency(latency, absl::Hours(100)), absl::ZeroDuration());
  EXPECT_EQ(AgedLatency(absl::ZeroDuration(), absl::InfiniteDuration()),
            absl::ZeroDuration());
}

TEST(AgedLatencyTest, SendsNoRequestFartherByItself) {
  NodeSnapshot near = Snapshot(4, 0), far = Snapshot(4, 0);
  far.tier = 2;
  far.age = absl::Hours(1);
  EXPECT_EQ(ChooseNode({near, far}, kNone, 0, 0), 0u);
  // A near node that was slow once is tried again.
  near.latency = absl::Milliseconds(500);
  EXPECT_EQ(ChooseNode({near, far}, kNone, 0, 0), 1u);
  near.age = absl::Hours(1);
  EXPECT_EQ(ChooseNode({near, far}, kNone, 0, 0), 0u);
}

}  // namespace
}  // namespace refract::cpu_node
