#include "metrics/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "tests/base/random_seed.h"

namespace refract::metrics {
namespace {

using testing::ElementsAre;

TEST(HistogramTest, CountsValuesUpToAndIncludingEachBound) {
  static constexpr uint64_t kBounds[] = {10, 20};
  Histogram histogram(kBounds);
  for (const uint64_t value : {0, 10, 11, 20, 21, 1000}) {
    histogram.Record(value);
  }
  const Histogram::Snapshot snapshot = histogram.snapshot();
  EXPECT_THAT(snapshot.counts, ElementsAre(2, 2, 2));
  EXPECT_EQ(snapshot.sum, 1062u);
  EXPECT_EQ(snapshot.count(), 6u);
}

TEST(HistogramTest, CountsDurationsInNanosecondsAndNegativeOnesAsZero) {
  Histogram histogram;
  histogram.Record(absl::Microseconds(50));
  histogram.Record(absl::Microseconds(50) + absl::Nanoseconds(1));
  histogram.Record(absl::Seconds(-3));
  histogram.Record(absl::Seconds(2));
  const Histogram::Snapshot snapshot = histogram.snapshot();
  EXPECT_EQ(snapshot.counts.front(), 2u);
  EXPECT_EQ(snapshot.counts[1], 1u);
  EXPECT_EQ(snapshot.counts.back(), 1u);
  EXPECT_EQ(snapshot.sum, 2'000'100'001u);
}

TEST(HistogramTest, BoundsAscendAndHaveTritonsAndManyBelowFiveMilliseconds) {
  EXPECT_TRUE(std::is_sorted(std::begin(kDurationBounds),
                             std::end(kDurationBounds), std::less_equal<>()));
  EXPECT_TRUE(std::is_sorted(std::begin(kSizeBounds), std::end(kSizeBounds)));
  for (const uint64_t triton_us : {1000, 5000, 25000, 50000, 100000}) {
    EXPECT_THAT(kDurationBounds, testing::Contains(triton_us * 1000));
  }
  EXPECT_GE(
      std::count_if(std::begin(kDurationBounds), std::end(kDurationBounds),
                    [](uint64_t bound) { return bound < 5'000'000; }),
      8);
}

TEST(HistogramTest, LosesNothingOfManyThreads) {
  constexpr int kThreads = 4, kValues = 20000;
  Histogram histogram(kSizeBounds);
  std::vector<std::vector<uint64_t>> values(kThreads);
  std::mt19937 random(base::RandomSeed());
  std::uniform_int_distribution<uint64_t> value(0, 20000);
  for (auto& list : values) {
    for (int i = 0; i < kValues; ++i) list.push_back(value(random));
  }
  std::vector<std::thread> threads;
  for (const auto& list : values) {
    threads.emplace_back([&histogram, &list] {
      for (const uint64_t v : list) histogram.Record(v);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Counted the other way round: for each bound, the values below.
  const Histogram::Snapshot snapshot = histogram.snapshot();
  uint64_t below = 0, sum = 0;
  for (const auto& list : values) {
    for (const uint64_t v : list) sum += v;
  }
  for (size_t i = 0; i < std::size(kSizeBounds); ++i) {
    below += snapshot.counts[i];
    uint64_t expected = 0;
    for (const auto& list : values) {
      expected += std::count_if(list.begin(), list.end(), [&](uint64_t v) {
        return v <= kSizeBounds[i];
      });
    }
    EXPECT_EQ(below, expected) << "bound " << kSizeBounds[i];
  }
  EXPECT_EQ(snapshot.count(), uint64_t{kThreads} * kValues);
  EXPECT_EQ(snapshot.sum, sum);
}

}  // namespace
}  // namespace refract::metrics
