// The order of pulls on a link, in virtual time.
#include "tests/transport/testing/pull_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"

namespace refract::transport {
namespace {

double Gigabytes(const PullSimulation& simulation, absl::Time began) {
  size_t bytes = 0;
  for (const auto& request : simulation.requests()) bytes += request->bytes;
  return static_cast<double>(bytes) /
         absl::ToDoubleSeconds(simulation.now() - began) / 1e9;
}

TEST(PullSimulationTest, FillsTheLinkWithLittleQueueing) {
  struct Case {
    double gbit;
    double round_trip_us;
    size_t senders;
  };
  for (const Case& c : {Case{25, 8, 1}, Case{100, 8, 2}, Case{100, 8, 100},
                        Case{400, 8, 16}, Case{100, 40, 16}, Case{10, 8, 16}}) {
    SCOPED_TRACE(absl::StrCat(c.gbit, " Gb/s, ", c.round_trip_us, " us, ",
                              c.senders, " senders"));
    const double rate = c.gbit / 8 * 1e9;
    PullSimulation simulation({rate, absl::Microseconds(c.round_trip_us)}, {},
                              c.senders);
    const absl::Time start = absl::FromUnixSeconds(1000);
    for (int i = 0; i < 100; ++i) {
      simulation.Add(static_cast<size_t>(i) % c.senders, size_t{8} << 20, start,
                     absl::InfiniteFuture(), absl::InfiniteFuture());
    }
    simulation.Run(false);
    EXPECT_GE(Gigabytes(simulation, start), 0.97 * rate / 1e9);
    // Bytes that one chunk at a time needs, a quarter more, and pulls' ends.
    const size_t chunk = PullWindow::Options().chunk_bytes;
    const double needed = rate * c.round_trip_us * 1e-6 + chunk;
    EXPECT_LE(simulation.most_outstanding(),
              1.125 * std::max<double>(needed, 2 * chunk) + chunk);
  }
}

// Requests of several sizes and deadlines, twice as many as the link can carry.
void AddOverload(PullSimulation& simulation, std::mt19937& random,
                 double bytes_per_second, bool tell) {
  constexpr size_t kSizes[] = {size_t{96} << 10, size_t{256} << 10,
                               size_t{2} << 20};
  const double mean = (kSizes[0] + kSizes[1] + kSizes[2]) / 3.0;
  std::exponential_distribution<double> gap(2 * bytes_per_second / mean);
  absl::Time at = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 4000; ++i) {
    at += absl::Seconds(gap(random));
    const size_t bytes = kSizes[random() % 3];
    const absl::Duration slack =
        absl::Microseconds(300) * (1 + static_cast<int>(random() % 10));
    const absl::Time deadline =
        at + absl::Seconds(static_cast<double>(bytes) / bytes_per_second) +
        slack;
    simulation.Add(random() % 32, bytes, at, deadline,
                   tell ? deadline : absl::InfiniteFuture());
  }
}

TEST(PullSimulationTest, UnderOverloadMoreDeadlinesAreMetThanInOrderOfArrival) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const double rate = 12.5e9;
  // Once with clients that cancel what is late, once with clients that do not.
  for (const bool cancel : {true, false}) {
    size_t met[2];
    for (const bool edf : {false, true}) {
      std::mt19937 random(seed);
      PullSimulation simulation({rate, absl::Microseconds(8)}, {}, 32);
      AddOverload(simulation, random, rate, edf);
      simulation.Run(cancel);
      met[edf] = simulation.num_met();
    }
    std::cout << (cancel ? "with" : "without")
              << " cancels, met of 4000: " << met[0] << " in order of arrival, "
              << met[1] << " by deadline\n";
    EXPECT_GE(static_cast<double>(met[1]), 1.3 * static_cast<double>(met[0]));
    EXPECT_GE(met[1], 1200u) << "capacity alone would allow half";
  }
}

