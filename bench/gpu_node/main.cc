// Measures the gain of executing requests together on this machine's processor:
// the highest rate at which 99 % of the requests are answered within the SLO,
// with batching ÷ without, for the same Poisson schedule.
//
//   bench_scheduler --model DIR/NAME
//       [--rows 1,2,4] [--slo-ms 20] [--window-us 0] [--rounds 5]
//
// Each variant is a GPU node on its CPU device, in real time, asked in memory.
// Open loop: latency counts from the scheduled time, and a refused or late
// request counts as never answered. A rate fails if kTries runs of the same
// schedule fail: a run in which another process had the processor for longer
// than the SLO says nothing about the node, and would end the search. Variants
// take turns in each round, whose schedule has a seed of its own; the ratio is
// taken within the round. Before anything is timed, the answers to merged
// requests are compared with the answers to each request alone. The load
// generator runs on a thread of the same process and needs a processor. Exit
// status: 2 bad usage or input, 1 answers that differ or a rate that cannot be
// found.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/number_range.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "bench/gpu_node/node_subject.h"
#include "bench/runtime/timing.h"
#include "glog/logging.h"
#include "models/repository/repository.h"
#include "nlohmann/json.hpp"
#include "runtime/torch/caller.h"
#include "tools/bench_json.h"
#include "tools/loadgen/arrivals/arrivals.h"
#include "tools/loadgen/max_rate.h"
#include "tools/loadgen/open_loop.h"
#include "tools/loadgen/random.h"
#include "tools/loadgen/report.h"

