#include "tools/bench_serving/bench_serving.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "models/repository/safetensors.h"
#include "tools/bench_serving/bench_serving_json.h"
#include "base/process/files.h"
#include "tools/loadgen/grpc_target.h"
#include "tools/loadgen/max_rate.h"
#include "tools/loadgen/open_loop.h"
#include "tools/loadgen/report.h"
#include "tools/loadgen/request_maker.h"
#include "tools/loadgen/schedule.h"
#include "tools/loadgen/served_model.h"

namespace refract::tools {
namespace {

// A schedule longer than this is a slip of the keyboard; it must fit in memory.
constexpr double kMaxQueries = 50e6;

absl::Status CheckOptions(const ServingOptions& options) {
  const auto positive = [](const char* name, double value) {
    // The negation also catches NaN.
    return value > 0 && std::isfinite(value)
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat(name, ": must be positive"));
  };
  REFRACT_RETURN_IF_ERROR(positive("--qps", options.qps));
  REFRACT_RETURN_IF_ERROR(positive("--duration", options.duration_s));
  REFRACT_RETURN_IF_ERROR(positive("--timeout", options.timeout_s));
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
  if (options.qps * (options.warmup_s + options.duration_s) > kMaxQueries) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--qps x --duration: more than ", kMaxQueries, " queries in one run"));
  }
  return absl::OkStatus();
}

// The state of one invocation: a server, a model, and requests that grow in
// number as longer runs need them.
class ServingBench {
 public:
  ServingBench(const ServingOptions& options, std::ostream& out)
      : options_(options), out_(out) {}

  absl::Status Run();

 private:
  absl::Status Connect();
  absl::Status PrepareRequests(size_t count);
  absl::Status Probe();
  absl::StatusOr<loadgen::Measurement> RunAt(double qps);
  absl::Status FindMax();
  absl::Status WriteRecords();
  void PrintRun(const loadgen::Measurement& measurement);

  const ServingOptions& options_;
  std::ostream& out_;
  base::Clock& clock_ = base::Clock::Real();
  std::unique_ptr<loadgen::GrpcTarget> target_;
  loadgen::ServedModel model_;
  std::optional<loadgen::RequestMaker> maker_;
  std::optional<loadgen::QuerySizes> sizes_;
  std::optional<loadgen::Random> size_random_;
  std::vector<int64_t> items_;  // of each prepared request
  uint64_t prepared_bytes_ = 0;
  std::vector<std::vector<base::Tensor>> recorded_;  // the first requests
  ServingReport report_;
};

absl::Status ServingBench::Connect() {
  REFRACT_ASSIGN_OR_RETURN(sizes_,
                           loadgen::QuerySizes::Parse(options_.query_sizes));
  size_random_.emplace(options_.seed, "query sizes");
  loadgen::RequestOptions request_options{.length = options_.length,
                                          .seed = options_.seed};
  REFRACT_ASSIGN_OR_RETURN(request_options.ids,
                           loadgen::ParseIdSkew(options_.ids));
  REFRACT_ASSIGN_OR_RETURN(request_options.bags,
                           loadgen::BagSizes::Parse(options_.bag_sizes));
  REFRACT_ASSIGN_OR_RETURN(const auto rows, loadgen::ParseRows(options_.rows));
  if (!options_.criteo.empty()) {
    // As many as all queries of a run have items; a small file comes round.
    const double queries =
        options_.qps * (options_.warmup_s + options_.duration_s);
    const double wanted = (queries * 1.2 + 16) * sizes_->mean();
    const double room = static_cast<double>(options_.memory_mib) * (1 << 20) /
                        sizeof(loadgen::CriteoRow);
    REFRACT_ASSIGN_OR_RETURN(
        request_options.criteo,
        loadgen::ReadCriteo(options_.criteo,
                            static_cast<size_t>(std::min(wanted, room)) + 1));
  }
  REFRACT_ASSIGN_OR_RETURN(
      target_, loadgen::GrpcTarget::Connect(
                   {.address = options_.target,
                    .connections = options_.connections,
                    .connect_timeout = absl::Seconds(options_.wait_s)},
                   clock_));
  REFRACT_ASSIGN_OR_RETURN(
      model_, target_->DescribeModel(
                  options_.model,
                  options_.version == 0 ? "" : absl::StrCat(options_.version),
                  absl::Seconds(options_.wait_s)));
  REFRACT_ASSIGN_OR_RETURN(loadgen::RequestPlan plan,
                           loadgen::PlanRequests(model_, rows));
  for (const loadgen::InputPlan& input : plan.inputs) {
    if (!loadgen::IsUnknownMatrix(input)) continue;
    out_ << "note: the server does not say what the integers of input "
         << input.input.name << " mean: all are 0. For ids: --rows "
         << input.input.name << "=N,...\n";
  }
  REFRACT_ASSIGN_OR_RETURN(
      maker_, loadgen::RequestMaker::Create(std::move(plan),
                                            std::move(request_options)));
  return absl::OkStatus();
}

