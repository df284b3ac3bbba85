#include "placement/loan/loan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "placement/cluster/random.h"

namespace refract::placement {
namespace {

using testing::HasSubstr;

// The published promotion (Prism, NSDI '25, table 3): three services, 140
// slices, training nodes of 8 A100 and 96 cores.
std::string Promotion() {
  std::string jobs;
  for (int i = 0; i < 80; ++i) {
    absl::StrAppend(&jobs, i == 0 ? "" : ",", R"({"name": "job-)", i,
                    R"(", "nodes": ["train-)", i,
                    R"("], "last_checkpoint_s": )", 13 * ((i * 37) % 80), "}");
  }
  return absl::StrCat(R"({
    "services": [
      {"name": "A", "cn": {"instances": 25, "cores": 48},
       "hn": {"instances": 45, "cores": 4, "gpu_part": "2g.20gb"}},
      {"name": "B", "cn": {"instances": 15, "cores": 48},
       "hn": {"instances": 40, "cores": 4, "gpu_part": "2g.20gb"}},
      {"name": "C", "cn": {"instances": 15, "cores": 48},
       "hn": {"instances": 55, "cores": 2, "gpu_part": "2g.20gb"}}],
    "own_nodes": [{"name": "cpu", "count": 28, "cores": 96}],
    "training_nodes": [{"name": "train", "count": 80, "cores": 96, "gpus": 8,
                        "gpu_model": "A100", "free_cores": 1}],
    "jobs": [)",
                      jobs, R"(],
    "peak": {"start_s": 7200, "end_s": 21600, "warm_up_s": 600, "drain_s": 60},
    "dormant": {"ahead_s": 3600, "cores": 0.05},
    "monolith": {"cores": 48}
  })");
}

