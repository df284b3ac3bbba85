#include "placement/fragmentation/fragmentation.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "placement/cluster/lists.h"
#include "placement/cluster/random.h"
#include "tests/placement/clusters.h"
#include "tests/placement/traces.h"

namespace refract::placement {
namespace {

// The definition of FGD, section 3.2, word for word and without MIG: another
// computation than that of FragmentMeter.
double Definition(const Node& node, const NodeFree& free,
                  const TargetWorkload& workload) {
  double sum = 0;
  double all = 0;
  double whole = 0;
  double largest_part = 0;
  for (int i = 0; i < node.gpus; ++i) {
    const double r = free.gpu_milli[i] / 1000.0;
    all += r;
    if (r == 1) {
      whole += 1;
    } else {
      largest_part = std::max(largest_part, r);
    }
  }
  for (const Shape& m : workload.shapes) {
    const double wanted = m.demand.gpus * m.demand.gpu_milli / 1000.0;
    const bool other_model = m.demand.gpu_models != 0 &&
                             (m.demand.gpu_models >> node.gpu_model & 1) == 0;
    double f = 0;
    if (wanted == 0 || other_model || m.demand.cpu_milli > free.cpu_milli ||
        m.demand.memory_mib > free.memory_mib ||
        wanted > whole + largest_part) {
      f = all;
    } else {
      for (int i = 0; i < node.gpus; ++i) {
        const double r = free.gpu_milli[i] / 1000.0;
        if (r < std::min(wanted, 1.0)) f += r;
      }
    }
    sum += m.popularity * f;
  }
  return sum * 1000;
}

TEST(FragmentMeter, GivesTheHandComputedTable) {
  ClusterBuilder builder;
  const Node node = builder.Add(16, 4);
  NodeFree free = AllFree(node);
  free.cpu_milli = 8000;
  free.gpu_milli = {1000, 1000, 400, 0};
  struct Case {
    Demand demand;
    double gpu_milli;
    double cpu_milli;
    Cause cause;
  };
  const std::vector<Case> cases = {
      {Asks(4, 0), 2400, 0, Cause::kNoGpuWanted},
      {Asks(4, 1, 300), 0, 0, Cause::kGpu},    // fits on the part as well
      {Asks(4, 1, 500), 400, 0, Cause::kGpu},  // the part is too small
      {Asks(4, 2), 400, 0, Cause::kGpu},
      {Asks(4, 4), 2400, 8000, Cause::kGpu},
      {Asks(12, 1), 2400, 8000, Cause::kCpu},
      {Asks(12, 4), 2400, 8000, Cause::kGpuAndCpu},
  };
  for (const Case& c : cases) {
    const FragmentMeter meter({{{c.demand, 1.0}}});
    const Fragments fragments = meter.Measure(node, free);
    EXPECT_DOUBLE_EQ(fragments.gpu_milli, c.gpu_milli)
        << c.demand.cpu_milli << " " << c.demand.gpus;
    EXPECT_DOUBLE_EQ(fragments.cpu_milli, c.cpu_milli);
    EXPECT_DOUBLE_EQ(
        meter.GpuMilliByCause(node, free)[static_cast<int>(c.cause)],
        c.gpu_milli);
  }
}

TEST(FragmentMeter, SeesMemoryModelAndMig) {
  ClusterBuilder builder;
  Node node = builder.Add(16, 2);
  node.memory_mib = 1000;
  NodeFree free = AllFree(node);
  Demand large = Asks(1, 1);
  large.memory_mib = 2000;
  EXPECT_EQ(FragmentMeter({{{large, 1.0}}})
                .GpuMilliByCause(node, free)[static_cast<int>(Cause::kMemory)],
            2000);
  Demand other = Asks(1, 1);
  other.gpu_models = 2;
  EXPECT_EQ(
      FragmentMeter({{{other, 1.0}}})
          .GpuMilliByCause(node, free)[static_cast<int>(Cause::kGpuModel)],
      2000);
  // GPU 0 has one 1g slice in its last quarter: a 4g fits, a 7g does not.
  free.mig_used[0] = 0b01000000;
  free.gpu_milli[0] = 875;
  const auto fragment = [&](const Demand& demand) {
    return FragmentMeter({{{demand, 1.0}}}).Measure(node, free).gpu_milli;
  };
  EXPECT_EQ(fragment(AsksMig(1, MigProfile::k4g)), 0);
  EXPECT_EQ(fragment(AsksMig(1, MigProfile::k7g)), 875);
  EXPECT_EQ(fragment(Asks(1, 1, 500)), 875);  // no sharing in MIG mode
  EXPECT_EQ(fragment(Asks(1, 2)), 1875);
}

TEST(FragmentMeter, EqualsTheDefinitionOnRandomNodes) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  ClusterBuilder builder;
  for (int round = 0; round < 300; ++round) {
    TargetWorkload workload;
    const int shapes = 1 + static_cast<int>(random.Below(12));
    for (int i = 0; i < shapes; ++i) {
      const int gpus = static_cast<int>(random.Below(5));
      Demand demand = Asks(static_cast<int>(random.Below(20)), gpus,
                           gpus == 1 && random.Below(2) == 0
                               ? 1 + static_cast<int>(random.Below(999))
                               : kWholeGpu);
      if (random.Below(3) == 0) {
        demand.memory_mib = static_cast<int64_t>(random.Below(100));
      }
      if (gpus > 0 && random.Below(4) == 0) {
        demand.gpu_models = 1 + random.Below(3);
      }
      workload.shapes.push_back({demand, 1.0 / shapes});
    }
    Node node = builder.Add(16, static_cast<int>(random.Below(9)), 0,
                            random.Below(2) == 0 ? "A100" : "T4");
    if (node.gpus == 0) continue;
    NodeFree free = AllFree(node);
    free.cpu_milli = static_cast<int64_t>(random.Below(17)) * 1000;
    free.memory_mib = static_cast<int64_t>(random.Below(100));
    for (int i = 0; i < node.gpus; ++i) {
      const uint64_t kind = random.Below(3);
      free.gpu_milli[i] = kind == 0 ? 0
                          : kind == 1
                              ? 1000
                              : static_cast<int16_t>(random.Below(1000));
    }
    const FragmentMeter meter(workload);
    const double expected = Definition(node, free, workload);
    EXPECT_NEAR(meter.Measure(node, free).gpu_milli, expected, 1e-6);
    double sum = 0;
    for (const double cause : meter.GpuMilliByCause(node, free)) sum += cause;
    EXPECT_NEAR(sum, expected, 1e-6);
  }
}

TEST(WorkloadOf, KeepsTheMostFrequentShapes) {
  std::vector<Instance> instances(100, Of(Asks(4, 1)));
  for (int i = 0; i < 30; ++i) instances[i] = Of(Asks(8, 0));
  for (int i = 30; i < 35; ++i) instances[i] = Of(Asks(9, 2));
  const TargetWorkload most = WorkloadOf(instances, {.coverage = 0.95});
  ASSERT_EQ(most.shapes.size(), 2u);  // 65 + 30 of 100
  EXPECT_EQ(most.shapes[0].demand, Asks(4, 1));
  EXPECT_DOUBLE_EQ(most.shapes[0].popularity, 65.0 / 95);
  EXPECT_EQ(WorkloadOf(instances, {.coverage = 1}).shapes.size(), 3u);
}

// Weng et al. publish 13.88 %; all of it is due to pods without GPU.
TEST(FragmentMeter, GivesThePublishedFragmentOfTheEmptyV2023Cluster) {
  REFRACT_NEED_TRACE(nodes, "alibaba-gpu-v2023/openb_node_list_gpu_node.csv");
  REFRACT_NEED_TRACE(pods, "alibaba-gpu-v2023/openb_pod_list_default.csv");
  auto cluster = ReadNodes(nodes, {});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto list = ReadInstances(pods, *cluster);
  ASSERT_TRUE(list.ok()) << list.status();
  const TargetWorkload workload = WorkloadOf(list->instances, {});
  EXPECT_EQ(workload.shapes.size(), 35u);
  const FragmentMeter meter(workload);
  double fragment = 0;
  double by_definition = 0;
  for (const Node& node : cluster->nodes) {
    fragment += meter.Measure(node, AllFree(node)).gpu_milli;
    by_definition += Definition(node, AllFree(node), workload);
  }
  const double capacity = 1000.0 * static_cast<double>(cluster->TotalGpus());
  EXPECT_NEAR(100 * fragment / capacity, 13.9, 0.2);
  EXPECT_NEAR(fragment, by_definition, 1e-3);
}

}  // namespace
}  // namespace refract::placement
