#include "placement/simulator/replay.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "placement/cluster/lists.h"
#include "placement/cluster/stay.h"
#include "placement/simulator/validate.h"
#include "tests/placement/clusters.h"
#include "tests/placement/traces.h"

namespace refract::placement {
namespace {

Instance At(double created, double deleted, const Demand& demand, int app = -1,
            Role role = Role::kHn) {
  Instance instance = Of(demand, app, role);
  instance.name = absl::StrCat("i", created, "-", deleted);
  instance.created = created;
  instance.deleted = deleted;
  return instance;
}

// One GPU. The third instance waits until the first leaves; the fourth gives up
// at the end of its own life.
TEST(Replay, PlacesWaitsAndGivesUpByHand) {
  ClusterBuilder builder;
  builder.Add(16, 1);
  InstanceList list;
  list.instances = {At(kBeforeStart, 100, Asks(4, 1)),
                    At(5, 20, Asks(4, 0), -1, Role::kCn),
                    At(10, kNeverDeleted, Asks(4, 1)), At(30, 60, Asks(4, 1))};
  const FragmentMeter meter({{{Asks(4, 1), 1.0}}});
  ReplayOptions options;
  options.placer.policy = Policy::kFgd;
  options.sample_every_s = 50;
  const ReplayResult result =
      Replay(builder.cluster(), list, meter, {}, options);
  ASSERT_EQ(result.stays.size(), 3u);
  EXPECT_EQ(result.stays[0].from, 0);
  EXPECT_EQ(result.stays[0].to, 100);
  EXPECT_EQ(result.stays[1].instance, 1);
  EXPECT_EQ(result.stays[1].from, 5);
  EXPECT_EQ(result.stays[2].instance, 2);
  EXPECT_EQ(result.stays[2].from, 100);
  EXPECT_EQ(result.waits_s, std::vector<double>{90});
  EXPECT_EQ(result.never_placed, 1);
  EXPECT_EQ(result.obstacles[static_cast<int>(Obstacle::kGpu)], 1);
  // At 0, 50 and 100 s, before the events at these times.
  ASSERT_EQ(result.samples.size(), 3u);
  EXPECT_EQ(result.samples[1].hns, 1);
  EXPECT_EQ(result.samples[1].waiting, 2);
  EXPECT_EQ(result.samples[1].gpu_allocated, 1);
  EXPECT_EQ(result.samples[1].cpu_allocated, 0.25);
  // Between 5 and 20 s, where no sample is.
  EXPECT_EQ(result.most_instances, 2);
  EXPECT_EQ(result.most_cpu_allocated, 0.5);
  EXPECT_EQ(result.most_gpu_allocated, 1);
  EXPECT_TRUE(Validate(builder.cluster(), list, result.stays, {}, 10).empty());
}

// No instance ever leaves: a waiting instance gives up all the same.
// Times of a trace keep their seconds, also as seconds since 1970.
TEST(PlacementsToCsv, KeepsEverySecond) {
  ClusterBuilder builder;
  builder.Add(16, 1);
  InstanceList list;
  list.instances = {At(12537496, 1765432109.5, Asks(4, 1))};
  const std::string csv = PlacementsToCsv(
      builder.cluster(), list,
      {{.instance = 0, .node = 0, .from = 12537496, .to = 1765432109.5}});
  EXPECT_NE(csv.find(",12537496,1765432109.5,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",12537496,1765432109.5\n"), std::string::npos) << csv;
}

TEST(Replay, GivesUpWhereNobodyLeaves) {
  ClusterBuilder builder;
  builder.Add(16, 1);
  InstanceList list;
  list.instances = {At(kBeforeStart, kNeverDeleted, Asks(4, 1)),
                    At(0, 10, Asks(4, 1)), At(20, kNeverDeleted, Asks(4, 0))};
  const FragmentMeter meter({{{Asks(4, 1), 1.0}}});
  ReplayOptions options;
  options.sample_every_s = 5;
  const ReplayResult result =
      Replay(builder.cluster(), list, meter, {}, options);
  EXPECT_EQ(result.never_placed, 1);
  EXPECT_EQ(result.obstacles[static_cast<int>(Obstacle::kGpu)], 1);
  std::vector<int> waiting;  // at 0, 5, … 20 s
  for (const ReplaySample& sample : result.samples) {
    waiting.push_back(sample.waiting);
  }
  EXPECT_EQ(waiting, (std::vector<int>{1, 1, 0, 0, 0}));
}

TEST(TargetsOf, CountsTheMostAtOnce) {
  InstanceList list;
  list.apps = {"a"};
  list.instances = {At(kBeforeStart, 10, Asks(8, 1), 0),
                    At(5, 20, Asks(9, 1), 0), At(10, 30, Asks(8, 1), 0),
                    At(0, 30, Asks(64, 0), 0, Role::kCn)};
  const std::vector<AppTarget> targets = TargetsOf(list);
  EXPECT_EQ(targets[0].by_role[static_cast<int>(Role::kHn)].count, 2);
  EXPECT_EQ(targets[0].by_role[static_cast<int>(Role::kHn)].demand, Asks(8, 1));
  EXPECT_EQ(targets[0].by_role[static_cast<int>(Role::kCn)].count, 1);
}

TEST(BatchOrder, TakesLargeAppsAndTheirHnsFirst) {
  InstanceList list;
  list.apps = {"small", "large"};
  list.instances = {At(-1, 9, Asks(64, 0), 0, Role::kCn),
                    At(-1, 9, Asks(64, 0), 1, Role::kCn),
                    At(-1, 9, Asks(96, 0), 1, Role::kCn),
                    At(-1, 9, Asks(8, 1), 1, Role::kHn)};
  EXPECT_EQ(BatchOrder(list, {0, 1, 2, 3}), (std::vector<int>{3, 2, 1, 0}));
}

// Each rule, broken on purpose.
class ValidateTest : public testing::Test {
 protected:
  ValidateTest() {
    builder_.Add(64, 4);
    builder_.Add(64, 4, builder_.AddLeaf(1));
    list_.apps = {"a"};
  }

  int AddInstance(const Demand& demand) {
    Instance instance = Of(demand, 0, Role::kHn);
    instance.name = absl::StrCat("i", list_.instances.size());
    list_.instances.push_back(instance);
    return static_cast<int>(list_.instances.size()) - 1;
  }
  Stay StayOf(int instance, uint16_t gpus, int node = 0) {
    Stay stay{.instance = instance, .node = node};
    stay.devices.gpus = gpus;
    const Demand& demand = list_.instances[instance].demand;
    stay.devices.socket_cpu_milli[0] = static_cast<int32_t>(demand.cpu_milli);
    if (demand.nic_percent > 0) stay.devices.nic = 0;
    return stay;
  }
  // The text of the only violation; "" if there is none.
  std::string Found(const std::vector<Stay>& stays,
                    const ValidationRules& rules = {}) {
    const auto found = Validate(builder_.cluster(), list_, stays, rules, 10);
    EXPECT_LE(found.size(), 1u);
    return found.empty() ? "" : found[0].text;
  }

  ClusterBuilder builder_;
  InstanceList list_;
};

TEST_F(ValidateTest, FindsEveryBrokenRule) {
  const int whole = AddInstance(Asks(4, 1));
  const int second = AddInstance(Asks(4, 1));
  EXPECT_EQ(Found({StayOf(whole, 1), StayOf(second, 2)}), "");
  EXPECT_NE(Found({StayOf(whole, 1), StayOf(second, 1)}).find("GPU"),
            std::string::npos);
  EXPECT_NE(Found({StayOf(whole, 1), StayOf(second, 1, 1)}, {.pods = true})
                .find("two pods"),
            std::string::npos);
  EXPECT_NE(
      Found({StayOf(whole, 3)}).find("more or fewer GPUs than its demand"),
      std::string::npos);
  EXPECT_NE(Found({StayOf(whole, 1 << 9)}).find("does not exist"),
            std::string::npos);
  EXPECT_NE(Found({StayOf(whole, 1), StayOf(whole, 2)}).find("placed twice"),
            std::string::npos);
  list_.instances[second].max_per_node = 1;
  EXPECT_NE(Found({StayOf(whole, 1), StayOf(second, 2)}).find("density"),
            std::string::npos);

  const int cpu = AddInstance(Asks(33, 0));  // a socket has 32 cores
  EXPECT_NE(Found({StayOf(cpu, 0)}).find("socket"), std::string::npos);

  Demand shares = Asks(1, 1);
  shares.nic_percent = 60;
  const int a = AddInstance(shares);
  const int b = AddInstance(shares);
  EXPECT_NE(Found({StayOf(a, 1), StayOf(b, 2)}).find("a NIC is over"),
            std::string::npos);
  builder_.cluster().leaves[0].uplink_gbps = 100;
  EXPECT_NE(Found({StayOf(a, 1)}, {.leaf_quota = 0.8}).find("quota"),
            std::string::npos);
  Stay without = StayOf(a, 1);
  without.devices.nic = -1;
  EXPECT_NE(Found({without}).find("NIC without a demand"), std::string::npos);
}

TEST_F(ValidateTest, FindsBadMigSlices) {
  const int slice = AddInstance(AsksMig(1, MigProfile::k2g));
  const int other = AddInstance(AsksMig(1, MigProfile::k2g));
  const int half = AddInstance(Asks(1, 1, 500));
  const auto with = [&](int instance, uint8_t slices) {
    Stay stay = StayOf(instance, 1);
    stay.devices.mig_slices = slices;
    return stay;
  };
  EXPECT_EQ(Found({with(slice, 0b11), with(other, 0b1100)}), "");
  EXPECT_NE(Found({with(slice, 0b110)}).find("MIG does not place that profile"),
            std::string::npos);
  EXPECT_NE(Found({with(slice, 0b11), with(other, 0b11)}).find("given twice"),
            std::string::npos);
  EXPECT_NE(Found({with(slice, 0b11), StayOf(half, 1)}).find("shared"),
            std::string::npos);
}

// A departure frees its devices for an arrival at the same time.
TEST_F(ValidateTest, LetsDevicesPassOn) {
  const int first = AddInstance(Asks(4, 1));
  const int second = AddInstance(Asks(4, 1));
  Stay early = StayOf(first, 1);
  early.to = 10;
  Stay late = StayOf(second, 1);
  late.from = 10;
  EXPECT_EQ(Found({early, late}), "");
  late.from = 9;
  EXPECT_NE(Found({early, late}), "");
}

// 23,871 instances on 4,278 nodes, in four pods, with quotas.
TEST(Replay, PlacesTheV2025TraceByAllRules) {
  REFRACT_NEED_TRACE(nodes, "alibaba-gpu-v2026-spot/node_info_df.csv");
  REFRACT_NEED_TRACE(trace, "alibaba-gpu-v2025/disaggregated_DLRM_trace.csv");
  auto cluster = ReadNodes(nodes, {.memory_gib_per_core = 8});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  BuildFabric({.pods = 4, .oversubscription = 2}, *cluster);
  const auto list = ReadInstances(trace, *cluster);
  ASSERT_TRUE(list.ok()) << list.status();
  const FragmentMeter meter(WorkloadOf(list->instances, {}));
  ReplayOptions options;
  options.placer = {.policy = Policy::kCombined,
                    .keep_pod = true,
                    .pack_leaves = true,
                    .leaf_slack = 0.02,
                    .leaf_quota = 0.8};
  const ReplayResult result =
      Replay(*cluster, *list, meter, TargetsOf(*list), options);
  EXPECT_EQ(result.stays.size() + result.never_placed, 23871u);
  EXPECT_EQ(result.never_placed, 0);
  for (const Violation& violation :
       Validate(*cluster, *list, result.stays,
                {.pods = true, .leaf_quota = 0.8}, 10)) {
    ADD_FAILURE() << violation.text;
  }
  // The peak of live instances that the trace's description gives per role,
  // 5,590 and 3,367, is not at one time.
  int most = 0;
  for (const ReplaySample& sample : result.samples) {
    most = std::max(most, sample.cns);
  }
  EXPECT_NEAR(most, 5590, 30);
}

}  // namespace
}  // namespace refract::placement
