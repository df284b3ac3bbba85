#include "partitioner/cut/max_flow.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "boost/graph/adjacency_list.hpp"
#include "boost/graph/push_relabel_max_flow.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::partitioner::cut {
namespace {

using testing::HasSubstr;

// Solves `network` with a new solver. nullopt: every cut contains an infinite
// arc.
absl::StatusOr<std::optional<MinCut>> SolveMinCut(const FlowNetwork& network) {
  FlowSolver solver(network);
  REFRACT_ASSIGN_OR_RETURN(const MinCut* const cut, solver.Solve());
  if (cut == nullptr) return std::nullopt;
  return *cut;
}

// Capacity of the arcs from the source's to the sink's side, by definition;
// kInfinite or more when one of them must not be cut.
Cost CapacityOf(const FlowNetwork& network, unsigned source_side) {
  __int128 capacity = 0;
  const auto on_source_side = [&](int v) {
    return (source_side >> v & 1) != 0;
  };
  for (int v = 0; v < network.num_vertices(); ++v) {
    capacity +=
        on_source_side(v) ? network.to_sink()[v] : network.from_source()[v];
  }
  for (const FlowNetwork::Arc& arc : network.arcs()) {
    if (on_source_side(arc.from) && !on_source_side(arc.to)) {
      capacity += arc.capacity;
    }
    if (on_source_side(arc.to) && !on_source_side(arc.from)) {
      capacity += arc.reverse_capacity;
    }
  }
  return static_cast<Cost>(std::min<__int128>(capacity, kInfinite));
}

FlowNetwork RandomNetwork(std::mt19937& random) {
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random);
  };
  const Cost scale = below(2) == 0 ? 1 : kMaxFinite / 4000;
  const auto capacity = [&]() -> Cost {
    const int kind = below(10);
    return kind == 0 ? kInfinite : kind < 3 ? 0 : below(12) * scale;
  };
  FlowNetwork network(1 + below(7));
  if (below(2) == 0) network.AddVertex();
  for (int v = 0; v < network.num_vertices(); ++v) {
    network.PayOnSinkSide(v, capacity());
    network.PayOnSourceSide(v, capacity());
    if (below(3) == 0) network.PayOnSinkSide(v, below(5));
  }
  const int num_arcs = below(16);
  for (int a = 0; a < num_arcs; ++a) {
    const int from = below(network.num_vertices());
    const int to = below(network.num_vertices());
    if (from != to) network.AddArc(from, to, capacity(), capacity());
  }
  return network;
}

TEST(MaxFlowTest, FindsTheSmallestOfTheLeastCuts) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  int uncuttable = 0;
  for (int round = 0; round < 20000; ++round) {
    const FlowNetwork network = RandomNetwork(random);
    Cost least = kInfinite;
    int fewest = 0;
    for (unsigned side = 0; side < 1u << network.num_vertices(); ++side) {
      const Cost capacity = CapacityOf(network, side);
      const int size = __builtin_popcount(side);
      if (capacity < least || (capacity == least && size < fewest)) {
        least = capacity;
        fewest = size;
      }
    }
    const absl::StatusOr<std::optional<MinCut>> cut = SolveMinCut(network);
    ASSERT_TRUE(cut.ok()) << cut.status() << ", seed " << seed;
    ASSERT_EQ(cut->has_value(), least < kInfinite) << "seed " << seed;
    if (!*cut) {
      ++uncuttable;
      continue;
    }
    ASSERT_EQ((*cut)->value, least) << "seed " << seed;
    const std::vector<bool>& side = (*cut)->on_source_side;
    ASSERT_EQ(std::count(side.begin(), side.end(), true), fewest)
        << "seed " << seed;
  }
  EXPECT_GT(uncuttable, 500);
  EXPECT_LT(uncuttable, 19000);
}

