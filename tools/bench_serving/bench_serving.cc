#include "tools/bench_serving/bench_serving.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <sstream>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "tools/bench_serving/bench_serving_json.h"
#include "tools/bench_serving/serving_page.h"
#include "tools/bench_serving/worker_processes.h"
#include "tools/loadgen/max_rate.h"
#include "tools/loadgen/output/hdr_histogram.h"
#include "tools/loadgen/output/series.h"
#include "tools/loadgen/report.h"

namespace refract::tools {
namespace {

// A longer schedule is a typing error; schedules must fit in memory.
constexpr double kMaxQueries = 50e6;
constexpr int kMaxProcesses = 256;

absl::Status CheckOptions(const ServingOptions& options) {
  const auto positive = [](const char* name, double value) {
    // The negation also catches NaN.
    return value > 0 && std::isfinite(value)
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat(name, ": must be positive"));
  };
  // A trace has a rate and a length of its own.
  const bool traced = absl::StartsWith(options.arrivals, "trace:");
  if (!traced || options.qps != 0) {
    REFRACT_RETURN_IF_ERROR(positive("--qps", options.qps));
  }
  const double duration_s = options.duration_s.value_or(10);
  REFRACT_RETURN_IF_ERROR(positive("--duration", duration_s));
  REFRACT_RETURN_IF_ERROR(positive("--timeout", options.timeout_s));
  if (options.processes < 1 || options.processes > kMaxProcesses) {
    return absl::InvalidArgumentError(
        absl::StrCat("--processes: must be 1 to ", kMaxProcesses));
  }
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert: goes with --tls-key");
  }
  REFRACT_RETURN_IF_ERROR(
      positive("--connections", static_cast<double>(options.connections)));
  REFRACT_RETURN_IF_ERROR(
      positive("--max-in-flight", static_cast<double>(options.max_in_flight)));
  REFRACT_RETURN_IF_ERROR(
      positive("--memory-mib", static_cast<double>(options.memory_mib)));
  for (const auto& [name, value] :
       {std::pair("--warmup", options.warmup_s),
        std::pair("--slo-ms", options.slo_ms),
        std::pair("--wait", options.wait_s),
        std::pair("--length", static_cast<double>(options.length)),
        std::pair("--version", static_cast<double>(options.version))}) {
    if (!(value >= 0) || !std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": must not be negative"));
    }
  }
  if (options.find_max && options.slo_ms == 0) {
    return absl::InvalidArgumentError("--find-max: needs --slo-ms");
  }
  if (options.qps * (options.warmup_s + duration_s) > kMaxQueries) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--qps x --duration: more than ", kMaxQueries, " queries in one run"));
  }
  return absl::OkStatus();
}

// One invocation.
class ServingBench {
 public:
  ServingBench(const ServingOptions& options, std::ostream& out)
      : options_(options), out_(out), load_(LoadSource::Create(options, out)) {}

  absl::Status Run();

 private:
  absl::Status RunAt(double qps, ServingReport& report);
  absl::Status FindMax();
  absl::Status WriteFiles();
  void PrintRun();

  const ServingOptions& options_;
  std::ostream& out_;
  const std::unique_ptr<LoadSource> load_;
  ServingReport report_;
};

absl::Status ServingBench::RunAt(double qps, ServingReport& report) {
  REFRACT_ASSIGN_OR_RETURN(report.run, load_->Run(qps));
  std::optional<absl::Duration> slo;
  if (options_.slo_ms > 0) slo = absl::Milliseconds(options_.slo_ms);
  report.qps = qps;
  report.duration = load_->duration();
  report.measurement = loadgen::Measure(
      report.run.schedule, report.run.results,
      absl::Seconds(options_.warmup_s), load_->duration(), slo);
  return absl::OkStatus();
}

absl::Status ServingBench::FindMax() {
  std::vector<ServingReport::Try> tries;
  ServingReport lowest;  // the run of the lowest rate that failed
  const auto passes = [&](double qps) -> absl::StatusOr<bool> {
    ServingReport report;
    REFRACT_RETURN_IF_ERROR(RunAt(qps, report));
    const loadgen::Measurement& measurement = report.measurement;
    // Errors count, too: a server that refuses most requests answers the rest
    // quickly.
    const bool passed = measurement.MeetsSlo() && measurement.NoneFailed();
    out_ << absl::StreamFormat(
        "%9.2f queries/s: p99 %9.3f ms, %6.2f %% within %g ms, %d without "
        "an answer: %s\n",
        qps, absl::ToDoubleMilliseconds(measurement.latency.p99),
        100 * measurement.within_slo_share(), options_.slo_ms,
        measurement.queries - measurement.succeeded,
        passed ? "passed" : "failed");
    out_.flush();
    tries.push_back({.qps = qps,
                     .queries = measurement.queries,
                     .succeeded = measurement.succeeded,
                     .within_slo = measurement.within_slo,
                     .p99 = measurement.latency.p99,
                     .passed = passed});
    // Files and tables describe the highest rate that passed, or else the
    // lowest that was tried.
    if (passed && qps > report_.qps) {
      report_ = std::move(report);
    } else if (!passed && (lowest.qps == 0 || qps < lowest.qps)) {
      lowest = std::move(report);
    }
    return passed;
  };
  REFRACT_ASSIGN_OR_RETURN(const std::optional<double> max_qps,
                           loadgen::FindMaxRate(load_->qps(), passes));
  if (!max_qps) report_ = std::move(lowest);
  report_.tries = std::move(tries);
  if (!max_qps) return absl::OkStatus();
  report_.max_qps = max_qps;
  out_ << absl::StreamFormat("highest rate with p99 <= %g ms: %.2f/s\n",
                             options_.slo_ms, *max_qps);
  return absl::OkStatus();
}

