#include "tools/transport_meter/recorder.h"

#include "gtest/gtest.h"

namespace refract::transport_meter {
namespace {

// A stall between the reads of the two clocks once made every time of a run a
// third too long.
TEST(TicksTest, StallsDuringTheMeasurementChangeNoRate) {
  constexpr uint64_t kReadNs = 100;
  constexpr uint64_t kStallNs = 7'000'000;
  constexpr double kTicksPerNs = 2.5;
  for (int stalled_read = 0; stalled_read < 70; ++stalled_read) {
    uint64_t now_ns = 1'000'000'000;
    int reads = 0;
    const auto pass = [&] {
      now_ns += reads++ == stalled_read ? kStallNs : kReadNs;
      return now_ns;
    };
    const double rate = MeasureRate(pass, [&] {
      return static_cast<uint64_t>(kTicksPerNs * static_cast<double>(pass()));
    });
    EXPECT_NEAR(rate, kTicksPerNs, 1e-3) << "stall at read " << stalled_read;
  }
}

TEST(TicksTest, RunWithTheSteadyClock) {
  const uint64_t begin = Ticks::Now();
  EXPECT_GT(Ticks::PerNanosecond(), 0);
  EXPECT_GE(Ticks::Now(), begin);
}

}  // namespace
}  // namespace refract::transport_meter