// Stops short of `count` when the memory for requests is used up.
absl::Status ServingBench::PrepareRequests(size_t count) {
  const uint64_t limit = static_cast<uint64_t>(options_.memory_mib) << 20;
  while (items_.size() < count && prepared_bytes_ < limit) {
    const int64_t items = sizes_->Draw(*size_random_);
    REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> tensors,
                             maker_->Make(items));
    prepared_bytes_ += target_->Prepare(model_, tensors);
    if (!options_.record.empty() && items_.size() < options_.record_count) {
      recorded_.push_back(std::move(tensors));
    }
    items_.push_back(items);
  }
  return absl::OkStatus();
}

// One request before the load. A server that refuses what it is asked has no
// latencies that are worth measuring; one that fails for the moment may recover
// during the run.
absl::Status ServingBench::Probe() {
  REFRACT_RETURN_IF_ERROR(PrepareRequests(1));
  const loadgen::PlannedQuery query{.items = items_[0], .request = 0};
  const std::vector<loadgen::QueryResult> results =
      loadgen::OpenLoopRun(clock_, absl::MakeConstSpan(&query, 1),
                           {.timeout = absl::Seconds(options_.timeout_s)})
          .Run(*target_);
  const loadgen::GrpcTarget::Answers answers = target_->TakeAnswers();
  const absl::StatusCode code = results[0].code;
  if (code != absl::StatusCode::kInvalidArgument &&
      code != absl::StatusCode::kNotFound &&
      code != absl::StatusCode::kUnimplemented) {
    return absl::OkStatus();
  }
  const auto message = answers.first_errors.find(code);
  return absl::Status(code, absl::StrCat("the server refuses requests to ",
                                         options_.model, ": ",
                                         message == answers.first_errors.end()
                                             ? absl::StatusCodeToString(code)
                                             : message->second));
}

absl::StatusOr<loadgen::Measurement> ServingBench::RunAt(double qps) {
  const absl::Duration warmup = absl::Seconds(options_.warmup_s);
  const absl::Duration duration = absl::Seconds(options_.duration_s);
  const std::vector<absl::Duration> arrivals =
      loadgen::PoissonArrivals(qps, warmup + duration, options_.seed);
  REFRACT_RETURN_IF_ERROR(PrepareRequests(arrivals.size()));
  std::vector<loadgen::PlannedQuery> schedule;
  schedule.reserve(arrivals.size());
  for (absl::Duration at : arrivals) {
    const size_t request = schedule.size() % items_.size();
    schedule.push_back(
        {.at = at, .items = items_[request], .request = request});
  }
  const auto before = target_->Statistics(model_);
  const std::vector<loadgen::QueryResult> results =
      loadgen::OpenLoopRun(clock_, schedule,
                           {.timeout = absl::Seconds(options_.timeout_s),
                            .max_in_flight = options_.max_in_flight})
          .Run(*target_);
  const auto after = target_->Statistics(model_);

  report_.answers = target_->TakeAnswers();
  report_.distinct_requests = std::min(items_.size(), schedule.size());
  report_.sent_requests = schedule.size();
  report_.request_bytes =
      items_.empty() ? 0 : static_cast<double>(prepared_bytes_) / items_.size();
  report_.server.reset();
  if (before.ok() && after.ok() && after->requests > before->requests) {
    const int64_t n = static_cast<int64_t>(after->requests - before->requests);
    report_.server = {.requests = static_cast<uint64_t>(n),
                      .queue = (after->queue - before->queue) / n,
                      .before = (after->before - before->before) / n,
                      .remote = (after->remote - before->remote) / n,
                      .after = (after->after - before->after) / n};
  }
  std::optional<absl::Duration> slo;
  if (options_.slo_ms > 0) slo = absl::Milliseconds(options_.slo_ms);
  return loadgen::Measure(schedule, results, warmup, duration, slo);
}

