#include "placement/policy/placer.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "placement/cluster/random.h"
#include "tests/placement/clusters.h"

namespace refract::placement {
namespace {

TargetWorkload SomeWorkload() {
  return {{{Asks(4, 0), 0.2},
           {Asks(8, 1), 0.3},
           {Asks(4, 1, 300), 0.2},
           {Asks(6, 1, 700), 0.2},
           {Asks(16, 2), 0.1}}};
}

// Every device choice on every node, by the rules of docs/design/placement.md:
// the shortest path, the best bucket, the best fit, the name.
int BruteForce(Policy policy, const Cluster& cluster, const State& state,
               const FragmentMeter& meter, const Demand& demand) {
  int best = -1;
  Score best_score;
  for (size_t n = 0; n < cluster.nodes.size(); ++n) {
    const Node& node = cluster.nodes[n];
    const NodeFree& free = state.free(static_cast<int>(n));
    if (free.cpu_milli < demand.cpu_milli) continue;
    bool found = false;
    double topology = 0;
    double least = 0;  // fragment after, among the devices with that path
    for (unsigned gpus = 0; gpus < (1u << node.gpus); ++gpus) {
      if (__builtin_popcount(gpus) != demand.gpus) continue;
      bool room = true;
      bool lowest = true;
      for (int g = 0; g < node.gpus; ++g) {
        const bool has = free.gpu_milli[g] >= demand.gpu_milli;
        if (gpus >> g & 1) room = room && has;
      }
      if (!room) continue;
      // FGD without topology takes the free GPUs of the lowest numbers.
      if (policy == Policy::kFgd && demand.gpus > 0 &&
          demand.gpu_milli == kWholeGpu) {
        for (int g = 0; g < node.gpus; ++g) {
          if (!(gpus >> g & 1) && free.gpu_milli[g] == kWholeGpu &&
              g < 31 - __builtin_clz(gpus)) {
            lowest = false;
          }
        }
      }
      if (!lowest) continue;
      for (int nic = -1; nic < node.nics; ++nic) {
        if ((nic >= 0) != (demand.nic_percent > 0)) continue;
        if (nic >= 0 && free.nic_percent[nic] < demand.nic_percent) continue;
        NodeFree after = free;
        after.cpu_milli -= demand.cpu_milli;
        double path = 1;
        for (int g = 0; g < node.gpus; ++g) {
          if (!(gpus >> g & 1)) continue;
          after.gpu_milli[g] -= static_cast<int16_t>(demand.gpu_milli);
          if (nic < 0 || policy == Policy::kFgd) continue;
          const Attachment& a = node.gpu_at[g];
          const Attachment& b = node.nic_at[nic];
          path = std::min(path, a.socket != b.socket             ? 0.63
                                : a.pcie_switch != b.pcie_switch ? 0.80
                                                                 : 1.0);
        }
        const double fragment = meter.Measure(node, after).gpu_milli;
        if (!found || path > topology ||
            (path == topology && fragment < least)) {
          found = true;
          topology = path;
          least = fragment;
        }
      }
    }
    if (!found) continue;
    double free_gpu = 0;
    for (int g = 0; g < node.gpus; ++g) free_gpu += free.gpu_milli[g];
    const Score score = {
        .topology = topology,
        .primary = static_cast<double>(
            FgdBucket(meter.Measure(node, free).gpu_milli, least)),
        .secondary =
            -(0.5 * static_cast<double>(free.cpu_milli - demand.cpu_milli) /
                  128000 +
              0.5 * (free_gpu - static_cast<double>(demand.TotalGpuMilli())) /
                  8000)};
    if (best < 0 || score.BetterThan(best_score) ||
        (score == best_score && node.name < cluster.nodes[best].name)) {
      best = static_cast<int>(n);
      best_score = score;
    }
  }
  return best;
}

class BruteForceTest : public testing::TestWithParam<Policy> {};

TEST_P(BruteForceTest, FindsTheSameNode) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    ClusterBuilder builder;
    for (int i = 0; i < 7; ++i) {
      builder.Add(16 << random.Below(3), 1 << random.Below(4));
    }
    builder.Add(32, 0);
    const Cluster& cluster = builder.cluster();
    State state(cluster, 0);
    const FragmentMeter meter(SomeWorkload());
    Placer placer(state, &meter, {}, {.policy = GetParam()});
    struct Running {
      Instance instance;
      Decision decision;
    };
    std::vector<Running> running;
    for (int step = 0; step < 120; ++step) {
      if (!running.empty() && random.Below(4) == 0) {
        const size_t i = random.Below(running.size());
        state.Remove(running[i].instance, running[i].decision.node,
                     running[i].decision.choice.devices);
        running.erase(running.begin() + static_cast<long>(i));
        continue;
      }
      Demand demand = SomeWorkload().shapes[random.Below(5)].demand;
      if (random.Below(2) == 0) demand.nic_percent = 25;
      const Instance instance = Of(demand);
      const Decision decision = placer.Decide(instance);
      const int expected =
          BruteForce(GetParam(), cluster, state, meter, demand);
      ASSERT_EQ(decision.node, expected) << "step " << step;
      if (decision.node < 0) continue;
      state.Add(instance, decision.node, decision.choice.devices);
      running.push_back({instance, decision});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, BruteForceTest,
                         testing::Values(Policy::kFgd, Policy::kCombined),
                         [](const auto& info) {
                           return std::string(Name(info.param));
                         });

class PlacerTest : public testing::Test {
 protected:
  Decision PlaceOne(Placer& placer, State& state, const Instance& instance) {
    const Decision decision = placer.Decide(instance);
    if (decision.node >= 0) {
      state.Add(instance, decision.node, decision.choice.devices);
    }
    return decision;
  }