void ServingBench::PrintRun() {
  const LoadRun& run = report_.run;
  loadgen::Print(report_.measurement, out_);
  for (const auto& [code, message] : run.answers.first_errors) {
    out_ << "first " << absl::StatusCodeToString(code) << ": " << message
         << "\n";
  }
  out_ << absl::StreamFormat("bytes per request: %.0f sent, %.0f received\n",
                             run.request_bytes, report_.response_bytes());
  if (run.server) {
    const auto ms = absl::ToDoubleMilliseconds;
    out_ << absl::StreamFormat(
        "server, mean ms (warm-up included): queue %.3f, CPU part before "
        "%.3f, GPU node and the way there %.3f, CPU part after %.3f\n",
        ms(run.server->queue), ms(run.server->before), ms(run.server->remote),
        ms(run.server->after));
  }
  if (run.distinct_requests < run.schedule.size()) {
    out_ << absl::StreamFormat(
        "%d distinct requests for %d queries (--memory-mib, or the trace's "
        "length): repeated rows may be in a cache\n",
        run.distinct_requests, run.schedule.size());
  }
}

absl::Status ServingBench::WriteFiles() {
  // A file that cannot be written leaves the others: the run is not repeatable.
  absl::Status written;
  if (!options_.record.empty()) written.Update(load_->WriteRecords());
  const LoadRun& run = report_.run;
  const absl::Duration warmup = absl::Seconds(options_.warmup_s);
  if (!options_.csv.empty()) {
    std::ostringstream text;
    loadgen::WriteQueriesCsv(run.schedule, run.results, warmup, text);
    written.Update(base::WriteText(options_.csv, text.str()));
  }
  if (!options_.hlog.empty()) {
    std::ostringstream text;
    loadgen::WriteHistogramLog(run.schedule, run.results, warmup, run.started,
                               text);
    written.Update(base::WriteText(options_.hlog, text.str()));
  }
  if (options_.json.empty() && options_.report.empty()) {
    return written;
  }
  const std::string json = ServingJson(options_, report_);
  if (!options_.json.empty()) {
    written.Update(options_.json.WriteText(json));
  }
  if (!options_.report.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const std::string page,
                             ServingPage({{options_.report, json}}));
    written.Update(base::WriteText(options_.report, page));
  }
  return written;
}

absl::Status ServingBench::Run() {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options_));
  // Before folders are made: wrong addresses and models are the usual mistakes.
  REFRACT_RETURN_IF_ERROR(load_->Connect());
  if (!options_.record.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.record, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("--record ", options_.record, ": ", error.message()));
    }
  }
  if (options_.find_max) {
    REFRACT_RETURN_IF_ERROR(FindMax());
  } else {
    REFRACT_RETURN_IF_ERROR(RunAt(load_->qps(), report_));
  }
  PrintRun();
  REFRACT_RETURN_IF_ERROR(WriteFiles());
  const auto& first_errors = report_.run.answers.first_errors;
  // After the files: they hold the errors. Some failed queries are a result; if
  // all fail or none was due, the command has measured nothing.
  if (options_.find_max && !report_.max_qps) {
    return absl::UnavailableError(
        absl::StrCat("--find-max: p99 exceeds ", options_.slo_ms,
                     " ms, or queries fail, even at the lowest rate tried, ",
                     report_.qps, " queries/s"));
  }
  if (report_.measurement.queries == 0) {
    return absl::UnavailableError(
        "no query was due after --warmup: a higher --qps, or a longer "
        "--duration");
  }
  if (report_.measurement.succeeded == 0) {
    return absl::UnavailableError(absl::StrCat(
        "all ", report_.measurement.queries, " queries failed",
        first_errors.empty()
            ? ""
            : absl::StrCat("; the first: ", first_errors.begin()->second)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunServing(const ServingOptions& options, std::ostream& out) {
  return ServingBench(options, out).Run();
}

absl::Status CompareServing(const std::vector<std::string>& reports,
                            const std::string& page) {
  std::vector<NamedReport> named;
  for (const std::string& path : reports) {
    REFRACT_ASSIGN_OR_RETURN(std::string json, base::ReadText(path));
    named.push_back({path, std::move(json)});
  }
  REFRACT_ASSIGN_OR_RETURN(const std::string text, ServingPage(named));
  return base::WriteText(page, text);
}

}  // namespace refract::tools
