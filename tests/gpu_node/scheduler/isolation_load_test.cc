// The bound of deficit_round_robin.h under random loads, in virtual time: a
// quiet model, whose requests come one by one or in bursts, beside several
// overloaded ones of unequal shares, on one instance or several; and what the
// overloaded ones keep.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/deficit_round_robin.h"
#include "tests/base/random_seed.h"
#include "tests/gpu_node/scheduler/load_fixture.h"
#include "tests/gpu_node/scheduler/simulation.h"

namespace refract::gpu_node {
namespace {

using ::testing::IsEmpty;

struct LoadedModel {
  bool quiet = false;
  Cost cost;
  double share = 1;
  int64_t rows = 1;  // of one request
  bool merged = false;
  bool stepwise = false;
  std::vector<absl::Duration> arrivals;
};

struct Situation {
  int instances = 1;
  absl::Duration duration;
  std::vector<LoadedModel> models;
};

// The first part of a run: until it shows who wants how much.
constexpr double kSettling = 0.2;
constexpr double kQuietRequests = 1500;
constexpr double kMostRequests = 60'000;  // of one model

// A run of all models, or of the quiet models alone: p99 of quiet models, and
// the rows per second of each.
struct Observed {
  std::vector<absl::Duration> p99;
  std::vector<double> rows_per_s;
};
Observed Observe(const Situation& s, bool with_loud, bool isolation = true) {
  FakeDevice::Options device;
  device.traits.instances = s.instances;
  device.traits.steps = true;
  device.execute = [&](const Batch& batch) {
    return s.models[batch.model].cost.Of(batch.rows);
  };
  std::vector<ScheduledModel> models;
  std::vector<SimulatedRequest> requests;
  for (size_t i = 0; i < s.models.size(); ++i) {
    const LoadedModel& model = s.models[i];
    ScheduledModel& scheduled = models.emplace_back(ModelOf(model.cost));
    scheduled.share = model.share;
    scheduled.batching.enabled = model.merged;
    scheduled.stepwise = model.stepwise;
    // A burst of the quiet model must find places.
    if (!model.quiet) scheduled.max_queue = 200;
    if (!model.quiet && !with_loud) continue;
    for (const absl::Duration at : model.arrivals) {
      requests.push_back({.arrival = at,
                          .model = i,
                          .rows = model.rows,
                          .merge_key = model.merged ? "k" : ""});
    }
  }
  std::stable_sort(
      requests.begin(), requests.end(),
      [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  Simulation sim(device, models,
                 {.max_queue = 1 << 20, .isolation = isolation});
  sim.Run(requests);
  EXPECT_THAT(sim.device().violations(), IsEmpty());
  Observed seen;
  for (size_t model = 0; model < s.models.size(); ++model) {
    std::vector<absl::Duration> latencies;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].model != model ||
          requests[i].arrival < kSettling * s.duration) {
        continue;
      }
      const Outcome& outcome = sim.outcomes()[i];
      latencies.push_back(outcome.status.ok() ? outcome.latency
                                              : absl::InfiniteDuration());
    }
    seen.p99.push_back(PercentileOf(latencies, 0.99));
    int64_t rows = 0;
    for (const FakeDevice::Execution& e : sim.device().executions()) {
      const absl::Duration end = e.end - absl::FromUnixSeconds(1000);
      if (e.model == model && end > kSettling * s.duration &&
          end <= s.duration) {
        rows += e.rows;
      }
    }
    seen.rows_per_s.push_back(
        static_cast<double>(rows) /
        absl::ToDoubleSeconds((1 - kSettling) * s.duration));
  }
  return seen;
}

// Bound of the executions that the other models may have before this one.
absl::Duration Bound(const Situation& s, const LoadedModel& quiet) {
  const absl::Duration t = quiet.cost.Of(quiet.rows);
  absl::Duration longest;
  for (const LoadedModel& loud : s.models) {
    if (loud.quiet) continue;
    // A request whose rows depend on each other cannot be made shorter.
    const absl::Duration allowed = scheduling::Quantum(loud.cost.Of(1), t);
    const int64_t least = loud.stepwise ? 1 : loud.rows;
    longest = std::max({longest, allowed, loud.cost.Of(least)});
  }
  return longest;
}

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  double Between(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  int Whole(int low, int high) {  // both inclusive
    return std::uniform_int_distribution<int>(low, high)(random_);
  }
  // Each size of the same probability, on a logarithmic scale.
  double Size(double low, double high) {
    return low * std::pow(high / low, Between(0, 1));
  }
  bool Coin() { return random_() % 2 == 0; }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

// Bursts that are as much work as the model may save up, or less: it comes
// faster than the device could execute it, or slower. On the whole it asks for
// a part of `due`, the instances that are its share.
std::vector<absl::Duration> Bursts(Draw& draw, absl::Duration time, double due,
                                   int instances, absl::Duration duration) {
  const double most =
      std::min(due, instances - due) *
      absl::ToDoubleSeconds(scheduling::DeficitRoundRobin::kMemory);
  const double work_s = draw.Between(0.3, 0.9) * most;
  const double period_s = work_s / (draw.Between(0.1, 0.35) * due);
  const double time_s = absl::ToDoubleSeconds(time);
  std::exponential_distribution<double> gap(draw.Between(0.7, 1.5) * instances /
                                            time_s);
  std::vector<absl::Duration> arrivals;
  // The first one soon: that the model comes in bursts is to be known by the
  // end of what is left out.
  for (double burst = 0.1 * period_s;
       burst + period_s < absl::ToDoubleSeconds(duration); burst += period_s) {
    double at = burst;
    for (int i = 0; i < static_cast<int>(work_s / time_s); ++i) {
      at += gap(draw.random());
      arrivals.push_back(absl::Seconds(at));
    }
  }
  return arrivals;
}

// The quiet model wants less than what is due to it; loud ones each more
// than to them, though they had the whole device.
Situation RandomSituation(Draw& draw, int instances, bool bursts) {
  Situation s;
  s.instances = instances;
  const int quiet = 1;
  const int loud = draw.Whole(1, 4);
  double shares = 0;
  double loud_shares = 0;
  for (int i = 0; i < quiet + loud; ++i) {
    LoadedModel& model = s.models.emplace_back();
    model.quiet = i < quiet;
    model.share = draw.Size(0.5, 4);
    shares += model.share;
    if (!model.quiet) loud_shares += model.share;
    if (model.quiet) {
      model.cost = {draw.Size(500, 4000), 0};
    } else {
      model.cost = {draw.Size(20, 1500), draw.Size(0.5, 20)};
      model.rows = static_cast<int64_t>(draw.Size(1, 200));
      model.merged = draw.Coin();
      model.stepwise = model.rows > 1 && draw.Coin();
    }
  }
  std::vector<double> rates;
  for (LoadedModel& model : s.models) {
    if (model.quiet) {
      const double due = instances * model.share / shares;
      const absl::Duration time = model.cost.Of(model.rows);
      rates.push_back(draw.Between(0.1, 0.35) * due /
                      absl::ToDoubleSeconds(time));
      s.duration = absl::Seconds(kQuietRequests / rates.back());
      if (bursts) {
        s.duration = absl::Seconds(25);
        model.arrivals = Bursts(draw, time, due, instances, s.duration);
      }
      continue;
    }
    // Together half as much again as the device gives, merged or not.
    const double wanted = 1.5 * instances * model.share / loud_shares;
    const auto rate = [&] {
      const double rows = model.merged ? 1024 : static_cast<double>(model.rows);
      const double row_us = absl::ToDoubleMicroseconds(
                                model.cost.Of(static_cast<int64_t>(rows))) /
                            rows;
      return wanted * 1e6 / (row_us * static_cast<double>(model.rows));
    };
    // Many small requests take the test's time and show no more.
    while (rate() * absl::ToDoubleSeconds(s.duration) > kMostRequests &&
           model.rows <= 512) {
      model.rows *= 2;
    }
    rates.push_back(rate());
  }
  for (double rate : rates) {
    if (bursts) break;  // some more requests rather than no burst
    s.duration = std::min(s.duration, absl::Seconds(kMostRequests / rate));
  }
  for (size_t i = 0; i < s.models.size(); ++i) {
    if (bursts && s.models[i].quiet) continue;
    s.models[i].arrivals = PoissonArrivals(draw.random(), rates[i], s.duration);
  }
  return s;
}

std::string Describe(const Situation& s) {
  std::string text = absl::StrCat(s.instances, " instances");
  for (const LoadedModel& model : s.models) {
    char line[200];
    std::snprintf(line, sizeof(line),
                  "\n  %s share %.2f, %.0f + %.1f us a row, %d rows%s%s, %zu "
                  "requests in %.1f s",
                  model.quiet ? "quiet" : "loud", model.share,
                  model.cost.launch_us, model.cost.row_us,
                  static_cast<int>(model.rows), model.merged ? ", merged" : "",
                  model.stepwise ? ", in steps" : "", model.arrivals.size(),
                  absl::ToDoubleSeconds(s.duration));
    text += line;
  }
  return text;
}

// A quiet model waits for one execution of another at most, and the others get
// something done.
// p99 may be `factor` times that alone on top.
void ExpectWithinBound(const Situation& s, double factor = 1) {
  SCOPED_TRACE(Describe(s));
  const Observed alone = Observe(s, /*with_loud=*/false);
  const Observed beside = Observe(s, /*with_loud=*/true);
  for (size_t i = 0; i < s.models.size(); ++i) {
    if (!s.models[i].quiet) {
      EXPECT_GT(beside.rows_per_s[i], 0) << "model " << i;
      continue;
    }
    const absl::Duration bound = factor * alone.p99[i] + Bound(s, s.models[i]);
    EXPECT_LE(beside.p99[i], bound)
        << "model " << i << ", alone " << alone.p99[i];
    std::printf("%d instances, %zu models: p99 %s alone, %s beside, bound %s\n",
                s.instances, s.models.size(),
                absl::FormatDuration(alone.p99[i]).c_str(),
                absl::FormatDuration(beside.p99[i]).c_str(),
                absl::FormatDuration(bound).c_str());
  }
}

class RandomIsolationTest : public testing::Test {
 protected:
  const uint32_t seed_ = base::RandomSeed();
  const testing::ScopedTrace trace_{__FILE__, __LINE__,
                                    absl::StrCat("seed ", seed_)};
  Draw draw_{seed_};
};

TEST_F(RandomIsolationTest, QuietModelsWaitForOneExecutionAtMost) {
  for (const int instances : {1, draw_.Whole(2, 5), draw_.Whole(2, 5)}) {
    ExpectWithinBound(RandomSituation(draw_, instances, /*bursts=*/false));
  }
}

// A coarser bound: an execution under way when a burst comes may have begun
// unrestrained, and the whole burst waits behind it.
TEST_F(RandomIsolationTest, ABurstThatWasSavedUpForIsExecutedAlmostAsIfAlone) {
  for (const int instances : {1, draw_.Whole(2, 5)}) {
    ExpectWithinBound(RandomSituation(draw_, instances, /*bursts=*/true), 1.2);
  }
}

// Overloaded models of long, short and very short executions beside a quiet one
// on several instances: none is overtaken for ever.
TEST(IsolationLoadTest, OverloadedModelsOfUnequalExecutionsAllTakeTurns) {
  for (const bool with_short : {false, true}) {
    SCOPED_TRACE(with_short);
    Situation s;
    s.instances = 5;
    s.duration = absl::Seconds(5);
    std::mt19937 random(1);
    const auto add = [&](double share, double us, double instances) {
      s.models.push_back({.cost = {us, 0}, .share = share});
      s.models.back().arrivals =
          PoissonArrivals(random, instances * 1e6 / us, s.duration);
    };
    add(2, 500, 0.3);
    s.models[0].quiet = true;
    add(0.9, 600, 8);
    add(1.1, 3000, 8);
    if (with_short) add(0.8, 90, 8);
    const Observed seen = Observe(s, true);
    const double instances_1 = seen.rows_per_s[1] * 600e-6;
    const double instances_2 = seen.rows_per_s[2] * 3000e-6;
    std::printf("%.2f and %.2f instances\n", instances_1, instances_2);
    EXPECT_GE(instances_1, 0.3);
    EXPECT_GE(instances_2, 0.7 * instances_1 * 1.1 / 0.9);
  }
}

// A loud model of 10 ms beside a model with twenty requests in a burst, once a
// second: if turns were not kept short during the pauses, the first request of
// each burst, more than one request in a hundred, would wait for 10 ms.
TEST(IsolationLoadTest, ABurstDoesNotFindALongExecution) {
  Situation s;
  s.duration = absl::Seconds(60);
  s.models.resize(2);
  s.models[0] = {.quiet = true, .cost = {1000, 0}};
  for (int second = 0; second < 60; ++second) {
    for (int k = 0; k < 20; ++k) {
      s.models[0].arrivals.push_back(absl::Seconds(second) +
                                     absl::Milliseconds(3 * k));
    }
  }
  s.models[1] = {.cost = {40, 10}, .rows = 1000, .stepwise = true};
  std::mt19937 random(1);
  s.models[1].arrivals = PoissonArrivals(
      random, 1.2 / absl::ToDoubleSeconds(s.models[1].cost.Of(1000)),
      s.duration);
  EXPECT_EQ(Observe(s, false).p99[0], absl::Milliseconds(1));
  EXPECT_LE(Observe(s, true).p99[0], absl::Milliseconds(1.2));
  EXPECT_GE(Observe(s, true, /*isolation=*/false).p99[0],
            absl::Milliseconds(3));
}

}  // namespace
}  // namespace refract::gpu_node