  ClusterBuilder builder_;
  FragmentMeter meter_{SomeWorkload()};
};

TEST_F(PlacerTest, EqualNodesGoByName) {
  for (int i = 0; i < 12; ++i) builder_.Add(16, 1);  // n10 is before n2
  State state(builder_.cluster(), 0);
  Placer placer(state, &meter_, {}, {.policy = Policy::kFgd});
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) {
    names.push_back(builder_.cluster()
                        .nodes[PlaceOne(placer, state, Of(Asks(16, 1))).node]
                        .name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"n0", "n1", "n10", "n11"}));
}

TEST_F(PlacerTest, KeepsDensity) {
  builder_.Add(64, 8);
  builder_.Add(64, 8);
  State state(builder_.cluster(), 1);
  Placer placer(state, &meter_, {}, {.policy = Policy::kCombined});
  Instance instance = Of(Asks(1, 1), 0, Role::kHn);
  instance.max_per_node = 2;
  std::vector<int> counts(2, 0);
  for (int i = 0; i < 4; ++i) {
    ++counts[PlaceOne(placer, state, instance).node];
  }
  EXPECT_EQ(counts, (std::vector<int>{2, 2}));
  EXPECT_EQ(placer.Decide(instance).node, -1);
  EXPECT_EQ(placer.ObstacleAt(0, instance), Obstacle::kDensity);
  // Another role of the app counts for itself.
  instance.role = Role::kCn;
  EXPECT_GE(placer.Decide(instance).node, 0);
}

TEST_F(PlacerTest, KeepsAnAppInItsPod) {
  builder_.Add(32, 1);
  const int leaf = builder_.AddLeaf(1);
  builder_.Add(128, 8, leaf);
  State state(builder_.cluster(), 2);
  Placer placer(state, &meter_, {},
                {.policy = Policy::kCombined, .keep_pod = true});
  const Instance small = Of(Asks(8, 1), 0);
  const Decision first = PlaceOne(placer, state, small);
  const Decision second = PlaceOne(placer, state, small);
  ASSERT_GE(first.node, 0);
  if (first.node == 0) {
    EXPECT_EQ(second.node, -1);  // pod 0 has one GPU
    EXPECT_EQ(placer.ObstacleAt(1, small), Obstacle::kPod);
    // With its last instance gone, an app may choose anew.
    state.Remove(small, 0, first.choice.devices);
    EXPECT_EQ(placer.ObstacleAt(1, small), Obstacle::kNothing);
  } else {
    EXPECT_EQ(second.node, 1);
    EXPECT_EQ(placer.ObstacleAt(0, small), Obstacle::kPod);
  }
}

// The second app declares more than pod 0 has left.
TEST_F(PlacerTest, ChoosesThePodWithRoomForWhatAnAppDeclares) {
  builder_.Add(64, 8);
  const int leaf = builder_.AddLeaf(1);
  builder_.Add(64, 4, leaf);
  State state(builder_.cluster(), 2);
  std::vector<AppTarget> targets(2);
  targets[0].by_role[static_cast<int>(Role::kHn)] = {Asks(4, 1), 6};
  targets[1].by_role[static_cast<int>(Role::kHn)] = {Asks(4, 1), 3};
  Placer placer(state, &meter_, targets,
                {.policy = Policy::kCombined, .keep_pod = true});
  EXPECT_EQ(PlaceOne(placer, state, Of(Asks(4, 1), 0, Role::kHn)).node, 0);
  EXPECT_EQ(PlaceOne(placer, state, Of(Asks(4, 1), 1, Role::kHn)).node, 1);
}

// NICs of 200 Gbit/s; the quota is 0.8 of 250 Gbit/s: four shares of 25 %.
TEST_F(PlacerTest, KeepsTheQuotaOfALeaf) {
  builder_.Add(128, 8);
  builder_.cluster().leaves[0].uplink_gbps = 250;
  State state(builder_.cluster(), 0);
  Placer placer(state, &meter_, {},
                {.policy = Policy::kCombined, .leaf_quota = 0.8});
  Demand demand = Asks(1, 1);
  demand.nic_percent = 25;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(PlaceOne(placer, state, Of(demand)).node, 0) << i;
  }
  EXPECT_EQ(placer.Decide(Of(demand)).node, -1);
  EXPECT_EQ(placer.ObstacleAt(0, Of(demand)), Obstacle::kLeafQuota);
  EXPECT_EQ(placer.Decide(Of(Asks(1, 1))).node, 0);  // needs no NIC
}