absl::Status ServingBench::FindMax() {
  std::optional<loadgen::Measurement> best;
  std::optional<ServingReport> best_report;
  const auto passes = [&](double qps) -> absl::StatusOr<bool> {
    REFRACT_ASSIGN_OR_RETURN(loadgen::Measurement measurement, RunAt(qps));
    const bool passed = measurement.MeetsSlo() && measurement.NoneFailed();
    out_ << absl::StreamFormat(
        "%9.2f queries/s: p99 %9.3f ms, %6.2f %% within %g ms, %d without "
        "an answer: %s\n",
        qps, absl::ToDoubleMilliseconds(measurement.latency.p99),
        100 * measurement.within_slo_share(), options_.slo_ms,
        measurement.queries - measurement.succeeded,
        passed ? "passed" : "failed");
    out_.flush();
    report_.tries.push_back({qps, measurement.latency.p99, passed});
    if (passed && (!best || qps > report_.qps)) {
      report_.qps = qps;
      best = std::move(measurement);
      best_report = report_;
    }
    return passed;
  };
  REFRACT_ASSIGN_OR_RETURN(const std::optional<double> max_qps,
                           loadgen::FindMaxRate(options_.qps, passes));
  if (!max_qps) {
    return absl::FailedPreconditionError(
        absl::StrCat("--find-max: p99 exceeds ", options_.slo_ms,
                     " ms, or queries fail, even at the lowest rate tried, ",
                     report_.tries.back().qps, " queries/s"));
  }
  std::vector<ServingReport::Try> tries = std::move(report_.tries);
  report_ = *std::move(best_report);
  report_.tries = std::move(tries);
  report_.max_qps = max_qps;
  report_.measurement = *std::move(best);
  out_ << absl::StreamFormat("highest rate with p99 <= %g ms: %.2f/s\n",
                             options_.slo_ms, *max_qps);
  return absl::OkStatus();
}

absl::Status ServingBench::WriteRecords() {
  const std::filesystem::path folder(options_.record);
  using NamedViews = std::vector<std::pair<std::string, base::TensorView>>;
  for (size_t i = 0; i < recorded_.size(); ++i) {
    absl::StatusOr<loadgen::RecordedResponse> response = target_->Recorded(i);
    if (absl::IsNotFound(response.status())) continue;  // it failed
    REFRACT_RETURN_IF_ERROR(response.status());
    NamedViews request;
    for (size_t k = 0; k < recorded_[i].size(); ++k) {
      request.emplace_back(model_.inputs[k].name, recorded_[i][k].view());
    }
    NamedViews outputs;
    for (size_t k = 0; k < response->outputs.size(); ++k) {
      outputs.emplace_back(response->names[k], response->outputs[k].view());
    }
    const auto path = [&](const char* kind) {
      return (folder / absl::StrCat(kind, "_", i, ".safetensors")).string();
    };
    REFRACT_RETURN_IF_ERROR(models::WriteSafetensors(path("request"), request));
    REFRACT_RETURN_IF_ERROR(
        models::WriteSafetensors(path("response"), outputs));
  }
  return absl::OkStatus();
}

void ServingBench::PrintRun(const loadgen::Measurement& measurement) {
  loadgen::Print(measurement, out_);
  for (const auto& [code, message] : report_.answers.first_errors) {
    out_ << "first " << absl::StatusCodeToString(code) << ": " << message
         << "\n";
  }
  out_ << absl::StreamFormat("bytes per request: %.0f sent, %.0f received\n",
                             report_.request_bytes, report_.response_bytes());
  if (report_.server) {
    const auto ms = absl::ToDoubleMilliseconds;
    out_ << absl::StreamFormat(
        "server, mean ms (warm-up included): queue %.3f, CPU part before "
        "%.3f, GPU node and the way there %.3f, CPU part after %.3f\n",
        ms(report_.server->queue), ms(report_.server->before),
        ms(report_.server->remote), ms(report_.server->after));
  }
  if (report_.distinct_requests < report_.sent_requests) {
    out_ << absl::StreamFormat(
        "%d distinct requests for %d queries (--memory-mib): rows that come "
        "again may be in a cache\n",
        report_.distinct_requests, report_.sent_requests);
  }
}

absl::Status ServingBench::Run() {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options_));
  REFRACT_RETURN_IF_ERROR(Connect());
  REFRACT_RETURN_IF_ERROR(Probe());
  if (!options_.record.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.record, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("--record ", options_.record, ": ", error.message()));
    }
    target_->Record(options_.record_count);
  }
  if (options_.find_max) {
    REFRACT_RETURN_IF_ERROR(FindMax());
  } else {
    report_.qps = options_.qps;
    REFRACT_ASSIGN_OR_RETURN(report_.measurement, RunAt(options_.qps));
  }
  PrintRun(report_.measurement);
  if (!options_.record.empty()) REFRACT_RETURN_IF_ERROR(WriteRecords());
  if (!options_.json.empty()) {
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(options_.json, ServingJson(options_, report_)));
  }
  if (report_.measurement.queries > 0 && report_.measurement.succeeded == 0) {
    return absl::UnavailableError(absl::StrCat(
        "all ", report_.measurement.queries, " queries failed",
        report_.answers.first_errors.empty()
            ? ""
            : absl::StrCat("; the first: ",
                           report_.answers.first_errors.begin()->second)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunServing(const ServingOptions& options, std::ostream& out) {
  return ServingBench(options, out).Run();
}

}  // namespace refract::tools