TEST(Loan, ReproducesThePublishedPromotion) {
  const absl::StatusOr<LoanSpec> spec =
      ParseLoanSpec(Promotion(), "promotion.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<LoanPlan> plan = PlanLoan(*spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->hns.size(), 140u);
  EXPECT_EQ(plan->leases.size(), 6u);
  EXPECT_EQ(plan->monolith_nodes, 70);
  EXPECT_EQ(plan->cns.size(), 55u);
  EXPECT_TRUE(plan->proven);
  // Jobs on one node each: the six youngest checkpoints are the cheapest.
  std::vector<double> costs;
  for (const LenderJob& job : spec->jobs) costs.push_back(StopCost(job, 6600));
  std::sort(costs.begin(), costs.end());
  double cheapest = 0;
  for (int i = 0; i < 6; ++i) cheapest += costs[i];
  EXPECT_DOUBLE_EQ(plan->cost_gpu_s, cheapest);
  // Slices, cores and MIG positions of each node, counted here.
  std::map<int, std::pair<int, int>> on_node;  // slices, cores
  for (const LoanPlacement& placed : plan->hns) {
    ++on_node[placed.node].first;
    on_node[placed.node].second += placed.service == 2 ? 2 : 4;
  }
  EXPECT_EQ(on_node.size(), 6u);
  for (const auto& [node, use] : on_node) {
    EXPECT_LE(use.first, 24);
    EXPECT_LE(use.second, 96);
  }
  // Twenty dormant instances of 0.05 cores fit in the core that training
  // leaves.
  std::map<int, int> dormant;
  for (const LoanPlacement& p : plan->hns) dormant[p.node] += p.dormant;
  for (const auto& [node, count] : dormant) EXPECT_LE(count, 20);
  const nlohmann::json json = nlohmann::json::parse(LoanToJson(*spec, *plan));
  EXPECT_EQ(json["hand_over_s"], 6600);
  EXPECT_EQ(json["give_back_s"], 21660);
  EXPECT_EQ(json["instances"].size(), 195u);
  for (const nlohmann::json& instance : json["instances"]) {
    const bool is_cn =
        instance["name"].get<std::string>().find("-cn-") != std::string::npos;
    EXPECT_EQ(instance["borrowed"], !is_cn);
  }
  // Every node drains before it goes back, and after it served.
  std::map<std::string, std::vector<std::string>> actions;
  double last = -1e18;
  for (const nlohmann::json& event : json["events"]) {
    EXPECT_GE(event["time_s"].get<double>(), last);
    last = event["time_s"].get<double>();
    actions[event["node"]].push_back(event["action"]);
  }
  for (const auto& [node, steps] : actions) {
    EXPECT_EQ(steps, (std::vector<std::string>{"place dormant", "stop jobs",
                                               "give GPUs", "serve", "drain",
                                               "give back"}));
  }
  EXPECT_THAT(LoanToText(*spec, *plan), HasSubstr("91.4 % fewer GPU nodes"));
}

// Times of a calendar, in seconds, and names with commas.
TEST(Loan, TablesKeepEverySecondAndComma) {
  LoanSpec spec;
  spec.start = 1'795'000'600;
  spec.end = 1'795'004'201.5;
  spec.lenders.pods = {"p"};
  spec.lenders.leaves = {{.name = "p"}};
  spec.own = spec.lenders;
  Node node;
  node.name = "rack 1, \"a\"";
  node.cpu_milli = 1000;
  node.gpus = 1;
  node.gpu_model = GpuModelIndex(spec.lenders, "A100");
  AttachEvenly(node, 1);
  spec.lenders.nodes = {node};
  spec.from = {0};
  spec.until = {1e18};
  spec.free_cpu_milli = {1000};
  spec.free_memory_mib = {0};
  LoanService service{.name = "s", .hns = 1};
  service.hn.gpus = 1;
  service.hn.gpu_milli = kWholeGpu;
  spec.services = {service};
  const auto plan = PlanLoan(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(LoanToCsv(spec, *plan),
              HasSubstr("\n1795000300,stop jobs,\"rack 1, \"\"a\"\"\","));
  EXPECT_THAT(LoanToCsv(spec, *plan), HasSubstr("\n1795004201.5,drain,"));
  EXPECT_THAT(LoanToText(spec, *plan),
              HasSubstr("from 1795000300 s to 1795004261.5 s"));
}

// Against every set of nodes. Instances are alike and take one GPU each, so how
// many a node holds is counted, not placed.
TEST(Loan, IsTheCheapestOfAllSets) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    LoanSpec spec;
    spec.start = 10'000;
    spec.end = 20'000;
    spec.lenders.pods = {"p"};
    spec.lenders.leaves = {{.name = "p"}};
    spec.own = spec.lenders;
    const int model = GpuModelIndex(spec.lenders, "A100");
    const int nodes = 3 + static_cast<int>(random.Below(6));
    std::vector<int> holds;
    for (int n = 0; n < nodes; ++n) {
      Node node;
      node.name = absl::StrCat("n", n);
      node.gpus = 1 + static_cast<int>(random.Below(8));
      node.gpu_model = model;
      node.cpu_milli = 1000 * (4 + static_cast<int64_t>(random.Below(30)));
      node.nics = 4;
      AttachEvenly(node, 2);
      spec.lenders.nodes.push_back(node);
      const bool in_time = random.Below(8) != 0;
      spec.from.push_back(in_time ? 0 : 12'000);
      spec.until.push_back(1e9);
      spec.free_cpu_milli.push_back(0);
      spec.free_memory_mib.push_back(0);
      holds.push_back(in_time ? std::min<int>(node.gpus, node.cpu_milli / 4000)
                              : 0);
    }
    const int jobs = 1 + static_cast<int>(random.Below(6));
    for (int j = 0; j < jobs; ++j) {
      LenderJob job{.name = absl::StrCat("j", j)};
      for (int n = 0; n < nodes; ++n) {
        if (random.Below(3) == 0) job.nodes.push_back(n);
      }
      if (job.nodes.empty()) job.nodes.push_back(0);
      for (const int n : job.nodes) job.gpus += spec.lenders.nodes[n].gpus;
      job.last_checkpoint = static_cast<double>(random.Below(9000));
      if (random.Below(2) == 0) job.checkpoint_every = 700;
      spec.jobs.push_back(job);
    }
    int all = 0;
    for (const int held : holds) all += held;
    LoanService service{.name = "s"};
    service.hns = 1 + static_cast<int>(random.Below(std::max(1, all)));
    service.hn.gpus = 1;
    service.hn.gpu_milli = 1000;
    service.hn.cpu_milli = 4000;
    spec.services = {service};
    const absl::StatusOr<LoanPlan> plan = PlanLoan(spec);
    if (all < service.hns) {
      EXPECT_FALSE(plan.ok());
      continue;
    }
    ASSERT_TRUE(plan.ok()) << plan.status();
    double cheapest = 1e18;
    for (int set = 0; set < 1 << nodes; ++set) {
      int held = 0;
      for (int n = 0; n < nodes; ++n) held += set >> n & 1 ? holds[n] : 0;
      if (held < service.hns) continue;
      double cost = 0;
      for (const LenderJob& job : spec.jobs) {
        const bool stops =
            std::any_of(job.nodes.begin(), job.nodes.end(),
                        [&](int n) { return (set >> n & 1) != 0; });
        double age = 9700 - job.last_checkpoint;
        while (job.checkpoint_every > 0 && age >= job.checkpoint_every) {
          age -= job.checkpoint_every;
        }
        if (stops) cost += job.gpus * age;
      }
      cheapest = std::min(cheapest, cost);
    }
    EXPECT_TRUE(plan->proven);
    EXPECT_NEAR(plan->cost_gpu_s, cheapest, 1e-6);
  }
}

TEST(Loan, KeepsServicesInTheirPod) {
  const absl::StatusOr<LoanSpec> spec = ParseLoanSpec(R"({
    "services": [{"name": "a", "pod": "far",
                  "hn": {"instances": 4, "cores": 1}}],
    "training_nodes": [
      {"name": "near", "count": 2, "cores": 8, "gpus": 2, "gpu_model": "A100",
       "pod": "near"},
      {"name": "far", "count": 3, "cores": 8, "gpus": 2, "gpu_model": "A100",
       "pod": "far"}],
    "jobs": [{"name": "big", "nodes": ["far-0"], "last_checkpoint_s": 0},
             {"name": "one", "nodes": ["far-1"], "last_checkpoint_s": 900},
             {"name": "two", "nodes": ["far-2"], "last_checkpoint_s": 950}],
    "peak": {"start_s": 1300, "end_s": 2000}})",
                                                      "loan.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<LoanPlan> plan = PlanLoan(*spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->leases.size(), 2u);
  EXPECT_EQ(spec->lenders.nodes[plan->leases[0].node].name, "far-1");
  EXPECT_EQ(spec->lenders.nodes[plan->leases[1].node].name, "far-2");
  EXPECT_DOUBLE_EQ(plan->cost_gpu_s, 2 * 100 + 2 * 50);
}

