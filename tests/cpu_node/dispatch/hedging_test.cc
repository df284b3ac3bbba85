#include "cpu_node/dispatch/hedging.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/histogram.h"

namespace refract::cpu_node {
namespace {

using ::testing::ElementsAre;

TEST(QuantileOfTest, IsWithinTheBucketOfTheExactQuantile) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> times(13, 1);  // around 0.4 ms
  metrics::Histogram histogram;
  std::vector<uint64_t> values;
  for (int i = 0; i < 5000; ++i) {
    values.push_back(static_cast<uint64_t>(times(random)));
    histogram.Record(values.back());
  }
  std::sort(values.begin(), values.end());
  const auto& bounds = metrics::kDurationBounds;
  for (const double q : {0.5, 0.9, 0.95, 0.99}) {
    const double exact = static_cast<double>(
        values[static_cast<size_t>(q * static_cast<double>(values.size()))]);
    const auto high =
        std::lower_bound(std::begin(bounds), std::end(bounds), exact);
    const double low =
        high == std::begin(bounds) ? 0 : static_cast<double>(high[-1]);
    const double found = QuantileOf(histogram.snapshot(), {}, q);
    // The exact value may lie just over the border of the found bucket.
    EXPECT_GE(found, 0.95 * low) << q;
    EXPECT_LE(found, 1.05 * static_cast<double>(*high)) << q;
  }
}

TEST(HedgeDelayTest, IsTheQuantileOfTheLatestRoundTrips) {
  metrics::Histogram histogram;
  HedgeDelay delay;
  const auto record = [&](int count, absl::Duration time) {
    for (int i = 0; i < count; ++i) histogram.Record(time);
    delay.Learn(histogram.snapshot(), 0.95);
  };
  record(99, absl::Milliseconds(1));
  EXPECT_EQ(delay.Get(), absl::InfiniteDuration());
  record(1, absl::Milliseconds(1));
  EXPECT_LE(delay.Get(), absl::Milliseconds(1));
  // Too few requests to learn from, then enough.
  record(50, absl::Milliseconds(100));
  EXPECT_LE(delay.Get(), absl::Milliseconds(1));
  record(50, absl::Milliseconds(100));
  EXPECT_GT(delay.Get(), absl::Milliseconds(50));
  EXPECT_LE(delay.Get(), absl::Milliseconds(100));
  // The slow time is forgotten.
  record(100, absl::Milliseconds(1));
  EXPECT_LE(delay.Get(), absl::Milliseconds(1));
}

// Numbers of the requests that came due.
class Due {
 public:
  void Add(int number) {
    absl::MutexLock lock(&mu_);
    numbers_.push_back(number);
  }
  void Tick() {
    absl::MutexLock lock(&mu_);
    ++ticks_;
  }
  std::vector<int> Await(size_t count) {
    const auto enough = [&] { return numbers_.size() >= count; };
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(
        mu_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30)));
    return numbers_;
  }
  void AwaitTicks(int count) {
    const auto enough = [&] { return ticks_ >= count; };
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(
        mu_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30)));
  }

 private:
  absl::Mutex mu_;
  std::vector<int> numbers_;
  int ticks_ = 0;
};

TEST(HedgeTimerTest, CallsForRequestsThatStillLiveInOrder) {
  base::ManualClock clock;
  Due due;
  HedgeTimer timer(
      &clock,
      [&](const HedgeTimer::Request& request) {
        due.Add(*std::static_pointer_cast<int>(request));
      },
      [&] { due.Tick(); });
  const absl::Time start = clock.Now();
  std::vector<std::shared_ptr<int>> requests;
  for (const int number : {0, 1, 2, 3}) {
    requests.push_back(std::make_shared<int>(number));
  }
  timer.Add(start + absl::Milliseconds(30), requests[3]);
  timer.Add(start + absl::Milliseconds(10), requests[1]);
  timer.Add(start + absl::Milliseconds(20), requests[2]);
  timer.Add(start + absl::Milliseconds(5), requests[0]);
  requests[2].reset();  // answered
  clock.Advance(absl::Milliseconds(10));
  EXPECT_THAT(due.Await(2), ElementsAre(0, 1));
  clock.Advance(absl::Milliseconds(30));
  EXPECT_THAT(due.Await(3), ElementsAre(0, 1, 3));
  clock.Advance(HedgeTimer::kTick);
  due.AwaitTicks(1);
  timer.Stop();
  timer.Add(start, requests[1]);
  EXPECT_THAT(due.Await(3), ElementsAre(0, 1, 3));
}

}  // namespace
}  // namespace refract::cpu_node
