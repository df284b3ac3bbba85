#include "partitioner/cut/search.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"
#include "tests/partitioner/cut/exhaustive.h"
#include "tests/partitioner/cut/random_problem.h"

namespace refract::partitioner::cut {
namespace {

using testing::HasSubstr;
using Kind = RandomProblems::Kind;

// Every test prints its seed when it fails.
class SearchTest : public testing::Test {
 protected:
  SearchTest()
      : seed_(base::RandomSeed()),
        trace_(__FILE__, __LINE__, "seed " + std::to_string(seed_)),
        random_(seed_) {}

  const unsigned seed_;
  testing::ScopedTrace trace_;
  RandomProblems random_;
};

// More cuts than any search of these tests needs.
constexpr int64_t kAllCuts = 1'000'000;

Goal Minimise(Measure measure) {
  Goal goal;
  goal.max_cuts = kAllCuts;
  goal.objectives.push_back(std::move(measure));
  return goal;
}

// nullopt: no choice is legal.
std::optional<Cost> Optimum(const Problem& problem, const Goal& goal) {
  const absl::StatusOr<Found> found = FindBest(problem, goal);
  if (!found.ok()) {
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument)
        << found.status();
    return std::nullopt;
  }
  if (!found->best) return std::nullopt;
  EXPECT_TRUE(found->best->proven());
  EXPECT_TRUE(IsLegal(problem, found->best->stages));
  return found->best->cost;
}

TEST_F(SearchTest, FindsTheExhaustiveOptimum) {
  int bypasses = 0;
  int branched = 0;
  int infeasible = 0;
  for (int round = 0; round < 4000; ++round) {
    const Problem problem = random_.Make({});
    const Measure measure =
        random_.Cost(problem, round % 3 == 0 ? Kind::kUneven : Kind::kTime);
    const Exhaustive oracle(problem);
    const std::optional<int64_t> best = oracle.Best({&measure});
    const absl::StatusOr<Found> found = FindBest(problem, Minimise(measure));
    if (!best) {
      ++infeasible;
      ASSERT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(found.ok()) << found.status() << ", round " << round;
    ASSERT_TRUE(found->best) << "round " << round;
    ASSERT_EQ(found->best->cost, *best) << "round " << round;
    ASSERT_EQ(found->best->lower_bound, *best) << "round " << round;
    ASSERT_EQ(oracle.Price(measure, found->best->stages), *best);
    if (found->branches > 1) ++branched;
    for (const Tensor& tensor : problem.tensors) {
      if (tensor.producer < 0) continue;
      for (const int reader : tensor.readers) {
        if (found->best->stages[tensor.producer] == kPre &&
            found->best->stages[reader] == kPost) {
          ++bypasses;
        }
      }
    }
  }
  // The cases that are hard have to be among them.
  EXPECT_GT(bypasses, 40);
  EXPECT_GT(branched, 20);
  EXPECT_GT(infeasible, 20);
  EXPECT_LT(infeasible, 2000);
}

TEST_F(SearchTest, FindsTheExhaustiveOptimumUnderLimits) {
  int bound = 0;
  int beyond = 0;
  for (int round = 0; round < 2500; ++round) {
    const Problem problem = random_.Make({.max_nodes = 8});
    const Exhaustive oracle(problem);
    Goal goal = Minimise(random_.Cost(problem, Kind::kTime));
    const std::optional<int64_t> unlimited = oracle.Best({&goal.objectives[0]});
    if (!unlimited) continue;
    std::vector<Exhaustive::Limited> limits;
    const int num_limits = 1 + random_.Below(3);
    for (int j = 0; j < num_limits; ++j) {
      const Kind kind = j == 0   ? Kind::kMemory
                        : j == 1 ? Kind::kBytes
                                 : Kind::kUneven;
      Limit limit{.name = "limit " + std::to_string(j),
                  .measure = random_.Cost(problem, kind)};
      // Between what is needed at least and what the unlimited best takes, and
      // a little beyond either.
      const int64_t least = *oracle.Best({&limit.measure});
      const absl::StatusOr<Found> free =
          FindBest(problem, Minimise(goal.objectives[0]));
      ASSERT_TRUE(free.ok() && free->best);
      const int64_t taken = oracle.Price(limit.measure, free->best->stages);
      limit.at_most = std::max<int64_t>(
          0, least + (taken - least) * random_.Below(12) / 10 -
                 (random_.Chance(0.1) ? 1 : 0));
      goal.limits.push_back(std::move(limit));
    }
    for (const Limit& limit : goal.limits) {
      limits.push_back({&limit.measure, limit.at_most});
    }
    const std::optional<int64_t> best =
        oracle.Best({&goal.objectives[0]}, limits);
    const absl::StatusOr<Found> found = FindBest(problem, goal);
    ASSERT_TRUE(found.ok()) << found.status() << ", round " << round;
    ASSERT_EQ(found->best.has_value(), best.has_value()) << "round " << round;
    if (best) {
      ASSERT_EQ(found->best->cost, *best) << "round " << round;
      ASSERT_EQ(found->best->lower_bound, *best) << "round " << round;
      for (const Exhaustive::Limited& limit : limits) {
        ASSERT_LE(oracle.Price(*limit.measure, found->best->stages),
                  limit.at_most);
      }
      if (*best > *unlimited) ++bound;
      continue;
    }
    // Names the limit that cannot be met, and the least limit that could be.
    ++beyond;
    ASSERT_TRUE(found->shortfall) << "round " << round;
    const size_t j = found->shortfall->limit;
    std::vector<Exhaustive::Limited> others;
    if (!found->shortfall->alone) {
      others.assign(limits.begin(), limits.begin() + j);
    }
    ASSERT_EQ(oracle.Best({&goal.limits[j].measure}, others),
              found->shortfall->least);
    ASSERT_GT(found->shortfall->least, goal.limits[j].at_most);
  }
  EXPECT_GT(bound, 100);
  EXPECT_GT(beyond, 100);
}

// Two hundred tables that fit neither side's memory nor both together: what
// the best mixture of plans needs is a bound that few cuts prove, though all
// choices that are seen first cost nothing.
TEST(ShortfallTest, ManyTablesInTwoMemoriesAreToldByHowMuchInTheUsualCuts) {
  Problem problem;
  problem.tensors.push_back({.producer = Tensor::kRequest});
  const int tables = 200;
  Cost all = 0;
  std::vector<Cost> bytes;
  for (int t = 0; t <= tables; ++t) {
    problem.allowed.push_back(t < tables ? kOnPre | kOnHn : kAnyStage);
    problem.shared.push_back({{t}});
    bytes.push_back(t < tables ? 64'000 + 4'736 * t : 6'600'000);
    all += bytes.back();
    if (t < tables) problem.tensors[0].readers.push_back(t);
    problem.tensors.push_back({.producer = t, .is_result = t == tables});
    if (t < tables) problem.tensors.back().readers.push_back(tables);
  }
  Goal goal;
  goal.objectives = {Measure(problem)};
  Measure& latency = goal.objectives[0];
  for (int t = 0; t < tables; ++t) {
    latency.stage[t] = {1'000 + t, 500, 1'000 + t};
    latency.up[t + 1] = 700 + t % 7;
  }
  latency.stage[tables] = {900'000, 20'000, 900'000};
  latency.up[0] = 100'000;
  latency.hn_used = 10'000;
  Measure on_cn(problem);
  Measure on_hn(problem);
  on_cn.shared_on_cn = on_hn.shared_on_hn = bytes;
  goal.limits = {{"HN", on_hn, 10'000'000}, {"CN", on_cn, 50'000'000}};
  const absl::StatusOr<Found> found = FindBest(problem, goal);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->best);
  ASSERT_TRUE(found->shortfall);
  EXPECT_EQ(found->shortfall->limit, 1u);
  EXPECT_FALSE(found->shortfall->alone);
  // No more than all that the HN holds can be elsewhere.
  EXPECT_GE(found->shortfall->least, all - 10'000'000);
  EXPECT_LE(found->shortfall->least, all - 10'000'000 + bytes[tables - 1]);
  EXPECT_LE(found->cuts, 2 * goal.max_cuts);
}

TEST_F(SearchTest, FindsTheExhaustiveLeastOfTheLargest) {
  for (int round = 0; round < 2000; ++round) {
    const Problem problem = random_.Make({.max_nodes = 8});
    const Exhaustive oracle(problem);
    Goal goal;
    goal.max_cuts = kAllCuts;
    std::vector<const Measure*> objectives;
    // Stations of a pipeline: CN, link up, HN, link down.
    const Measure time = random_.Cost(problem, Kind::kTime);
    for (int i = 0; i < 4; ++i) goal.objectives.emplace_back(problem);
    for (int n = 0; n < problem.num_nodes(); ++n) {
      goal.objectives[0].stage[n] = {time.stage[n][kPre], 0,
                                     time.stage[n][kPost]};
      goal.objectives[2].stage[n][kHn] = time.stage[n][kHn];
    }
    goal.objectives[1].up = time.up;
    goal.objectives[3].down = time.down;
    for (const Measure& objective : goal.objectives) {
      objectives.push_back(&objective);
    }
    ASSERT_EQ(Optimum(problem, goal), oracle.Best(objectives))
        << "round " << round;
  }
}

// A deep model through three stations: with domains divided in the middle of
// what is not decided some tens of cuts are enough, not one per node.
TEST_F(SearchTest, ComesNearTheSlowestStationOfAChainInFewCuts) {
  for (int round = 0; round < 5; ++round) {
    constexpr int kNodes = 600;
    Problem problem;
    problem.allowed.assign(kNodes, kAnyStage);
    problem.allowed[0] = kOnPre;
    Goal goal;
    for (int n = 0; n < kNodes; ++n) {
      problem.tensors.push_back({.producer = n});
      if (n + 1 < kNodes) problem.tensors.back().readers = {n + 1};
    }
    problem.tensors.back().is_result = true;
    goal.objectives.assign(3, Measure(problem));
    std::vector<Cost> cn;
    std::vector<Cost> hn;
    for (int n = 0; n < kNodes; ++n) {
      cn.push_back(1 + random_.Below(1000));
      hn.push_back(1 + random_.Below(500));
      goal.objectives[0].stage[n] = {cn[n], 0, cn[n]};
      goal.objectives[1].stage[n] = {0, hn[n], 0};
      goal.objectives[2].up[n] = 1'000 + random_.Below(60'000);
      goal.objectives[2].down[n] = goal.objectives[2].up[n];
    }
    // The HN has a contiguous part; its ends say everything.
    Cost best = 0;
    for (const Cost cost : cn) best += cost;
    std::vector<Cost> cn_before = {0};
    std::vector<Cost> hn_before = {0};
    for (int n = 0; n < kNodes; ++n) {
      cn_before.push_back(cn_before.back() + cn[n]);
      hn_before.push_back(hn_before.back() + hn[n]);
    }
    const std::vector<Cost>& bytes = goal.objectives[2].up;
    for (int first = 1; first < kNodes; ++first) {
      for (int last = first; last < kNodes; ++last) {
        const Cost on_hn = hn_before[last + 1] - hn_before[first];
        const Cost on_cn =
            cn_before[kNodes] - cn_before[last + 1] + cn_before[first];
        best = std::min(
            best, std::max({on_hn, on_cn, bytes[first - 1] + bytes[last]}));
      }
    }
    goal.max_cuts = 100;
    const absl::StatusOr<Found> found = FindBest(problem, goal);
    ASSERT_TRUE(found.ok() && found->best) << found.status();
    ASSERT_GE(found->best->cost, best);
    ASSERT_LE(found->best->lower_bound, best);
    EXPECT_LE(static_cast<double>(found->best->cost),
              1.01 * static_cast<double>(best))
        << "round " << round;
    EXPECT_GE(static_cast<double>(found->best->lower_bound),
              0.98 * static_cast<double>(best))
        << "round " << round;
  }
}

TEST_F(SearchTest, ScaledCostsScaleTheOptimum) {
  for (int round = 0; round < 500; ++round) {
    const Problem problem = random_.Make({.max_nodes = 30});
    Measure measure = random_.Cost(problem, Kind::kTime);
    const std::optional<Cost> before = Optimum(problem, Minimise(measure));
    const Cost factor = 2 + random_.Below(1000);
    for (auto& stage : measure.stage) {
      for (Cost& cost : stage) cost *= factor;
    }
    for (auto* costs : {&measure.up, &measure.down, &measure.shared_on_cn,
                        &measure.shared_on_hn}) {
      for (Cost& cost : *costs) cost *= factor;
    }
    measure.hn_used *= factor;
    const std::optional<Cost> after = Optimum(problem, Minimise(measure));
    ASSERT_EQ(before.has_value(), after.has_value());
    if (before) {
      ASSERT_EQ(*after, *before * factor);
    }
  }
}

// Every tensor crosses at a price that nothing is worth: nothing crosses.
TEST_F(SearchTest, UnaffordableCrossingsLeaveOneSide) {
  int all_hn = 0;
  for (int round = 0; round < 500; ++round) {
    Problem problem =
        random_.Make({.max_nodes = 30, .pinned = 0.0, .unsendable = false});
    // Nodes without operands would be computed on the HN for themselves; here
    // each reads the one before it.
    problem.tensors.clear();
    for (int n = 0; n < problem.num_nodes(); ++n) {
      Tensor tensor{.producer = n};
      if (n + 1 < problem.num_nodes()) tensor.readers.push_back(n + 1);
      for (int i = 0; i < 2; ++i) {
        const int reader = n + 1 + random_.Below(problem.num_nodes());
        if (reader < problem.num_nodes()) tensor.readers.push_back(reader);
      }
      problem.tensors.push_back(std::move(tensor));
    }
    Measure measure(problem);
    Cost on_cn = 0;
    Cost on_hn = 0;
    for (auto& stage : measure.stage) {
      stage = {random_.Below(100), random_.Below(100), 0};
      stage[kPost] = stage[kPre];
      on_cn += stage[kPre];
      on_hn += stage[kHn];
    }
    measure.hn_used = random_.Below(20);
    on_hn += measure.hn_used;
    measure.up.assign(problem.tensors.size(), 1'000'000);
    measure.down.assign(problem.tensors.size(), 1'000'000);
    const absl::StatusOr<Found> found = FindBest(problem, Minimise(measure));
    ASSERT_TRUE(found.ok() && found->best);
    ASSERT_EQ(found->best->cost, std::min(on_cn, on_hn));
    if (on_hn < on_cn) ++all_hn;
  }
  EXPECT_GT(all_hn, 50);
  EXPECT_LT(all_hn, 450);
}

TEST_F(SearchTest, FreeCrossingsAndEqualSidesCostTheSumOfTheNodes) {
  for (int round = 0; round < 200; ++round) {
    const Problem problem = random_.Make({.max_nodes = 30, .pinned = 0.2});
    Measure measure(problem);
    Cost sum = 0;
    for (auto& stage : measure.stage) {
      const Cost cost = random_.Below(100);
      stage = {cost, cost, cost};
      sum += cost;
    }
    const std::optional<Cost> optimum = Optimum(problem, Minimise(measure));
    if (optimum) {
      ASSERT_EQ(*optimum, sum);
    }
  }
}

TEST_F(SearchTest, AnotherNodeNeverLowersTheOptimum) {
  for (int round = 0; round < 500; ++round) {
    Problem problem = random_.Make({.max_nodes = 20});
    const Measure measure = random_.Cost(problem, Kind::kTime);
    const std::optional<Cost> before = Optimum(problem, Minimise(measure));
    // Reads what is there, makes a result.
    const int node = problem.num_nodes();
    problem.allowed.push_back(kAnyStage);
    for (int i = 0; i < 2; ++i) {
      problem.tensors[random_.Below(static_cast<int>(problem.tensors.size()))]
          .readers.push_back(node);
    }
    problem.tensors.push_back({.producer = node, .is_result = true});
    Measure longer(problem);
    std::copy(measure.stage.begin(), measure.stage.end(), longer.stage.begin());
    std::copy(measure.up.begin(), measure.up.end(), longer.up.begin());
    std::copy(measure.down.begin(), measure.down.end(), longer.down.begin());
    longer.shared_on_cn = measure.shared_on_cn;
    longer.shared_on_hn = measure.shared_on_hn;
    longer.hn_used = measure.hn_used;
    longer.stage[node] = {random_.Below(20), random_.Below(20),
                          random_.Below(20)};
    const std::optional<Cost> after = Optimum(problem, Minimise(longer));
    if (!before) {
      ASSERT_FALSE(after);
    } else if (after) {
      ASSERT_GE(*after, *before);
    }
  }
}

TEST_F(SearchTest, LimitsThatDoNotBindChangeNothing) {
  for (int round = 0; round < 200; ++round) {
    const Problem problem = random_.Make({.max_nodes = 25});
    Goal goal = Minimise(random_.Cost(problem, Kind::kTime));
    const std::optional<Cost> before = Optimum(problem, goal);
    if (!before) continue;
    goal.limits.push_back({.name = "memory",
                           .measure = random_.Cost(problem, Kind::kMemory),
                           .at_most = kMaxTotal});
    ASSERT_EQ(Optimum(problem, goal), before);
  }
}

// A path HN → CN → HN would be best if it were legal.
TEST_F(SearchTest, DoesNotComeBackToTheHn) {
  Problem problem;
  problem.allowed.assign(3, kAnyStage);
  problem.tensors = {{.producer = 0, .readers = {1}},
                     {.producer = 1, .readers = {2}},
                     {.producer = 2, .is_result = true}};
  Measure measure(problem);
  measure.stage = {{{10, 1, 10}, {1, 8, 1}, {10, 1, 10}}};
  const absl::StatusOr<Found> found = FindBest(problem, Minimise(measure));
  ASSERT_TRUE(found.ok() && found->best);
  EXPECT_EQ(found->best->cost, 10);
  EXPECT_EQ(found->best->stages, (Stages{kHn, kHn, kHn}));
}

TEST_F(SearchTest, ASharedTensorIsSentOnce) {
  Problem problem;
  problem.allowed = {kOnPre, kAnyStage, kAnyStage};
  problem.tensors = {{.producer = 0, .readers = {1, 2}}};
  Measure measure(problem);
  measure.stage = {{{0, 0, 0}, {6, 1, 6}, {6, 1, 6}}};
  measure.up = {9};
  const absl::StatusOr<Found> found = FindBest(problem, Minimise(measure));
  ASSERT_TRUE(found.ok() && found->best);
  EXPECT_EQ(found->best->cost, 11);  // 9 + 1 + 1, not 12 on the CN
}

TEST_F(SearchTest, ReportsTheGapWhenItStopsEarly) {
  int open = 0;
  for (int round = 0; round < 300 && open == 0; ++round) {
    const Problem problem =
        random_.Make({.min_nodes = 40, .max_nodes = 60, .unsendable = false});
    Goal goal = Minimise(random_.Cost(problem, Kind::kTime));
    const std::optional<Cost> best = Optimum(problem, goal);
    if (!best) continue;
    goal.max_cuts = 1;
    const absl::StatusOr<Found> found = FindBest(problem, goal);
    ASSERT_TRUE(found.ok()) << found.status();
    if (!found->best) continue;
    ASSERT_LE(found->best->lower_bound, *best);
    ASSERT_GE(found->best->cost, *best);
    if (!found->best->proven()) ++open;
  }
  EXPECT_GT(open, 0);
}

TEST_F(SearchTest, IsNeverWorseThanWhatWasKnown) {
  for (int round = 0; round < 300; ++round) {
    const Problem problem =
        random_.Make({.min_nodes = 30, .max_nodes = 60, .unsendable = false});
    Goal goal = Minimise(random_.Cost(problem, Kind::kTime));
    const absl::StatusOr<Found> free = FindBest(problem, goal);
    if (!free.ok()) continue;
    goal.known = {free->best->stages};
    goal.max_cuts = 1;
    const absl::StatusOr<Found> found = FindBest(problem, goal);
    ASSERT_TRUE(found.ok() && found->best);
    ASSERT_EQ(found->best->cost, free->best->cost);
  }
}

TEST_F(SearchTest, RefusesWhatIsNotConsistent) {
  Problem problem;
  problem.allowed = {kAnyStage, kAnyStage};
  problem.tensors = {{.producer = 0, .readers = {1}}};
  const Measure good(problem);
  const auto message = [](const Problem& problem, const Goal& goal) {
    const absl::StatusOr<Found> found = FindBest(problem, goal);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(found.status().message());
  };
  Problem cyclic = problem;
  cyclic.tensors.push_back({.producer = 1, .readers = {0}});
  EXPECT_THAT(message(cyclic, Minimise(Measure(cyclic))),
              HasSubstr("tensor 1"));
  Problem dangling = problem;
  dangling.tensors[0].readers = {7};
  EXPECT_THAT(message(dangling, Minimise(Measure(dangling))),
              HasSubstr("node 7"));
  Measure negative = good;
  negative.stage[1][kHn] = -1;
  EXPECT_THAT(message(problem, Minimise(negative)), HasSubstr("negative"));
  Measure huge = good;
  huge.up[0] = kMaxTotal;
  huge.down[0] = 1;
  EXPECT_THAT(message(problem, Minimise(huge)), HasSubstr("add up"));
  Measure other = good;
  other.up.clear();
  EXPECT_THAT(message(problem, Minimise(other)),
              HasSubstr("other nodes or tensors"));
  EXPECT_THAT(message(problem, Goal{}), HasSubstr("the goal has no objective"));
  Problem nowhere = problem;
  nowhere.allowed = {kOnPost, kOnPre};
  EXPECT_THAT(message(nowhere, Minimise(good)), HasSubstr("legal"));
}

}  // namespace
}  // namespace refract::partitioner::cut