// A node without GPUs has no price per GPU that could be compared.
TEST(Loan, LeavesNodesWithoutGpusToTraining) {
  const std::string text = absl::StrReplaceAll(
      Promotion(), {{R"("training_nodes": [)",
                     R"("training_nodes": [{"name": "bare", "count": 9,
                                            "cores": 96},)"}});
  ASSERT_NE(text, Promotion());
  const absl::StatusOr<LoanSpec> spec = ParseLoanSpec(text, "p.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<LoanPlan> plan = PlanLoan(*spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->proven);
  EXPECT_EQ(plan->cost_gpu_s,
            PlanLoan(*ParseLoanSpec(Promotion(), "p.json"))->cost_gpu_s);
}

TEST(Loan, RefusesBadFieldsByName) {
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } cases[] = {
      {"\"end_s\": 21600", "\"end_s\": 7200",
       "peak.end_s: 7200 is not after start_s"},
      {"\"name\": \"B\"", "\"name\": \"A\"",
       "services[1].name: 'A' is there twice"},
      {"\"train-7\"", "\"train-99\"",
       "jobs[7].nodes: 'train-99' is none of training_nodes"},
      {"\"name\": \"cpu\", \"count\": 28", "\"name\": \"cpu\", \"count\": 20",
       "own_nodes: they do not hold all CNs"},
      {"\"name\": \"train\", \"count\": 80",
       "\"name\": \"train\", \"count\": 80, \"until_s\": 20000",
       "training_nodes: the nodes that can be borrowed for the whole time, 0 "
       "of 80"},
      {"\"gpu_part\": \"2g.20gb\"", "\"gpu_part\": \"9g\"",
       "services[0].hn.gpu_part: '9g' is neither"},
      {"\"cores\": 4,", "\"cores\": 200,", "A-hn-0: no node has 200 cores"},
      {"\"warm_up_s\": 600", "\"warm_up_s\": 7000", "last_checkpoint_s: "},
      {"\"gpu_model\": \"A100\"", "\"gpu_model\": \"T4\"", "A-hn-0: "},
  };
  for (const auto& one : cases) {
    const std::string text =
        absl::StrReplaceAll(Promotion(), {{one.from, one.to}});
    ASSERT_NE(text, Promotion()) << one.from;
    const absl::StatusOr<LoanSpec> spec = ParseLoanSpec(text, "p.json");
    const absl::Status status =
        spec.ok() ? PlanLoan(*spec).status() : spec.status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << one.to << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.error));
  }
}

}  // namespace
}  // namespace refract::placement
