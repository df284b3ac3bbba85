#include "partitioner/cut/max_flow.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::partitioner::cut {
namespace {

using testing::HasSubstr;

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
  const unsigned seed = std::random_device()();
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
  EXPECT_THAT(complaint(bad), HasSubstr("flow 0: 5 against 4"));
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
  EXPECT_THAT(complaint(bad), HasSubstr("surplus"));
  bad = good;
  bad.from_source[0] = 8;
  EXPECT_THAT(complaint(bad), HasSubstr("into vertex 0"));
  bad = good;
  bad.to_sink[2] = -1;
  EXPECT_THAT(complaint(bad), HasSubstr("out of vertex 2"));
  bad = good;
  bad.arcs.pop_back();
  EXPECT_THAT(complaint(bad), HasSubstr("size"));
  // A cut of the right capacity, with a flow that is not worth as much.
  bad = good;
  bad.from_source.assign(3, 0);
  bad.to_sink.assign(3, 0);
  bad.arcs.assign(3, 0);
  EXPECT_THAT(complaint(bad), HasSubstr("flow 0: 0 against 5"));
}

}  // namespace
}  // namespace refract::partitioner::cut
