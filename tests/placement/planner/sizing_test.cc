#include "placement/planner/sizing.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "placement/cluster/random.h"
#include "placement/planner/plan.h"
#include "tests/placement/planner/specs.h"

namespace refract::placement {
namespace {

const SizingOptions kQuick = {.seeds = 2, .requests = 4000};

PlanSpec ReadSpec() {
  return *ParsePlanSpec(kSpecText, "spec.json", TestReaders());
}

TEST(Packing, CountsByHand) {
  const PlanSpec spec = ReadSpec();
  const ServiceSpec& service = spec.services[0];
  // 64 cores ÷ 16 = 4, and 512 GiB ÷ 120 = 4: cores come first.
  const Packing cn = PackCn(spec.nodes[0], service.cn, 16);
  EXPECT_EQ(cn.per_node, 4);
  EXPECT_EQ(cn.bound_by, "cores");
  EXPECT_EQ(cn.nic_percent, 25);
  EXPECT_DOUBLE_EQ(cn.nic_bytes_per_s, 0.25 * 100e9 / 8);
  EXPECT_EQ(PackCn(spec.nodes[0], service.cn, 8).bound_by, "memory");
  // 3 slices of 2g on each of 8 GPUs; 4 NICs for 24 of them.
  const Packing hn = PackHn(spec.nodes[1], service.hn, MigProfile::k2g);
  EXPECT_EQ(hn.per_node, 24);
  EXPECT_EQ(hn.bound_by, "GPUs");
  EXPECT_EQ(hn.nic_percent, 16);
  EXPECT_EQ(PackWhole(spec.nodes[1], *service.monolith).per_node, 8);
  for (const auto& [part, parts] : {std::pair(MigProfile::k1g, 7),
                                    {MigProfile::k2g, 3},
                                    {MigProfile::k3g, 2},
                                    {MigProfile::k4g, 1},
                                    {MigProfile::k7g, 1}}) {
    EXPECT_EQ(PartsPerGpu(part), parts);
  }
}

// A random service on random nodes; one of three is a monolith.
SizingInput RandomInput(Random& random, PlanSpec& spec) {
  ServiceSpec& service = spec.services[0];
  const auto between = [&](double least, double most) {
    return least * std::pow(most / least, random.Unit());
  };
  service.traffic.queries_per_s = between(20, 4000);
  service.traffic.burst = between(1, 2);
  service.traffic.rows = {between(1, 64), between(64, 256), 256};
  service.slo_p99_s = between(0.008, 0.06);
  for (RequestCost& point : service.costs.points) {
    point.cn_pre_s *= between(0.3, 2);
    point.cn_post_s *= between(0.3, 3);
    point.hn_s *= between(0.3, 2);
    point.up_bytes *= between(0.2, 4);
  }
  service.costs.cn.sigma = 0.6 * random.Unit();
  service.costs.hn.factors = {0.9, 1, 1, 1 + 4 * random.Unit()};
  service.hn.parallel = 1 + static_cast<int>(random.Below(2));
  spec.nodes[0].nic_gbps = between(10, 100);
  if (random.Below(3) == 0) {
    return MakeInput(spec, service, {.cn_cores = 16, .whole = true});
  }
  const std::vector<Configuration> all = ConfigurationsOf(service);
  return MakeInput(spec, service, all[random.Below(all.size())]);
}

// The answer meets the objective, and one instance less of either kind does
// not: on random services. The figures are computed again here.
TEST(Sizing, NothingCanBeLeftOut) {
  constexpr SizingOptions kOptions = {.seeds = 1, .requests = 2000};
  int met = 0;
  int larger = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    PlanSpec spec = ReadSpec();
    const SizingInput input = RandomInput(random, spec);
    const ServiceSpec& service = spec.services[0];
    const Sizing sizing = Size(input, kOptions);
    if (!sizing.met) {
      // Impossible also where requests do not wait.
      EXPECT_GT(sizing.idle_p99_s, 0.9 * service.slo_p99_s) << sizing.why_not;
      continue;
    }
    ++met;
    const auto p99_s = [&](int cns, int hns) {
      return SimulateRepeatedly(service.costs, SystemOf(input, cns, hns),
                                LoadOf(service, DesignRate(service), kOptions),
                                kOptions.seeds)
          .p99_s.mean;
    };
    const int cns = sizing.cns;
    const int hns = sizing.hns;
    EXPECT_LE(p99_s(cns, hns), service.slo_p99_s);
    EXPECT_EQ(sizing.result.p99_s.mean, p99_s(cns, hns));
    EXPECT_EQ(cns > 1, sizing.one_cn_less.has_value());
    if (input.configuration.whole) {
      ASSERT_EQ(cns, hns);
      if (cns - 1 >= sizing.analytic.least_cns) {
        EXPECT_GT(p99_s(cns - 1, hns - 1), service.slo_p99_s);
      }
    } else {
      EXPECT_EQ(hns > 1, sizing.one_hn_less.has_value());
      if (cns - 1 >= sizing.analytic.least_cns) {
        EXPECT_GT(p99_s(cns - 1, hns), service.slo_p99_s);
      }
      if (hns - 1 >= sizing.analytic.least_hns) {
        EXPECT_GT(p99_s(cns, hns - 1), service.slo_p99_s);
      }
    }
    larger += cns > 1 && hns > 1;
    // At least the numbers that keep every resource busy all the time.
    EXPECT_GE(cns, sizing.analytic.least_cns);
    EXPECT_GE(hns, sizing.analytic.least_hns);
  }
  // The services are neither impossible nor trivial.
  EXPECT_GE(met, 20);
  EXPECT_GE(larger, 4);
}

// Against every pair of numbers up to a bound.
TEST(Sizing, FindsTheCheapestPairOfASmallService) {
  PlanSpec spec = ReadSpec();
  ServiceSpec& service = spec.services[0];
  service.traffic.queries_per_s = 1500;
  service.traffic.burst = 1;
  for (const double slo_ms : {14.0, 20.0, 40.0}) {
    service.slo_p99_s = slo_ms / 1e3;
    const SizingInput input =
        MakeInput(spec, service, {.cn_cores = 8, .part = {}});
    const Sizing sizing = Size(input, kQuick);
    ASSERT_TRUE(sizing.met) << sizing.why_not;
    double cheapest = 1e9;
    for (int cns = 1; cns <= 6; ++cns) {
      for (int hns = 1; hns <= 8; ++hns) {
        const double p99 =
            SimulateRepeatedly(service.costs, SystemOf(input, cns, hns),
                               LoadOf(service, 1500, kQuick), kQuick.seeds)
                .p99_s.mean;
        if (p99 > service.slo_p99_s) continue;
        cheapest =
            std::min(cheapest, cns * input.cn_price + hns * input.hn_price);
      }
    }
    EXPECT_NEAR(sizing.price, cheapest, 1e-9) << slo_ms;
  }
}

TEST(Sizing, SaysThatAnIdleDeploymentIsTooSlow) {
  PlanSpec spec = ReadSpec();
  spec.services[0].slo_p99_s = 0.004;
  const Sizing sizing =
      Size(MakeInput(spec, spec.services[0], {.cn_cores = 8}), kQuick);
  EXPECT_FALSE(sizing.met);
  EXPECT_NE(sizing.why_not.find("idle"), std::string::npos);
}

// The p99 of a request that never waits, measured once, says nothing about the
// mean of several measurements.
TEST(Sizing, RefusesMoreInstancesThanASimulationHolds) {
  PlanSpec spec = ReadSpec();
  spec.services[0].traffic.queries_per_s = 1e9;
  const SizingInput input =
      MakeInput(spec, spec.services[0], ConfigurationsOf(spec.services[0])[0]);
  const Sizing sizing = Size(input, kQuick);
  EXPECT_FALSE(sizing.met);
  EXPECT_NE(sizing.why_not.find("more than a simulation holds"),
            std::string::npos)
      << sizing.why_not;
}

TEST(Sizing, EndsWhereTheObjectiveIsThatOfAnIdleDeployment) {
  PlanSpec spec = ReadSpec();
  ServiceSpec& service = spec.services[0];
  service.costs.cn.sigma = 1;
  for (const uint64_t seed : {1, 2, 3, 4}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const SizingOptions options = {
        .seeds = 2, .first_seed = seed, .requests = 2000};
    const SizingInput input = MakeInput(spec, service, {.cn_cores = 8});
    service.slo_p99_s = IdleP99(service.costs, SystemOf(input, 1, 1),
                                LoadOf(service, 4000, options));
    const Sizing sizing = Size(input, options);
    EXPECT_LT(sizing.cns, 10'000);
    EXPECT_EQ(sizing.met, sizing.why_not.empty()) << sizing.why_not;
  }
}

TEST(Knee, IsWhereTheObjectiveIsLeft) {
  const PlanSpec spec = ReadSpec();
  const ServiceSpec& service = spec.services[0];
  const SizingInput input = MakeInput(spec, service, {.cn_cores = 16});
  const Sizing sizing = Size(input, kQuick);
  ASSERT_TRUE(sizing.met);
  const double knee =
      FindKnee(input, sizing.cns, sizing.hns, DesignRate(service), kQuick);
  EXPECT_GE(knee, DesignRate(service));
  const auto p99 = [&](double rate) {
    return SimulateRepeatedly(service.costs,
                              SystemOf(input, sizing.cns, sizing.hns),
                              LoadOf(service, rate, kQuick), kQuick.seeds)
        .p99_s.mean;
  };
  EXPECT_LE(p99(knee), service.slo_p99_s);
  EXPECT_GT(p99(knee * 1.05), service.slo_p99_s);
}

// A thousandth of what one CN and one HN carry is still no bound for the knee.
TEST(Knee, IsFoundFarFromThePlan) {
  PlanSpec spec = ReadSpec();
  ServiceSpec& service = spec.services[0];
  service.traffic.queries_per_s = 0.01;
  service.traffic.burst = 1;
  const SizingInput input = MakeInput(spec, service, {.cn_cores = 8});
  // 8 workers at 5.3 ms, and an HN at 2 ms.
  const double knee = FindKnee(input, 1, 1, 0.01, kQuick);
  EXPECT_GT(knee, 300);
  EXPECT_LT(knee, 500);
}

// 1,001 requests a second of 10 ms need 10.01 cores. With 10 cores a queue
// grows by a request a second: an objective of 2 s holds for half an hour and
// is then missed.
TEST(Sizing, OverloadedInstancesMeetNoObjective) {
  PlanSpec spec = ReadSpec();
  ServiceSpec& service = spec.services[0];
  service.costs = {.points = {{.rows = 1, .cn_pre_s = 0.01, .hn_s = 1e-6}}};
  service.traffic.queries_per_s = 1001;
  service.traffic.burst = 1;
  service.slo_p99_s = 2;
  const SizingInput input = MakeInput(spec, service, {.cn_cores = 1});
  const Sizing sizing = Size(input, kQuick);
  ASSERT_TRUE(sizing.met) << sizing.why_not;
  EXPECT_EQ(sizing.cns, 11);
  EXPECT_LE(FindKnee(input, sizing.cns, sizing.hns, 1001, kQuick), 1100);
}

// Seven requests of 270 rows fill a batch of 2,048: the cheapest batch is not a
// power of two of them.
TEST(Sizing, LeastHnsAreThoseOfTheCheapestBatch) {
  PlanSpec spec = ReadSpec();
  ServiceSpec& service = spec.services[0];
  service.costs = {
      .points = {{.rows = 270, .cn_pre_s = 1e-4, .hn_s = 1e-3},
                 {.rows = 2048, .cn_pre_s = 1e-4, .hn_s = 1.02e-3}}};
  service.traffic.rows = {270};
  service.traffic.queries_per_s = 10000;
  service.traffic.burst = 1;
  service.slo_p99_s = 0.03;
  service.hn.max_batch_rows = 2048;
  const SizingInput input =
      MakeInput(spec, service, {.cn_cores = 16, .batching_window_us = 300});
  const Sizing sizing = Size(input, kQuick);
  ASSERT_TRUE(sizing.met) << sizing.why_not;
  EXPECT_NEAR(sizing.analytic.least_hns, 10000 * 1.02e-3 * 270 / 2048, 1e-9);
  // Batches of seven: 10,000 ÷ 7 × 1.02 ms = 1.46 HNs.
  EXPECT_EQ(sizing.hns, 2);
}

// The search leaves out configurations, but not the cheapest.
TEST(Plan, SearchFindsWhatTryingAllFinds) {
  const PlanSpec spec = ReadSpec();
  const ServiceSpec& service = spec.services[0];
  PlanOptions options{.sizing = kQuick, .samples = 100, .sensitivity = false};
  const absl::StatusOr<Plan> plan = MakePlan(spec, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const ServicePlan& found = plan->services[0];
  EXPECT_TRUE(found.proven);
  double cheapest = 1e9;
  for (const Configuration& configuration : ConfigurationsOf(service)) {
    const Sizing sizing = Size(MakeInput(spec, service, configuration), kQuick);
    if (sizing.met) cheapest = std::min(cheapest, sizing.price);
  }
  EXPECT_DOUBLE_EQ(found.answer.sizing.price, cheapest);
  // Nodes, knee, day and monolith are there and consistent.
  const Answer& answer = found.answer;
  EXPECT_EQ(answer.cn_nodes,
            (answer.sizing.cns + answer.input.cn.per_node - 1) /
                answer.input.cn.per_node);
  EXPECT_GE(answer.knee, DesignRate(service));
  ASSERT_EQ(found.day.size(), 4u);
  EXPECT_EQ(found.day[2].cns, answer.sizing.cns);
  EXPECT_LT(found.day[0].cns, answer.sizing.cns);
  ASSERT_TRUE(found.monolith.has_value()) << found.why_no_monolith;
  EXPECT_LE(found.monolith->sizing.result.p99_s.mean, service.slo_p99_s);
  EXPECT_GT(found.monolith->sizing.one_cn_less->p99_s.mean, service.slo_p99_s);
  const Deployment deployment = DeploymentOf(spec, *plan);
  EXPECT_TRUE(Check(deployment).ok()) << Check(deployment);
  ASSERT_EQ(deployment.services.size(), 2u);
  EXPECT_EQ(deployment.services[0].replicas, answer.sizing.cns);
  EXPECT_EQ(deployment.services[0].node_labels[0].first, "pool");
}

// A node of eight GPUs holds the single HNs of two services.
TEST(Plan, ServicesShareNodes) {
  PlanSpec spec = ReadSpec();
  ServiceSpec& service = spec.services[0];
  service.traffic.queries_per_s = 10;
  service.monolith.reset();
  spec.services.push_back(service);
  spec.services[1].name = "second";
  spec.nodes[1].count = 1;
  const absl::StatusOr<Plan> plan =
      MakePlan(spec, {.sizing = kQuick, .sensitivity = false});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->nodes[0].nodes, 1);
  EXPECT_EQ(plan->nodes[1].nodes, 1);
  EXPECT_DOUBLE_EQ(plan->price_per_h, 3 + 24);
  // A CN that may have no other CN beside it takes a node.
  spec.services[0].cn.max_per_node = spec.services[1].cn.max_per_node = 1;
  const absl::StatusOr<Plan> alone =
      MakePlan(spec, {.sizing = kQuick, .sensitivity = false});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->nodes[0].nodes, 2);
}

TEST(Plan, SaysWhichResourceBinds) {
  PlanSpec spec = ReadSpec();
  spec.nodes[1].count = 0;
  PlanOptions options{.sizing = kQuick, .sensitivity = false};
  absl::Status status = MakePlan(spec, options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("nodes 'gpu', there are 0; GPUs bind"),
            std::string::npos)
      << status;
  spec = ReadSpec();
  spec.services[0].slo_p99_s = 0.004;
  status = MakePlan(spec, options).status();
  const std::string message(status.message());
  EXPECT_THAT(message, testing::HasSubstr("'ranker': slo.p99_ms: 4: no number "
                                          "of nodes meets it; closest are "));
  // The message names a whole GPU: on a slice requests take longer.
  EXPECT_THAT(message, testing::HasSubstr("cores, whole GPU, "));
  EXPECT_THAT(message, testing::HasSubstr(": an idle deployment has p99 "))
      << status;
}

}  // namespace
}  // namespace refract::placement
