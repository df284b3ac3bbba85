#include "partitioner/shards/divide_tables.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

std::vector<int64_t> Loads(const std::vector<TableSize>& tables,
                           const std::vector<models::TableShards>& shards,
                           size_t num_shards) {
  std::vector<int64_t> loads(num_shards, 0);
  for (size_t t = 0; t < tables.size(); ++t) {
    for (size_t k = 0; k < num_shards; ++k) {
      loads[k] += shards[t].rows(k) * tables[t].row_bytes;
    }
  }
  return loads;
}

// The smallest load of the fullest shard when whole tables are placed: every
// placement is tried.
int64_t BestByTables(const std::vector<int64_t>& bytes, size_t num_shards) {
  int64_t best = std::numeric_limits<int64_t>::max();
  std::vector<size_t> owner(bytes.size(), 0);
  while (true) {
    std::vector<int64_t> loads(num_shards, 0);
    for (size_t t = 0; t < bytes.size(); ++t) loads[owner[t]] += bytes[t];
    best = std::min(best, *std::max_element(loads.begin(), loads.end()));
    size_t t = 0;
    while (t < owner.size() && ++owner[t] == num_shards) owner[t++] = 0;
    if (t == owner.size()) return best;
  }
}

TEST(DivideTablesTest, EveryRowHasOneOwnerAndNoShardHasMoreThanTwiceTheMean) {
  std::mt19937_64 random(20);
  for (int round = 0; round < 500; ++round) {
    const size_t num_shards = 1 + random() % 8;
    std::vector<TableSize> tables(1 + random() % 30);
    int64_t total = 0;
    int64_t rows_of_each = 0;
    for (size_t t = 0; t < tables.size(); ++t) {
      tables[t].table = std::to_string(t);
      tables[t].rows = static_cast<int64_t>(random() % (1 << (random() % 24)));
      tables[t].row_bytes = 4 << random() % 8;
      total += tables[t].bytes();
      rows_of_each += tables[t].row_bytes;
    }
    const auto shards = DivideTables(tables, num_shards);
    ASSERT_EQ(shards.size(), tables.size());
    for (size_t t = 0; t < tables.size(); ++t) {
      EXPECT_EQ(shards[t].table, tables[t].table);
      ASSERT_EQ(shards[t].ends.size(), num_shards);
      EXPECT_TRUE(
          std::is_sorted(shards[t].ends.begin(), shards[t].ends.end()));
      EXPECT_GE(shards[t].ends.front(), 0);
      EXPECT_EQ(shards[t].ends.back(), tables[t].rows);
    }
    const std::vector<int64_t> loads = Loads(tables, shards, num_shards);
    const auto mean = total / static_cast<int64_t>(num_shards);
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()),
              2 * mean + rows_of_each + 1);
  }
}

TEST(DivideTablesTest, WholeTablesAreWithinAThirdOfTheBestPlacement) {
  std::mt19937_64 random(21);
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    const size_t num_shards = 2 + random() % 2;
    std::vector<TableSize> tables(num_shards + random() % 6);
    std::vector<int64_t> bytes;
    int64_t total = 0;
    for (TableSize& table : tables) {
      table.rows = 1 + static_cast<int64_t>(random() % 1000);
      table.row_bytes = 64;
      bytes.push_back(table.bytes());
      total += table.bytes();
    }
    // Tables above the mean are divided by rows.
    if (*std::max_element(bytes.begin(), bytes.end()) >
        total / static_cast<int64_t>(num_shards)) {
      continue;
    }
    ++compared;
    const auto shards = DivideTables(tables, num_shards);
    for (const models::TableShards& table : shards) {
      for (size_t k = 0; k < num_shards; ++k) {
        EXPECT_TRUE(table.rows(k) == 0 || table.rows(k) == table.ends.back());
      }
    }
    const std::vector<int64_t> loads = Loads(tables, shards, num_shards);
    // Graham 1969: 4/3 - 1/(3 m) of the optimum.
    EXPECT_LE(3 * *std::max_element(loads.begin(), loads.end()),
              4 * BestByTables(bytes, num_shards));
  }
  EXPECT_GT(compared, 50);
}

TEST(DivideTablesTest, ATableAboveTheMeanIsDividedByRows) {
  const std::vector<TableSize> tables = {
      {"huge", 1000, 64}, {"a", 100, 64}, {"b", 90, 64}, {"c", 80, 64}};
  const auto shards = DivideTables(tables, 3);
  EXPECT_EQ(shards[0].ends, (std::vector<int64_t>{333, 666, 1000}));
  // Each of the others has another owner.
  EXPECT_EQ(shards[1].ends, (std::vector<int64_t>{100, 100, 100}));
  EXPECT_EQ(shards[2].ends, (std::vector<int64_t>{0, 90, 90}));
  EXPECT_EQ(shards[3].ends, (std::vector<int64_t>{0, 0, 80}));
}

}  // namespace
}  // namespace refract::partitioner