namespace refract::bench {
namespace {

struct Options {
  std::string model;  // DIR/NAME
  std::vector<int64_t> rows = {1, 2, 4};
  double slo_ms = 20;
  double window_us = 0;
  double seconds = 1.5;
  int instances = 1;
  int rounds = 5;
  uint64_t seed = 1;
  std::string json;
};

// Tolerance of an answer's elements, relative where they are large.
constexpr double kTolerance = 1e-3;
// Runs at a rate until one holds the SLO.
constexpr int kTries = 3;
// Warm-up of each run, not counted.
constexpr double kWarmUpShare = 0.1;

struct RunResult {
  loadgen::Measurement measured;
  double requests_per_execution = 0;
};

RunResult RunAt(NodeSubject& subject, const Options& options, double rate,
                uint64_t seed) {
  const absl::Duration length = absl::Seconds(options.seconds);
  loadgen::Random random(seed, "requests");
  std::vector<loadgen::PlannedQuery> schedule;
  for (const absl::Duration at : loadgen::ArrivalProfile().Draw(
           rate, absl::ZeroDuration(), length, seed)) {
    const size_t request = random.Below(options.rows.size());
    schedule.push_back({at, options.rows[request], request});
  }
  const absl::Duration slo = absl::Milliseconds(options.slo_ms);
  const gpu_node::ModelStats before = subject.stats();
  loadgen::OpenLoopRun run(base::Clock::Real(), schedule,
                           {.timeout = slo, .max_in_flight = 1'000'000});
  const std::vector<loadgen::QueryResult> results = run.Run(subject);
  const gpu_node::ModelStats after = subject.stats();
  const absl::Duration warm_up = kWarmUpShare * length;
  RunResult result;
  result.measured =
      loadgen::Measure(schedule, results, warm_up, length - warm_up, slo);
  const auto executions = static_cast<double>(after.batches - before.batches);
  if (executions > 0) {
    result.requests_per_execution =
        static_cast<double>(after.succeeded - before.succeeded) / executions;
  }
  return result;
}

struct Found {
  double rate = 0;
  RunResult at;  // the last run that passed
  int runs = 0;
  int failed_runs = 0;
};

absl::StatusOr<Found> FindRate(NodeSubject& subject, const Options& options,
                               double start, uint64_t seed) {
  Found found;
  REFRACT_ASSIGN_OR_RETURN(
      const std::optional<double> rate,
      loadgen::FindMaxRate(start, [&](double rate) -> absl::StatusOr<bool> {
        for (int attempt = 0; attempt < kTries; ++attempt) {
          const RunResult result = RunAt(subject, options, rate, seed);
          ++found.runs;
          if (!result.measured.MeetsSlo()) {
            ++found.failed_runs;
            continue;
          }
          if (rate > found.rate) {
            found.rate = rate;
            found.at = result;
          }
          return true;
        }
        return false;
      }));
  if (!rate.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no rate down to ", start / 1024, "/s holds ", options.slo_ms, " ms"));
  }
  return found;
}

// Merged requests must have the answers that each request has alone.
absl::Status CheckAnswers(NodeSubject& alone, NodeSubject& merged) {
  REFRACT_ASSIGN_OR_RETURN(const auto expected, alone.AnswerAll());
  bool shared = false;
  // Several rounds: the first request executes alone, and a quick round may
  // merge none.
  for (int i = 0; i < 100 && !shared; ++i) {
    REFRACT_ASSIGN_OR_RETURN(const auto seen, merged.AnswerAll());
    shared = merged.stats().merged > 0;
    for (size_t r = 0; r < expected.size(); ++r) {
      if (expected[r].empty() || seen[r].size() != expected[r].size()) {
        return absl::InternalError(absl::StrCat("request ", r, " has ",
                                                seen[r].size(), " values of ",
                                                expected[r].size()));
      }
      for (size_t k = 0; k < expected[r].size(); ++k) {
        const double difference =
            std::abs(static_cast<double>(seen[r][k]) - expected[r][k]) /
            std::max(1.0f, std::abs(expected[r][k]));
        if (difference <= kTolerance) continue;
        return absl::InternalError(
            absl::StrCat("value ", k, " of request ", r, " is ", seen[r][k],
                         " among others and ", expected[r][k], " alone"));
      }
    }
  }
  if (!shared) return absl::InternalError("no two requests were merged");
  return absl::OkStatus();
}

Json Describe(const Found& found) {
  const loadgen::Measurement& m = found.at.measured;
  return {{"max_rate_per_s", found.rate},
          {"p50_ms", absl::ToDoubleMilliseconds(m.latency.p50)},
          {"p99_ms", absl::ToDoubleMilliseconds(m.latency.p99)},
          {"within_slo", m.within_slo_share()},
          {"requests", m.queries},
          {"runs", found.runs},
          {"failed_runs", found.failed_runs},
          {"requests_per_execution", found.at.requests_per_execution},
          {"generator_lateness_p99_ms",
           absl::ToDoubleMilliseconds(m.lateness.p99)}};
}

absl::StatusOr<std::shared_ptr<const models::LoadedModel>> LoadModel(
    const Options& options) {
  REFRACT_ASSIGN_OR_RETURN(const models::ModelPath path,
                           models::ParseModelPath(options.model));
  return models::Repository(path.repository).Load(path.name, path.version);
}

absl::Status Measure(const Options& options, Json& json) {
  REFRACT_ASSIGN_OR_RETURN(const auto model, LoadModel(options));
  // Several requests of each size, so that the check merges some.
  std::vector<int64_t> rows = options.rows;
  while (rows.size() < 8) {
    rows.insert(rows.end(), options.rows.begin(), options.rows.end());
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<PreparedRequest> requests,
                           PrepareRequests(*model, rows));
  REFRACT_ASSIGN_OR_RETURN(
      const auto off, NodeSubject::Create(model, requests,
                                          {.batching_window = std::nullopt,
                                           .instances = options.instances}));
  REFRACT_ASSIGN_OR_RETURN(
      const auto on,
      NodeSubject::Create(
          model, requests,
          {.batching_window = absl::Microseconds(options.window_us),
           .instances = options.instances}));
  if (!on->merges()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the requests of model '", model->name, "' cannot be merged"));
  }
  REFRACT_RETURN_IF_ERROR(CheckAnswers(*off, *on));

  json["model"] = options.model;
  json["rows"] = options.rows;
  json["slo_ms"] = options.slo_ms;
  json["window_us"] = options.window_us;
  json["instances"] = options.instances;
  json["seconds_per_run"] = options.seconds;
  json["runs_until_a_rate_fails"] = kTries;
  json["seed"] = options.seed;
  // The search starts at a tenth of the rate of one request after the other: an
  // easy rate, from which doubling soon finds a rate that fails.
  const gpu_node::ModelStats seen = off->stats();
  const double alone_s = absl::ToDoubleSeconds(seen.device_time) /
                         static_cast<double>(seen.batches);
  json["execution_alone_ms"] = alone_s * 1e3;
  const double start = 0.1 * options.instances / alone_s;

  std::vector<double> rates_off;
  std::vector<double> rates_on;
  std::vector<double> ratios;
  bool late = false;
  for (int round = 0; round < options.rounds; ++round) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(round);
    Found found[2];
    // The first variant changes with the round.
    for (int turn = 0; turn < 2; ++turn) {
      const int which = (round + turn) % 2;
      REFRACT_ASSIGN_OR_RETURN(found[which], FindRate(which == 1 ? *on : *off,
                                                      options, start, seed));
      late |= loadgen::ClientWasLate(found[which].at.measured);
    }
    rates_off.push_back(found[0].rate);
    rates_on.push_back(found[1].rate);
    ratios.push_back(found[1].rate / found[0].rate);
    json["rounds"].push_back({{"seed", seed},
                              {"off", Describe(found[0])},
                              {"on", Describe(found[1])},
                              {"ratio", ratios.back()}});
    std::fprintf(stderr, "round %d: %.0f/s alone, %.0f/s merged, %.2f times\n",
                 round + 1, found[0].rate, found[1].rate, ratios.back());
  }
  json["off_per_s"] = Quartiles(rates_off);
  json["on_per_s"] = Quartiles(rates_on);
  json["on_over_off"] = Quartiles(ratios);
  json["generator_was_late"] = late;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::WARNING;
  CLI::App app(
      "Measures the gain of batching on a GPU node with a CPU device.");
  app.option_defaults()->always_capture_default();
  Options options;
  app.add_option("--model", options.model,
                 "DIR/NAME of a split model in a repository")
      ->required();
  app.add_option("--rows", options.rows,
                 "rows of requests; all numbers are equally frequent")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--slo-ms", options.slo_ms,
                 "latency that 99 % of requests must meet, ms")
      ->check(base::NumberIn(0.01, 60'000.0));
  app.add_option("--window-us", options.window_us,
                 "batching window, us: time that a request waits for others "
                 "while an instance is free")
      ->check(base::NumberIn(0.0, 1e6));
  app.add_option("--instances", options.instances, "executing threads")
      ->check(CLI::Range(1, 1024));
  app.add_option("--seconds", options.seconds,
                 "seconds of each run at one rate")
      ->check(base::NumberIn(0.1, 600.0));
  app.add_option("--rounds", options.rounds, "repetitions, at least 3")
      ->check(CLI::Range(3, 1000));
  app.add_option("--seed", options.seed, "seed of the first round's schedule");
  app.add_option("--json", options.json, "file to write the result to")
      ->check(base::CheckOutputFile);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  runtime::aten::UseOneThread();
  Json json = tools::BenchJson("scheduler");
  const absl::Status status = Measure(options, json);
  if (!status.ok()) {
    std::fprintf(stderr, "bench_scheduler: %s\n",
                 std::string(status.message()).c_str());
    return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? 2 : 1;
  }
  if (options.json.empty()) {
    std::cout << base::FormatJson(json, 2) << "\n";
  } else if (!(std::ofstream(options.json)
               << base::FormatJson(json, 2) << "\n")) {
    std::fprintf(stderr, "bench_scheduler: cannot write %s\n",
                 options.json.c_str());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace refract::bench

int main(int argc, char** argv) { return refract::bench::Main(argc, argv); }
