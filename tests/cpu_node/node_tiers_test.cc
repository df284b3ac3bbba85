// Near and far GPU nodes under load, in virtual time: the number of requests
// that the node policy sends far, and their cost.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "cpu_node/dispatch/node_policy.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::cpu_node {
namespace {

constexpr int kPerTier = 4;
constexpr absl::Duration kService = absl::Milliseconds(1);
// Each way to a far node, there and back together.
constexpr absl::Duration kFarther = absl::Microseconds(100);

struct Outcome {
  double far_share = 0;
  double mean_ms = 0;
};

// Requests arrive as a Poisson process, `load` times as many as the near nodes
// alone can execute. A node executes one at a time, in order.
Outcome Simulate(double ratio, double load, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(load * kPerTier);
  std::vector<NodeSnapshot> nodes;
  for (int i = 0; i < 2 * kPerTier; ++i) {
    nodes.push_back({.serves = true,
                     .health = transport::PeerState::kReady,
                     .latency = kService,
                     .tier = i < kPerTier ? 1 : 2});
  }
  std::vector<absl::Duration> free(nodes.size());
  using Answer = std::tuple<absl::Duration, size_t, absl::Duration>;
  std::priority_queue<Answer, std::vector<Answer>, std::greater<Answer>>
      answers;
  absl::Duration now;
  absl::Duration total;
  constexpr int kRequests = 40000;
  int far = 0;
  for (int i = 0; i < kRequests; ++i) {
    now += kService * gap(random);
    while (!answers.empty() && std::get<0>(answers.top()) <= now) {
      const auto [when, node, latency] = answers.top();
      answers.pop();
      --nodes[node].in_flight;
      nodes[node].latency = SmoothedLatency(nodes[node].latency, latency);
    }
    const size_t node =
        *ChooseNode(nodes, std::nullopt, random(), random(), ratio);
    const absl::Duration way =
        nodes[node].tier == 1 ? absl::ZeroDuration() : kFarther;
    free[node] = std::max(free[node], now + way / 2) + kService;
    const absl::Duration latency = free[node] + way / 2 - now;
    ++nodes[node].in_flight;
    answers.emplace(now + latency, node, latency);
    far += nodes[node].tier != 1;
    total += latency;
  }
  return {far / double{kRequests},
          absl::ToDoubleMilliseconds(total) / kRequests};
}

// Expected: the same model written in Python, 40,000 requests of one seed.
TEST(NodeTiersTest, FarNodesAreUsedWithTheLoad) {
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  const struct {
    double ratio;
    double load;
    double far_share;
    double mean_ms;
  } kCases[] = {
      {1.5, 0.5, 0.180, 1.02}, {2, 0.2, 0.001, 1.02}, {2, 0.5, 0.072, 1.10},
      {2, 0.9, 0.272, 1.13},   {2, 1.6, 0.435, 1.49}, {3, 0.5, 0.007, 1.15},
  };
  for (const auto& c : kCases) {
    const Outcome outcome = Simulate(c.ratio, c.load, seed);
    EXPECT_NEAR(outcome.far_share, c.far_share, 0.015)
        << "ratio " << c.ratio << ", load " << c.load;
    EXPECT_NEAR(outcome.mean_ms, c.mean_ms, 0.05)
        << "ratio " << c.ratio << ", load " << c.load;
  }
}

TEST(NodeTiersTest, WithoutTiersTheRatioMeansNothing) {
  std::vector<NodeSnapshot> nodes(3, {.serves = true,
                                      .health = transport::PeerState::kReady,
                                      .latency = kService});
  nodes[0].in_flight = 5;
  nodes[2].in_flight = 1;
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100; ++i) {
    const uint64_t a = random();
    const uint64_t b = random();
    EXPECT_EQ(ChooseNode(nodes, std::nullopt, a, b, 1),
              ChooseNode(nodes, std::nullopt, a, b, 1000));
  }
}

}  // namespace
}  // namespace refract::cpu_node
