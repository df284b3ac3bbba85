// The planner's answers against an exhaustive search: random services on
// random nodes are planned, and every number of CNs and HNs of every
// configuration is simulated here, without the planner's search.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "placement/cluster/random.h"
#include "placement/planner/plan.h"
#include "tests/placement/planner/specs.h"

namespace refract::placement {
namespace {

constexpr SizingOptions kSizing = {.seeds = 1, .requests = 1000};
constexpr int kSpecs = 24;
// Instances of each kind that the exhaustive search tries.
constexpr int kMost = 9;

// A random service that few instances serve.
PlanSpec RandomSpec(Random& random) {
  PlanSpec spec = *ParsePlanSpec(kSpecText, "spec.json", TestReaders());
  ServiceSpec& service = spec.services[0];
  const auto between = [&](double least, double most) {
    return least * std::pow(most / least, random.Unit());
  };
  service.monolith.reset();
  service.traffic.curve.clear();
  service.traffic.queries_per_s = between(800, 3500);
  service.traffic.rows = {between(1, 64), between(64, 256), 256};
  service.slo_p99_s = between(0.018, 0.06);
  for (RequestCost& point : service.costs.points) {
    point.cn_pre_s *= between(0.5, 1.5);
    point.hn_s *= between(0.5, 2);
    point.up_bytes *= between(0.2, 4);
  }
  service.costs.cn.sigma = 0.5 * random.Unit();
  service.costs.hn.factors = {0.9, 1, 1, 1 + 2 * random.Unit()};
  service.hn.parallel = 1 + static_cast<int>(random.Below(2));
  // One instance of a kind on a node.
  service.cn.max_per_node = service.hn.max_per_node = 1;
  spec.nodes[0].nic_gbps = between(10, 100);
  spec.nodes[0].price_per_h = between(1, 20);
  spec.nodes[1].price_per_h = between(1, 20);
  return spec;
}

struct Pair {
  int cns = 0;
  int hns = 0;
  double price = std::numeric_limits<double>::infinity();
  std::string configuration;
};

class Exhaustive {
 public:
  Exhaustive(const PlanSpec& spec, double slo_s)
      : spec_(spec), service_(spec.services[0]), slo_s_(slo_s) {}