TEST(PullSimulationTest, BackgroundIsNotStarvedByOverload) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const double rate = 12.5e9;
  PullSimulation simulation({rate, absl::Microseconds(8)}, {}, 33);
  // 5 % of the link for the 0.13 s of the overload carry 80 MB.
  const absl::Time start = absl::FromUnixSeconds(1000);
  PullSimulation::Request& background =
      simulation.Add(32, size_t{60} << 20, start, absl::InfiniteFuture(),
                     absl::InfiniteFuture());
  AddOverload(simulation, random, rate, true);
  const absl::Time last = simulation.requests().back()->arrival;
  simulation.Run(true);
  EXPECT_LT(background.finished, last);
}

// Requests of 1 MiB from sender 0, every 5 ms for 2 s, beside sender 1, which
// answers each get after `delay` (zero: sender 1 sends nothing).
std::vector<absl::Duration> LatenciesBeside(absl::Duration delay) {
  PullSimulation simulation({1.25e9, absl::Microseconds(50)}, {}, 2);
  simulation.SetDelay(1, delay);
  const absl::Time start = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 400; ++i) {
    const absl::Time at = start + i * absl::Milliseconds(5);
    // First, so that it has the window when the requests of sender 0 come.
    if (delay > absl::ZeroDuration() && i % 20 == 0) {
      simulation.Add(1, size_t{1} << 20, at, absl::InfiniteFuture(),
                     at + absl::Milliseconds(1));
    }
    simulation.Add(0, size_t{1} << 20, at, absl::InfiniteFuture(),
                   at + absl::Milliseconds(100));
  }
  simulation.Run(false);
  std::vector<absl::Duration> latencies;
  for (const auto& request : simulation.requests()) {
    if (request->connection == 0) {
      latencies.push_back(request->finished - request->arrival);
    }
  }
  std::sort(latencies.begin(), latencies.end());
  return latencies;
}

TEST(PullSimulationTest, SlowAndStalledSendersDelayOthersLittle) {
  const std::vector<absl::Duration> alone =
      LatenciesBeside(absl::ZeroDuration());
  for (const absl::Duration delay :
       {absl::Milliseconds(200), absl::InfiniteDuration()}) {
    const std::vector<absl::Duration> beside = LatenciesBeside(delay);
    std::cout << "beside a sender that takes " << delay << ": median "
              << beside[200] << " (alone " << alone[200] << "), p99 "
              << beside[396] << " (" << alone[396] << "), longest "
              << beside[399] << " (" << alone[399] << ")\n";
    EXPECT_LE(beside[200], alone[200] * 1.1);
    // A get is overdue after 5 ms. Twice: the probe may be the slow sender's.
    EXPECT_LE(beside[396], alone[396] + absl::Milliseconds(11));
    EXPECT_LE(beside[399], alone[399] + absl::Milliseconds(20));
  }
}

// All senders are far away: nothing is overdue, and the link is filled.
TEST(PullSimulationTest, LongPathsAreNotSlowSenders) {
  PullSimulation simulation({1.25e9, absl::Milliseconds(2)}, {}, 4);
  const absl::Time start = absl::FromUnixSeconds(1000);
  for (size_t i = 0; i < 100; ++i) {
    simulation.Add(i % 4, size_t{8} << 20, start, absl::InfiniteFuture(),
                   absl::InfiniteFuture());
  }
  simulation.Run(false);
  EXPECT_GE(Gigabytes(simulation, start), 0.9 * 1.25);
}

// Longer than the time after which a get counts as overdue on an unknown path.
TEST(PullSimulationTest, PathsLongerThanExpectedAreLearnt) {
  PullSimulation simulation({1.25e8, absl::Milliseconds(20)}, {}, 2);
  const absl::Time start = absl::FromUnixSeconds(1000);
  for (size_t i = 0; i < 20; ++i) {
    simulation.Add(i % 2, size_t{8} << 20, start, absl::InfiniteFuture(),
                   absl::InfiniteFuture());
  }
  simulation.Run(false);
  // 16 gets of each sender, 2 MiB in all, per round trip and their own time.
  EXPECT_GE(Gigabytes(simulation, start), 0.078);
}

}  // namespace
}  // namespace refract::transport
