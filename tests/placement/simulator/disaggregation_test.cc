#include "placement/simulator/disaggregation.h"

#include <vector>

#include "gtest/gtest.h"
#include "placement/cluster/random.h"
#include "tests/placement/clusters.h"

namespace refract::placement {
namespace {

// Means and steps that Prism's sections 2.2 and 5.4 state.
TEST(PublishedPopulations, HaveThePublishedMeans) {
  const Populations populations = PublishedPopulations(true);
  const auto mean_cores = [](const TargetWorkload& workload) {
    double sum = 0;
    double total = 0;
    for (const Shape& shape : workload.shapes) {
      sum +=
          shape.popularity * static_cast<double>(shape.demand.cpu_milli) / 1000;
      total += shape.popularity;
    }
    EXPECT_NEAR(total, 1, 1e-9);
    return sum;
  };
  EXPECT_NEAR(mean_cores(populations.whole), 40.8, 0.5);
  EXPECT_NEAR(mean_cores(populations.hn), 7.6, 0.2);
  EXPECT_NEAR(mean_cores(populations.cn), 56.2, 0.5);
  for (const Shape& shape : populations.cn.shapes) {
    EXPECT_EQ(shape.demand.gpus, 0);
    EXPECT_GE(shape.demand.memory_mib, 240 * 1024);
  }
}

TEST(DrawFrom, FollowsThePopularities) {
  const TargetWorkload workload = {{{Asks(1, 0), 0.25}, {Asks(2, 0), 0.75}}};
  EXPECT_EQ(DrawFrom(workload, 0.2), Asks(1, 0));
  EXPECT_EQ(DrawFrom(workload, 0.26), Asks(2, 0));
  EXPECT_EQ(DrawFrom(workload, 0.9999999), Asks(2, 0));
}

// Two nodes without background. A whole model needs 8 cores and a GPU: node n1
// has cores without a GPU, so a CN of 8 cores uses what a whole model cannot.
TEST(MeasureDisaggregation, GivesTheHandComputedFragments) {
  ClusterBuilder builder;
  builder.Add(6, 1);
  builder.Add(8, 0);
  const Populations populations = {.whole = {{{Asks(8, 1), 1.0}}},
                                   .cn = {{{Asks(8, 0), 1.0}}},
                                   .hn = {{{Asks(4, 1), 1.0}}}};
  BackgroundOptions options;
  options.cpu = 0;
  options.gpu = 0;
  options.placer.policy = Policy::kBestFit;
  const DisaggregationResult result =
      MeasureDisaggregation(builder.cluster(), populations, options);
  EXPECT_EQ(result.cpu_allocated, 0);
  EXPECT_EQ(result.whole_cpu.free, 14);
  EXPECT_EQ(result.whole_cpu.fragment, 14);
  EXPECT_EQ(result.split_cpu.fragment, 6);
  EXPECT_EQ(result.whole_gpu.fragment, 1);
  EXPECT_EQ(result.split_gpu.fragment, 0);
  EXPECT_EQ(result.split_cpu.by_node, (std::vector<double>{0, 1}));
}

TEST(MeasureDisaggregation, ReachesItsGoals) {
  ClusterBuilder builder;
  for (int i = 0; i < 60; ++i) builder.Add(128, i % 4 == 0 ? 8 : 1);
  BackgroundOptions options;
  options.placer.policy = Policy::kBestFit;
  options.cpu = 0.7;
  options.gpu = 0.6;
  const DisaggregationResult result = MeasureDisaggregation(
      builder.cluster(), PublishedPopulations(false), options);
  EXPECT_NEAR(result.cpu_allocated, 0.7, 0.03);
  EXPECT_NEAR(result.gpu_allocated, 0.6, 0.06);
}

}  // namespace
}  // namespace refract::placement