  bool Meets(const SizingInput& input, int cns, int hns,
             const SizingOptions& sizing = kSizing) const {
    return SimulateRepeatedly(service_.costs, SystemOf(input, cns, hns),
                              LoadOf(service_, DesignRate(service_), sizing),
                              sizing.seeds)
               .p99_s.mean <= slo_s_;
  }
  bool Fits(const SizingInput& input, int cns, int hns) const {
    const auto fits = [](const NodeType& node, const Packing& packing, int n) {
      return node.count < 0 ||
             (n + packing.per_node - 1) / packing.per_node <= node.count;
    };
    return fits(*spec_.FindNode(service_.cn.node), input.cn, cns) &&
           fits(*spec_.FindNode(service_.hn.node), input.hn, hns);
  }
  // Chance makes a short simulation pass now and then: pairs with one more of
  // either kind must pass as well. Queues that grow, because batches of whole
  // requests are smaller than the formulas' batches, show in a long simulation.
  bool MeetsClearly(const SizingInput& input, int cns, int hns) const {
    constexpr SizingOptions kLong = {.seeds = 1, .requests = 20'000};
    return Meets(input, cns, hns) && Meets(input, cns + 1, hns) &&
           Meets(input, cns, hns + 1) && Meets(input, cns, hns, kLong);
  }
  // The cheapest pair of all configurations below the price `limit`.
  Pair Cheapest(double limit) const {
    Pair best;
    best.price = limit;
    for (const Configuration& configuration : ConfigurationsOf(service_)) {
      const SizingInput input = MakeInput(spec_, service_, configuration);
      // Fewer instances than the formula's are busy all the time: their queues
      // grow without end, which a short simulation does not show.
      const AnalyticSizing least = SizeByFormula(input, service_.slo_p99_s);
      const auto from = [](double n) {
        return std::max(1, static_cast<int>(std::ceil(n)));
      };
      for (int cns = from(least.least_cns); cns <= kMost; ++cns) {
        for (int hns = from(least.least_hns); hns <= kMost; ++hns) {
          const double price = cns * input.cn_price + hns * input.hn_price;
          if (price < best.price - 1e-9 && Fits(input, cns, hns) &&
              MeetsClearly(input, cns, hns)) {
            best = {cns, hns, price, Text(configuration)};
          }
        }
      }
    }
    return best;
  }

 private:
  const PlanSpec& spec_;
  const ServiceSpec& service_;
  const double slo_s_;
};

// The plan of a spec, compared with all pairs of numbers; nullopt: no pair
// meets the objective.
std::optional<Answer> Compare(const PlanSpec& spec) {
  const ServiceSpec& service = spec.services[0];
  const Exhaustive exhaustive(spec, service.slo_p99_s);
  absl::StatusOr<Plan> plan =
      MakePlan(spec, {.sizing = kSizing, .samples = 100, .sensitivity = false});
  if (!plan.ok()) {
    EXPECT_TRUE(absl::IsInvalidArgument(plan.status())) << plan.status();
    // Near the p99 of requests that never wait chance decides.
    const Pair found = Exhaustive(spec, 0.9 * service.slo_p99_s)
                           .Cheapest(std::numeric_limits<double>::infinity());
    EXPECT_EQ(found.cns, 0) << found.cns << " CNs and " << found.hns
                            << " HNs meet it: " << plan.status();
    return std::nullopt;
  }
  const Answer& answer = plan->services[0].answer;
  const int cns = answer.sizing.cns;
  const int hns = answer.sizing.hns;
  const SizingInput input =
      MakeInput(spec, service, answer.input.configuration);
  // The plan's numbers meet the objective, and one instance less does not.
  EXPECT_TRUE(exhaustive.Meets(input, cns, hns));
  EXPECT_TRUE(exhaustive.Fits(input, cns, hns));
  if (cns > 1) {
    EXPECT_FALSE(exhaustive.Meets(input, cns - 1, hns));
  }
  if (hns > 1) {
    EXPECT_FALSE(exhaustive.Meets(input, cns, hns - 1));
  }
  // No pair is cheaper.
  const Pair found = exhaustive.Cheapest(answer.sizing.price);
  EXPECT_EQ(found.cns, 0) << cns << " CNs and " << hns << " HNs cost "
                          << answer.sizing.price << ", but " << found.cns
                          << " and " << found.hns << " cost " << found.price
                          << " with " << found.configuration;
  return answer;
}

TEST(BruteForce, AgreesWithThePlan) {
  int planned = 0;
  int several = 0;
  int other_numbers = 0;
  for (uint64_t seed = 1; seed <= kSpecs; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    PlanSpec spec = RandomSpec(random);
    const std::optional<Answer> answer = Compare(spec);
    if (!answer) continue;
    ++planned;
    several += answer->sizing.cns > 1 && answer->sizing.hns > 1;
    // One node less than the answer needs, of the cheaper kind, and no other
    // configuration.
    const bool cheap_cns =
        spec.nodes[0].price_per_h < spec.nodes[1].price_per_h;
    const int nodes = cheap_cns ? answer->cn_nodes : answer->hn_nodes;
    if (nodes == 1) continue;
    spec.nodes[cheap_cns ? 0 : 1].count = nodes - 1;
    const Configuration& configuration = answer->input.configuration;
    spec.services[0].cn.cores = {configuration.cn_cores};
    spec.services[0].hn.parts = {configuration.part};
    spec.services[0].hn.batching_window_us = {configuration.batching_window_us};
    other_numbers += Compare(spec).has_value();
  }
  // The services are neither impossible nor trivial.
  EXPECT_GE(planned, kSpecs * 3 / 4);
  EXPECT_GE(several, kSpecs / 4);
  EXPECT_GE(other_numbers, 2);
}

}  // namespace
}  // namespace refract::placement