// Capacities in place of those that `network` has, some of them as they were.
void Reprice(std::mt19937& random, Cost scale, FlowNetwork& network) {
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random);
  };
  const auto capacity = [&]() -> Cost {
    const int kind = below(12);
    return kind == 0 ? kInfinite : kind < 3 ? 0 : below(1000) * scale;
  };
  network.ForgetPayments();
  for (int v = 0; v < network.num_vertices(); ++v) {
    network.PayOnSinkSide(v, below(2) == 0 ? capacity() : 0);
    network.PayOnSourceSide(v, below(2) == 0 ? capacity() : 0);
  }
  for (size_t a = 0; a < network.arcs().size(); ++a) {
    if (below(3) == 0) {
      network.SetArc(static_cast<int>(a), capacity(), capacity());
    }
  }
}

// Boost's solver on the same network, which has a finite cut: another program,
// another order of work.
Cost FlowByBoost(const FlowNetwork& network) {
  using Traits =
      boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  using Graph = boost::adjacency_list<
      boost::vecS, boost::vecS, boost::directedS, boost::no_property,
      boost::property<
          boost::edge_capacity_t, Cost,
          boost::property<boost::edge_residual_capacity_t, Cost,
                          boost::property<boost::edge_reverse_t,
                                          Traits::edge_descriptor>>>>;
  const size_t source = network.num_vertices();
  const size_t sink = source + 1;
  Graph graph(network.num_vertices() + 2);
  // No least cut contains an arc that costs more than all finite arcs together.
  // Boost adds up what arrives at a vertex, and kInfinite would overflow there.
  Cost infinite = 1;
  const auto count = [&](Cost capacity) {
    if (capacity < kInfinite) infinite += capacity;
  };
  for (const Cost capacity : network.from_source()) count(capacity);
  for (const Cost capacity : network.to_sink()) count(capacity);
  for (const FlowNetwork::Arc& arc : network.arcs()) {
    count(arc.capacity);
    count(arc.reverse_capacity);
  }
  // Boost takes an edge of no capacity for the reverse of another edge.
  const auto add = [&](size_t from, size_t to, Cost capacity) {
    const auto forward = boost::add_edge(from, to, graph).first;
    const auto reverse = boost::add_edge(to, from, graph).first;
    boost::put(boost::edge_capacity, graph, forward,
               std::min(capacity, infinite));
    boost::put(boost::edge_capacity, graph, reverse, 0);
    boost::put(boost::edge_reverse, graph, forward, reverse);
    boost::put(boost::edge_reverse, graph, reverse, forward);
  };
  for (int v = 0; v < network.num_vertices(); ++v) {
    add(source, v, network.from_source()[v]);
    add(v, sink, network.to_sink()[v]);
  }
  for (const FlowNetwork::Arc& arc : network.arcs()) {
    add(arc.from, arc.to, arc.capacity);
    add(arc.to, arc.from, arc.reverse_capacity);
  }
  return boost::push_relabel_max_flow(graph, source, sink);
}

// Starting from the flow of another pricing must change neither the value nor
// the side that is chosen of equal cuts.
TEST(MaxFlowTest, SolvesAgainAsIfAnew) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random);
  };
  int solved = 0;
  for (int round = 0; round < 60; ++round) {
    const int count = 2 + below(200);
    FlowNetwork network(count);
    for (int a = 0; a < 3 * count; ++a) {
      // Mostly near, so that paths are long.
      const int from = below(count);
      const int to = std::clamp(from + below(9) - 4, 0, count - 1);
      if (from != to) network.AddArc(from, to, below(1000), below(1000));
    }
    FlowSolver solver(network);
    for (int pricing = 0; pricing < 12; ++pricing) {
      const int scale = below(20);
      Reprice(random, Cost{1} << scale, network);
      const absl::StatusOr<const MinCut*> again = solver.Solve(scale);
      ASSERT_TRUE(again.ok()) << again.status();
      const absl::StatusOr<std::optional<MinCut>> anew = SolveMinCut(network);
      ASSERT_TRUE(anew.ok()) << anew.status();
      ASSERT_EQ(*again != nullptr, anew->has_value());
      if (*again == nullptr) continue;
      ++solved;
      ASSERT_EQ((*again)->value, (*anew)->value);
      ASSERT_EQ((*again)->on_source_side, (*anew)->on_source_side);
      ASSERT_EQ((*again)->value, FlowByBoost(network));
    }
  }
  EXPECT_GT(solved, 100);
}

