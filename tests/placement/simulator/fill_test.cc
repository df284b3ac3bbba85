#include "placement/simulator/fill.h"

#include <time.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "placement/cluster/lists.h"
#include "placement/cluster/random.h"
#include "tests/placement/clusters.h"
#include "tests/placement/traces.h"

namespace refract::placement {
namespace {

TEST(DrawArrivals, AsksForTheGivenPartAndRepeatsBySeed) {
  InstanceList list;
  for (int i = 0; i < 10; ++i) list.instances.push_back(Of(Asks(1, 1)));
  const std::vector<int> drawn = DrawArrivals(list, 20, 1.3, 5);
  EXPECT_EQ(drawn.size(), 26u);
  std::vector<int> counts(10, 0);
  for (const int i : drawn) ++counts[i];
  for (const int count : counts) EXPECT_GE(count, 1);
  EXPECT_EQ(drawn, DrawArrivals(list, 20, 1.3, 5));
  EXPECT_NE(drawn, DrawArrivals(list, 20, 1.3, 6));
}

// Two nodes of one GPU; instances of one GPU and 8 of 16 cores.
TEST(Fill, CountsByHand) {
  ClusterBuilder builder;
  builder.Add(16, 1);
  builder.Add(16, 1);
  InstanceList list;
  list.instances = {Of(Asks(8, 1))};
  const FragmentMeter meter({{{Asks(8, 1), 1.0}}});
  FillOptions options;
  options.placer.policy = Policy::kFgd;
  options.arrival = 2;
  const FillResult result = Fill(builder.cluster(), list, meter, {}, options);
  EXPECT_EQ(result.placed, 2);
  EXPECT_EQ(result.dropped[static_cast<int>(Obstacle::kGpu)], 2);
  EXPECT_EQ(result.unallocated, 0);
  ASSERT_FALSE(result.curve.empty());
  EXPECT_EQ(result.curve[0].allocated, 0);
  EXPECT_EQ(FragmentOf(result.curve[0].fragment), 0);
}

// Processor time of this thread, so that other processes do not count.
double CpuUs() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 +
         static_cast<double>(time.tv_nsec) / 1e3;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Every decision looks at all nodes, and 1 in 20 has a demand that none of the
// decisions before had.
TEST(Fill, DecidesWithinFiveMillisecondsOn10000Nodes) {
  constexpr uint64_t kSeed = 3;
  Random random(kSeed);
  ClusterBuilder builder;
  for (int i = 0; i < 10000; ++i) {
    builder.Add(32 << random.Below(3), 1 << random.Below(4));
  }
  InstanceList list;
  for (int i = 0; i < 200; ++i) {
    Demand demand =
        Asks(1 + static_cast<int>(random.Below(24)), 1,
             random.Below(2) == 0 ? kWholeGpu
                                  : 1 + static_cast<int>(random.Below(999)));
    demand.nic_percent = static_cast<int32_t>(random.Below(26));
    list.instances.push_back(Of(demand));
  }
  const FragmentMeter meter(WorkloadOf(list.instances, {.coverage = 0.5}));
  for (const Policy policy : {Policy::kFgd, Policy::kCombined}) {
    FillOptions options;
    options.placer.policy = policy;
    options.arrival = 0.08;
    options.now_us = CpuUs;
    const FillResult result = Fill(builder.cluster(), list, meter, {}, options);
    std::vector<double> us = result.decisions_us;
    ASSERT_GT(us.size(), 2000u);
    std::sort(us.begin(), us.end());
    const double p99 = us[us.size() * 99 / 100];
    EXPECT_LT(p99, 5000) << Name(policy);
    RecordProperty(std::string(Name(policy)) + "_p99_us", std::to_string(p99));
    std::cout << Name(policy) << ": " << us.size() << " decisions, p99 " << p99
              << " us of CPU time\n";
  }
}
#endif

struct Published {
  Policy policy;
  double unallocated;  // percent
  double tolerance;
};

class V2023Test : public testing::TestWithParam<Published> {};

// Means over seeds 42 to 51 at 130 % arrival, beside those of Weng et al.'s
// artefact. Packing and Clustering have no published figure to meet: their
// schedulers break ties in ways that the paper does not give.
TEST_P(V2023Test, LeavesAsMuchUnallocatedAsPublished) {
  REFRACT_NEED_TRACE(nodes, "alibaba-gpu-v2023/openb_node_list_gpu_node.csv");
  REFRACT_NEED_TRACE(pods, "alibaba-gpu-v2023/openb_pod_list_default.csv");
  auto cluster = ReadNodes(nodes, {});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto list = ReadInstances(pods, *cluster);
  ASSERT_TRUE(list.ok()) << list.status();
  const FragmentMeter meter(WorkloadOf(list->instances, {}));
  double sum = 0;
  constexpr int kSeeds = 10;
  [[maybe_unused]] const double begin_us = CpuUs();  // sanitizers take longer
  for (int seed = 42; seed < 42 + kSeeds; ++seed) {
    FillOptions options;
    options.placer.policy = GetParam().policy;
    options.seed = seed;
    const FillResult result = Fill(*cluster, *list, meter, {}, options);
    sum += 100 * result.unallocated;
    // Fragments grow to all of the free GPU, never beyond.
    for (const FillPoint& point : result.curve) {
      EXPECT_LE(FragmentOf(point.fragment), 1 - point.allocated + 1e-9);
    }
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(CpuUs() - begin_us, 10e6);
#endif
  EXPECT_NEAR(sum / kSeeds, GetParam().unallocated, GetParam().tolerance)
      << Name(GetParam().policy);
}

INSTANTIATE_TEST_SUITE_P(Policies, V2023Test,
                         testing::Values(Published{Policy::kFgd, 4.8, 0.3},
                                         Published{Policy::kBestFit, 7.1, 0.5},
                                         Published{Policy::kRandom, 13.7, 1},
                                         Published{Policy::kDotProd, 9.4, 0.7}),
                         [](const auto& info) {
                           std::string name(Name(info.param.policy));
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace refract::placement
