#include "cpu_node/embedding/live_p99.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "metrics/histogram.h"

namespace refract::cpu_node {
namespace {

TEST(P99ThrottleTest, HalvesTheShareWhileRequestsAreSlow) {
  metrics::Histogram requests;
  P99Throttle throttle(0.2, absl::Milliseconds(10));
  const auto look = [&](int fast, int slow) {
    for (int i = 0; i < fast; ++i) requests.Record(absl::Milliseconds(2));
    for (int i = 0; i < slow; ++i) requests.Record(absl::Milliseconds(40));
    throttle.Add("m/1", requests.snapshot());
    throttle.Decide();
    return throttle.share();
  };
  EXPECT_EQ(look(1000, 5), 0.2);
  EXPECT_EQ(look(1000, 15), 0.1);
  EXPECT_EQ(look(40, 40), 0.1);  // too few, and counted with the next
  EXPECT_EQ(look(1000, 0), 0.05);
  for (int i = 0; i < 10; ++i) look(0, 200);
  EXPECT_EQ(throttle.share(), 0.2 / 16);
  EXPECT_EQ(look(0, 0), 0.2 / 16);
  EXPECT_EQ(look(1000, 0), 0.2 / 16 * 1.25);
  for (int i = 0; i < 20; ++i) look(1000, 0);
  EXPECT_EQ(throttle.share(), 0.2);
  // Another model, and the first loaded again: it counts from zero.
  metrics::Histogram other;
  for (int i = 0; i < 100; ++i) other.Record(absl::Seconds(2));
  throttle.Add("other/1", other.snapshot());
  throttle.Add("m/1", metrics::Histogram().snapshot());
  throttle.Decide();
  EXPECT_EQ(throttle.share(), 0.1);
}

TEST(P99ThrottleTest, CountsValuesAboveALimitWithinABucket) {
  metrics::Histogram requests;
  for (int i = 0; i < 8; ++i) requests.Record(absl::Milliseconds(20));
  requests.Record(absl::Seconds(5));
  // 20 ms lies in the bucket of 10 to 25 ms.
  EXPECT_DOUBLE_EQ(CountAbove(requests.snapshot(), {}, 10e6), 9);
  EXPECT_DOUBLE_EQ(CountAbove(requests.snapshot(), {}, 16e6), 8 * 0.6 + 1);
  EXPECT_DOUBLE_EQ(CountAbove(requests.snapshot(), {}, 25e6), 1);
}

}  // namespace
}  // namespace refract::cpu_node