// Flows of other units, each as large as capacities may be, that meet at one
// vertex: more than 64 bits hold.
TEST(MaxFlowTest, SolvesAgainInAnotherUnit) {
  for (const int paths : {4, 9, 40}) {
    SCOPED_TRACE(testing::Message() << paths << " paths");
    // Where they meet, the middle of each, the beginning of each.
    FlowNetwork network(1 + 2 * paths);
    for (int i = 1; i <= paths; ++i) {
      network.AddArc(i, 0, kInfinite);
      network.AddArc(i + paths, i, kInfinite);
    }
    const auto price = [&](Cost at_source, Cost at_sink) {
      network.ForgetPayments();
      for (int i = 1; i <= paths; ++i) {
        network.PayOnSinkSide(i + paths, at_source);
        network.PayOnSourceSide(i, at_sink);
      }
    };
    FlowSolver solver(network);
    price((Cost{1} << 58) / paths, (Cost{1} << 58) / paths);
    ASSERT_TRUE(solver.Solve().ok());
    price(1000, 500);
    network.PayOnSourceSide(0, 300);
    const absl::StatusOr<const MinCut*> again = solver.Solve(12);
    ASSERT_TRUE(again.ok()) << again.status();
    // All that the sinks take: of 1000 each, 500 and together 300 more.
    EXPECT_EQ((*again)->value, 500 * paths + 300);
    EXPECT_EQ((*again)->value, FlowByBoost(network));
  }
}

// A certificate must not pass when anything about it is wrong.
TEST(MaxFlowTest, CertificateFindsEveryError) {
  FlowNetwork network(3);
  network.PayOnSinkSide(0, 7);
  network.PayOnSourceSide(2, 5);
  network.PayOnSourceSide(1, 1);
  network.AddArc(0, 1, 4);
  network.AddArc(1, 2, 3, 2);
  network.AddArc(0, 2, 1);
  const absl::StatusOr<std::optional<MinCut>> solved = SolveMinCut(network);
  ASSERT_TRUE(solved.ok() && *solved) << solved.status();
  const MinCut good = **solved;
  ASSERT_EQ(good.value, 5);
  ASSERT_TRUE(CheckCertificate(network, good).ok());

  const auto complaint = [&](MinCut bad) {
    const absl::Status status = CheckCertificate(network, bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  MinCut bad = good;
  bad.value = 4;
  EXPECT_THAT(complaint(bad), HasSubstr("flow 0: 5 instead of 4"));
  bad = good;
  bad.on_source_side = {true, true, true};
  EXPECT_THAT(complaint(bad), HasSubstr("capacity"));
  bad = good;
  bad.arcs[0] = 5;
  EXPECT_THAT(complaint(bad), HasSubstr("flow along arc 0"));
  bad = good;
  bad.arcs[1] = -3;
  EXPECT_THAT(complaint(bad), HasSubstr("flow along arc 1"));
  bad = good;
  bad.arcs[2] = 0;
  EXPECT_THAT(complaint(bad), HasSubstr("flow in minus flow out"));
  bad = good;
  bad.from_source[0] = 8;
  EXPECT_THAT(complaint(bad), HasSubstr("into vertex 0"));
  bad = good;
  bad.to_sink[2] = 6;
  EXPECT_THAT(complaint(bad), HasSubstr("out of vertex 2"));
  // Back from the sink is allowed, from nowhere is not.
  bad.to_sink[2] = -1;
  EXPECT_THAT(complaint(bad), HasSubstr("flow in minus flow out of vertex 2"));
  bad = good;
  bad.arcs.pop_back();
  EXPECT_THAT(complaint(bad), HasSubstr("size"));
  // A cut of the right capacity, with a flow that is not worth as much.
  bad = good;
  bad.from_source.assign(3, 0);
  bad.to_sink.assign(3, 0);
  bad.arcs.assign(3, 0);
  EXPECT_THAT(complaint(bad), HasSubstr("flow 0: 0 instead of 5"));
}

}  // namespace
}  // namespace refract::partitioner::cut
