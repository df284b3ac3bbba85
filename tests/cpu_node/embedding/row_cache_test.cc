#include "cpu_node/embedding/row_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <list>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

constexpr size_t kRowBytes = 48;

struct Row {
  explicit Row(uint64_t key) {
    for (size_t i = 0; i < kRowBytes; ++i) {
      bytes[i] = static_cast<std::byte>(key * 31 + i);
    }
  }
  std::byte bytes[kRowBytes];
};

std::unique_ptr<RowCache> CacheOf(size_t rows) {
  return *RowCache::Create(rows * (kRowBytes + 80), kRowBytes);
}

// Reads a row through the cache; whether it was a hit. Hits are compared.
bool Ask(RowCache& cache, uint64_t key) {
  std::byte row[kRowBytes];
  if (!cache.Get(key, row)) {
    cache.Put(key, Row(key).bytes);
    return false;
  }
  EXPECT_EQ(std::memcmp(row, Row(key).bytes, kRowBytes), 0) << key;
  return true;
}

// Keys by Zipf's law, exponent 1.05, among `count`.
class Zipf {
 public:
  explicit Zipf(size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      sum += std::pow(static_cast<double>(i + 1), -1.05);
      sums_.push_back(sum);
    }
  }
  uint64_t Next() {
    const double at = std::uniform_real_distribution<>(0, sums_.back())(random_);
    return static_cast<uint64_t>(
        std::lower_bound(sums_.begin(), sums_.end(), at) - sums_.begin());
  }

 private:
  std::vector<double> sums_;
  std::mt19937_64 random_{1};
};

TEST(RowCacheTest, KeepsAllRowsWhileThereIsRoom) {
  const auto cache = CacheOf(1000);
  EXPECT_LE(cache->capacity(), 1000u);
  // Shards do not fill evenly.
  for (uint64_t key = 0; key < 500; ++key) EXPECT_FALSE(Ask(*cache, key));
  for (uint64_t key = 0; key < 500; ++key) EXPECT_TRUE(Ask(*cache, key));
}

TEST(RowCacheTest, ServesTheOneRowThatFits) {
  const auto cache = CacheOf(1);
  EXPECT_EQ(cache->capacity(), 1u);
  for (uint64_t key = 0; key < 100; ++key) {
    EXPECT_FALSE(Ask(*cache, key));
    EXPECT_TRUE(Ask(*cache, key));
  }
}

TEST(RowCacheTest, PutOfARowThatIsHereChangesNothing) {
  const auto cache = CacheOf(10);
  cache->Put(3, Row(3).bytes);
  cache->Put(3, Row(4).bytes);
  EXPECT_TRUE(Ask(*cache, 3));
}

// The policy is worth its code: beside least recently used of the same size.
TEST(RowCacheTest, HitsMoreThanLeastRecentlyUsedBySkewedKeys) {
  constexpr size_t kRows = 4000;
  const auto cache = CacheOf(kRows);
  const size_t capacity = cache->capacity();
  std::list<uint64_t> order;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places;
  Zipf keys(100'000);
  int hits = 0;
  int lru_hits = 0;
  constexpr int kWarm = 200'000;
  constexpr int kAsked = 400'000;
  for (int i = 0; i < kAsked; ++i) {
    const uint64_t key = keys.Next();
    const bool hit = Ask(*cache, key);
    const auto place = places.find(key);
    if (place != places.end()) order.erase(place->second);
    if (i >= kWarm) {
      hits += hit;
      lru_hits += place != places.end();
    }
    order.push_front(key);
    places[key] = order.begin();
    if (places.size() > capacity) {
      places.erase(order.back());
      order.pop_back();
    }
  }
  EXPECT_GT(hits, lru_hits * 1.05);
  // Rows of a scan do not push often used rows out.
  for (uint64_t key = 1'000'000; key < 1'000'000 + 2 * kRows; ++key) {
    Ask(*cache, key);
  }
  int after = 0;
  for (uint64_t key = 0; key < 500; ++key) after += Ask(*cache, key);
  EXPECT_GT(after, 450);
}

TEST(RowCacheTest, ThreadsSeeWholeRows) {
  const auto cache = CacheOf(200);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 50'000; ++i) Ask(*cache, random() % 400);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace refract::cpu_node