// Node n0 is the better fit by a little; the app's leaf wins within the slack.
TEST_F(PlacerTest, PrefersTheLeafOfTheAppWithinTheSlack) {
  builder_.Add(16, 0);
  const int leaf = builder_.AddLeaf(0);
  builder_.Add(17, 0, leaf);
  builder_.Add(17, 0, leaf);
  for (const double slack : {0.0, 0.05}) {
    State state(builder_.cluster(), 1);
    Placer placer(state, &meter_, {},
                  {.policy = Policy::kCombined,
                   .pack_leaves = true,
                   .leaf_slack = slack});
    const Instance whole = Of(Asks(17, 0), 0);
    ASSERT_EQ(PlaceOne(placer, state, whole).node, 1);
    const Instance next = Of(Asks(10, 0), 0);
    const Decision decision = placer.Decide(next);
    EXPECT_EQ(decision.node, slack > 0 ? 2 : 0);
    const std::vector<Verdict> verdicts = placer.Explain(next, decision);
    ASSERT_EQ(verdicts.size(), 3u);
    EXPECT_EQ(verdicts[0].node, decision.node);
    EXPECT_EQ(verdicts[0].loses_by, Criterion::kChosen);
    EXPECT_EQ(verdicts[1].loses_by,
              slack > 0 ? Criterion::kLeaf : Criterion::kFit);
    EXPECT_EQ(verdicts[2].obstacle, Obstacle::kCpu);
  }
}

TEST_F(PlacerTest, ExplainsByTheFirstCriterion) {
  builder_.Add(64, 2);
  builder_.Add(64, 2);
  builder_.Add(64, 2);
  builder_.Add(4, 2);
  State state(builder_.cluster(), 0);
  Placer placer(state, &meter_, {}, {.policy = Policy::kCombined});
  Demand demand = Asks(8, 1);
  demand.nic_percent = 25;
  const Decision decision = placer.Decide(Of(demand));
  EXPECT_EQ(decision.node, 0);
  const std::vector<Verdict> verdicts = placer.Explain(Of(demand), decision);
  EXPECT_EQ(verdicts[1].node, 1);
  EXPECT_EQ(verdicts[1].loses_by, Criterion::kName);
  EXPECT_EQ(verdicts.back().obstacle, Obstacle::kCpu);
}

TEST_F(PlacerTest, PutsThreeMigSlicesOnEachGpu) {
  builder_.Add(128, 8);
  builder_.Add(128, 8, 0, "T4");  // no MIG
  State state(builder_.cluster(), 0);
  Placer placer(state, &meter_, {}, {.policy = Policy::kCombined});
  const Instance slice = Of(AsksMig(2, MigProfile::k2g));
  for (int i = 0; i < 24; ++i) {
    ASSERT_EQ(PlaceOne(placer, state, slice).node, 0) << i;
  }
  EXPECT_EQ(placer.Decide(slice).node, -1);
}

TEST_F(PlacerTest, RandomIsUniform) {
  for (int i = 0; i < 4; ++i) builder_.Add(16, 1);
  State state(builder_.cluster(), 0);
  Placer placer(state, nullptr, {}, {.policy = Policy::kRandom, .seed = 3});
  std::vector<int> counts(4, 0);
  for (int i = 0; i < 4000; ++i) ++counts[placer.Decide(Of(Asks(1, 1))).node];
  // Four standard deviations of a binomial distribution are 110.
  for (const int count : counts) EXPECT_NEAR(count, 1000, 110);
}

TEST(WhyImpossible, NamesTheResourceThatBinds) {
  ClusterBuilder builder;
  builder.Add(192, 0);
  builder.Add(96, 8, 0, "T4");
  const Cluster& cluster = builder.cluster();
  const auto why = [&](const Demand& demand) {
    return WhyImpossible(cluster, Of(demand));
  };
  EXPECT_EQ(why(Asks(96, 8)), "");
  EXPECT_EQ(why(Asks(200, 0)), "no node has 200 cores (the largest has 192)");
  EXPECT_EQ(why(Asks(1, 9)), "no node has 9 GPUs (the largest has 8)");
  EXPECT_EQ(why(Asks(128, 1)), "no node has 1 GPU and 128 cores together");
  EXPECT_EQ(why(AsksMig(1, MigProfile::k1g)),
            "no node has a GPU with MIG for a 1g slice");
  Cluster with_models = cluster;
  const auto bit = [&](const char* model) {
    return uint64_t{1} << GpuModelIndex(with_models, model);
  };
  Demand model = Asks(1, 1);
  model.gpu_models = bit("H200");
  EXPECT_EQ(WhyImpossible(with_models, Of(model)),
            "no node has 1 GPU of model H200 (the nodes have T4)");
  model.gpu_models |= bit("H800");
  EXPECT_EQ(WhyImpossible(with_models, Of(model)),
            "no node has 1 GPU of model H200 or H800 (the nodes have T4)");
}

}  // namespace
}  // namespace refract::placement
