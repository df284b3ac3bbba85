#include "partitioner/report/graph_layout.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::partitioner {
namespace {

// Checks that LayOut() keeps its promises for any graph.
void ExpectSound(const std::vector<DrawnNode>& nodes,
                 const std::vector<Place>& places) {
  ASSERT_EQ(places.size(), nodes.size());
  std::map<int, std::vector<double>> columns;
  std::map<int, std::pair<int, int>> band_columns;
  for (size_t n = 0; n < nodes.size(); ++n) {
    ASSERT_GE(places[n].row, 0);
    columns[places[n].column].push_back(places[n].row);
    for (const int before : nodes[n].after) {
      ASSERT_LT(places[before].column, places[n].column);
    }
    const auto [at, is_new] = band_columns.emplace(
        nodes[n].band, std::pair(places[n].column, places[n].column));
    at->second.first = std::min(at->second.first, places[n].column);
    at->second.second = std::max(at->second.second, places[n].column);
  }
  int next = 0;
  for (const auto& [band, range] : band_columns) {
    ASSERT_EQ(range.first, next) << "band " << band;
    next = range.second + 1;
  }
  for (auto& [column, rows] : columns) {
    ASSERT_LE(static_cast<int>(rows.size()), ColumnRoom(nodes.size()));
    std::sort(rows.begin(), rows.end());
    for (size_t i = 1; i < rows.size(); ++i) {
      ASSERT_GE(rows[i] - rows[i - 1], 1 - 1e-6) << "column " << column;
    }
  }
}

TEST(GraphLayoutTest, KeepsItsPromisesForAnyGraph) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random);
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<DrawnNode> nodes(below(round % 10 == 0 ? 1000 : 40));
    const int num_bands = 1 + below(5);
    for (size_t n = 0; n < nodes.size(); ++n) {
      nodes[n].band = below(num_bands);
      if (n == 0) continue;
      for (int i = below(4); i > 0; --i) {
        const int before = below(static_cast<int>(n));
        if (nodes[before].band <= nodes[n].band) {
          nodes[n].after.push_back(before);
        }
      }
    }
    ExpectSound(nodes, LayOut(nodes));
    if (HasFatalFailure()) return;
  }
}

TEST(GraphLayoutTest, NothingGivesNothing) { EXPECT_TRUE(LayOut({}).empty()); }

TEST(GraphLayoutTest, AChainIsStraight) {
  std::vector<DrawnNode> nodes(30);
  for (int n = 0; n < 30; ++n) {
    nodes[n].band = n / 10;
    if (n > 0) nodes[n].after = {n - 1};
  }
  const std::vector<Place> places = LayOut(nodes);
  for (int n = 0; n < 30; ++n) {
    EXPECT_EQ(places[n].column, n);
    EXPECT_NEAR(places[n].row, 0, 1e-6);
  }
}

// Chains that share nothing lie beside each other, whatever order their nodes
// come in.
TEST(GraphLayoutTest, ParallelChainsDoNotCross) {
  constexpr int kChains = 6;
  constexpr int kLength = 5;
  std::vector<DrawnNode> nodes;
  std::vector<int> chain_of;
  std::vector<int> tail(kChains, -1);
  for (int step = 0; step < kLength; ++step) {
    for (int i = 0; i < kChains; ++i) {
      const int chain = (i * 5 + step * 2) % kChains;
      DrawnNode node;
      if (tail[chain] >= 0) node.after = {tail[chain]};
      tail[chain] = static_cast<int>(nodes.size());
      nodes.push_back(node);
      chain_of.push_back(chain);
    }
  }
  const std::vector<Place> places = LayOut(nodes);
  std::map<int, std::vector<std::pair<double, int>>> columns;
  for (size_t n = 0; n < nodes.size(); ++n) {
    columns[places[n].column].push_back({places[n].row, chain_of[n]});
  }
  ASSERT_EQ(columns.size(), static_cast<size_t>(kLength));
  std::vector<int> first_order;
  for (auto& [column, nodes_in_it] : columns) {
    std::sort(nodes_in_it.begin(), nodes_in_it.end());
    std::vector<int> order;
    for (const auto& [row, chain] : nodes_in_it) order.push_back(chain);
    if (first_order.empty()) first_order = order;
    EXPECT_EQ(order, first_order) << "column " << column;
  }
}

TEST(GraphLayoutTest, WideGraphsAreFolded) {
  std::vector<DrawnNode> nodes(1501);
  for (int n = 0; n < 1500; ++n) nodes[1500].after.push_back(n);
  const std::vector<Place> places = LayOut(nodes);
  ExpectSound(nodes, places);
  double last_row = 0;
  for (const Place& place : places) last_row = std::max(last_row, place.row);
  EXPECT_LT(last_row, 2 * ColumnRoom(nodes.size()));
  // The first band leans to the right: what reads all is beside the last.
  EXPECT_EQ(places[1500].column,
            (1500 + ColumnRoom(1501) - 1) / ColumnRoom(1501));
}

}  // namespace
}  // namespace refract::partitioner
