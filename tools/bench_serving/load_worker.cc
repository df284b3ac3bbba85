#include "tools/bench_serving/load_worker.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "models/repository/files/safetensors.h"
#include "tools/loadgen/bag_sizes.h"
#include "tools/loadgen/criteo.h"
#include "tools/loadgen/ids.h"
#include "tools/loadgen/request_file.h"
#include "tools/loadgen/targets/grpc_target.h"
#include "tools/loadgen/targets/http_target.h"

namespace refract::tools {
namespace {

constexpr absl::string_view kTracePrefix = "trace:";

}  // namespace

LoadWorker::LoadWorker(const ServingOptions& options, std::ostream& out,
                       int part, int parts)
    : options_(options),
      out_(out),
      part_(static_cast<size_t>(part)),
      parts_(static_cast<size_t>(parts)),
      clock_(base::Clock::Real()),
      sizes_(*loadgen::QuerySizes::Parse("mlperf")),
      size_random_(options.seed + part_, "query sizes"),
      warmup_(absl::Seconds(options.warmup_s)),
      duration_(absl::Seconds(options.duration_s.value_or(10))),
      qps_(options.qps) {}

LoadWorker::~LoadWorker() = default;

absl::Status LoadWorker::Connect() {
  REFRACT_RETURN_IF_ERROR(ReadContentOptions());
  if (absl::StartsWith(options_.arrivals, kTracePrefix)) {
    if (!options_.requests.empty()) {
      return absl::InvalidArgumentError(
          "--requests: a trace has requests of its own");
    }
  } else {
    REFRACT_ASSIGN_OR_RETURN(profile_,
                             loadgen::ArrivalProfile::Parse(options_.arrivals));
  }
  REFRACT_RETURN_IF_ERROR(ConnectTarget());
  REFRACT_ASSIGN_OR_RETURN(
      model_, target_->DescribeModel(
                  options_.model,
                  options_.version == 0 ? "" : absl::StrCat(options_.version),
                  absl::Seconds(options_.wait_s)));
  if (absl::StartsWith(options_.arrivals, kTracePrefix)) {
    REFRACT_RETURN_IF_ERROR(ReadArrivals());
  } else if (!options_.requests.empty()) {
    REFRACT_RETURN_IF_ERROR(ReadRequests());
  } else {
    REFRACT_RETURN_IF_ERROR(MakeRequestMaker());
    REFRACT_RETURN_IF_ERROR(PrepareRequests(1));
  }
  return Probe();
}

absl::Status LoadWorker::ConnectTarget() {
  loadgen::TargetOptions target{
      .addresses = options_.targets,
      .connections = options_.connections,
      .connect_timeout = absl::Seconds(options_.wait_s),
      .tls = options_.tls || !options_.tls_ca.empty()};
  for (const auto& [path, text] : {std::pair(&options_.tls_ca, &target.roots),
                                   std::pair(&options_.tls_cert,
                                             &target.certificate),
                                   std::pair(&options_.tls_key, &target.key),
                                   std::pair(&options_.token_file,
                                             &target.token)}) {
    if (path->empty()) continue;
    REFRACT_ASSIGN_OR_RETURN(*text, base::ReadText(*path));
  }
  absl::StripAsciiWhitespace(&target.token);
  if (!options_.token_file.empty() &&
      (target.token.empty() ||
       target.token.find_first_of(" \r\n\t") != std::string::npos)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file: ", options_.token_file,
                     ": holds no token on one line"));
  }
  REFRACT_ASSIGN_OR_RETURN(target_, options_.protocol == "http"
                                        ? loadgen::ConnectHttp(target, clock_)
                                        : loadgen::ConnectGrpc(target, clock_));
  return absl::OkStatus();
}

absl::Status LoadWorker::ReadContentOptions() {
  request_options_.length = options_.length;
  // A seed per process: with one seed all processes would send the same
  // requests.
  request_options_.seed = options_.seed + part_;
  REFRACT_ASSIGN_OR_RETURN(sizes_,
                           loadgen::QuerySizes::Parse(options_.query_sizes));
  REFRACT_ASSIGN_OR_RETURN(request_options_.ids,
                           loadgen::ParseIdSkew(options_.ids));
  REFRACT_ASSIGN_OR_RETURN(request_options_.bags,
                           loadgen::BagSizes::Parse(options_.bag_sizes));
  REFRACT_ASSIGN_OR_RETURN(rows_, loadgen::ParseRows(options_.rows));
  REFRACT_ASSIGN_OR_RETURN(table_ids_,
                           loadgen::TableIds::Open(options_.table_ids));
  if (options_.criteo.empty()) return absl::OkStatus();
  // As many rows as all queries of a run have items, and a fifth more, since
  // arrivals are random; fewer if memory is short. The rows are divided among
  // the processes. A small file is read again from its start.
  const double queries = qps_ * absl::ToDoubleSeconds(warmup_ + duration_);
  const double wanted = (queries * 1.2 + 16) * sizes_.mean();
  const double room = static_cast<double>(options_.memory_mib) * (1 << 20) /
                      sizeof(loadgen::CriteoRow);
  const double most = std::min(wanted, room) / static_cast<double>(parts_);
  REFRACT_ASSIGN_OR_RETURN(
      request_options_.criteo,
      loadgen::ReadCriteo(options_.criteo, static_cast<size_t>(most) + 1,
                          part_, parts_));
  return absl::OkStatus();
}

// The maker draws the contents of requests that a trace does not give.
absl::Status LoadWorker::MakeRequestMaker() {
  REFRACT_ASSIGN_OR_RETURN(loadgen::RequestPlan plan,
                           loadgen::PlanRequests(model_, rows_, table_ids_));
  for (const loadgen::InputPlan& input : plan.inputs) {
    if (!loadgen::HasUnknownIntegers(input)) continue;
    out_ << "note: the server does not say what the integers of input "
         << input.input.name << " mean: all are " << input.least
         << ". For ids: --rows "
         << input.input.name << "=N,...\n";
  }
  REFRACT_ASSIGN_OR_RETURN(maker_, loadgen::RequestMaker::Create(
                                       std::move(plan), request_options_));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<base::Tensor>> LoadWorker::MakeTensors(
    int64_t items) {
  if (!maker_) REFRACT_RETURN_IF_ERROR(MakeRequestMaker());
  return maker_->Make(items);
}

bool LoadWorker::HasRoom() const {
  return prepared_bytes_ <
         (static_cast<uint64_t>(options_.memory_mib) << 20) / parts_;
}

absl::Status LoadWorker::PrepareRequest(int64_t items,
                                        std::vector<base::Tensor> tensors) {
  // Encoded before the run, so that a run only hands bytes to connections.
  prepared_bytes_ += target_->Prepare(model_, tensors);
  if (!options_.record.empty() && items_.size() < options_.record_count) {
    recorded_.push_back(std::move(tensors));
  }
  items_.push_back(items);
  return absl::OkStatus();
}

// Stops short of `count` when the memory for requests is used up.
absl::Status LoadWorker::PrepareRequests(size_t count) {
  while (items_.size() < count && HasRoom()) {
    const int64_t items = sizes_.Draw(size_random_);
    REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> tensors,
                             MakeTensors(items));
    REFRACT_RETURN_IF_ERROR(PrepareRequest(items, std::move(tensors)));
  }
  return absl::OkStatus();
}

// Every process sends all files, so that their number need not be that of the
// processes.
absl::Status LoadWorker::ReadRequests() {
  for (const std::string& path : options_.requests) {
    auto tensors = loadgen::ReadRequest(path, model_);
    if (!tensors.ok()) return base::Annotate(tensors.status(), "--requests");
    const int64_t items = loadgen::ItemsOf(model_, *tensors);
    REFRACT_RETURN_IF_ERROR(PrepareRequest(items, *std::move(tensors)));
  }
  return absl::OkStatus();
}

// Prepares this process's requests of the trace in their order, until the
// memory for requests is used up.
absl::Status LoadWorker::ReadArrivals() {
  const std::string path(
      absl::StripPrefix(options_.arrivals, kTracePrefix));
  REFRACT_RETURN_IF_ERROR(loadgen::ReadTrace(
      path, model_, [this](loadgen::TracedQuery query) -> absl::Status {
        // Every process reads the whole trace, since arrivals of all are needed
        // to stretch it, and keeps the contents of its own requests only.
        const bool mine = trace_.size() % parts_ == part_;
        trace_.push_back(query.at);
        if (!mine || !HasRoom()) return absl::OkStatus();
        if (query.tensors.empty()) {
          REFRACT_ASSIGN_OR_RETURN(query.tensors, MakeTensors(query.items));
        }
        return PrepareRequest(query.items, std::move(query.tensors));
      }));
  if (items_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--processes: the trace ", path, " has ", trace_.size(),
                     " request(s) only"));
  }
  // The length of the trace is the time to its last request and one mean gap:
  // repeated, it keeps its rate. `count` requests have count − 1 gaps.
  const double count = static_cast<double>(trace_.size());
  trace_length_ = trace_.size() < 2 || trace_.back() == absl::ZeroDuration()
                      ? absl::Seconds(1)
                      : trace_.back() * (count / (count - 1));
  if (qps_ == 0) qps_ = count / absl::ToDoubleSeconds(trace_length_);
  if (!options_.duration_s) {
    duration_ = absl::Seconds(count / qps_) - warmup_;
    if (duration_ <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--warmup: the trace ", path, " takes ",
          absl::FormatDuration(duration_ + warmup_), " only"));
    }
  }
  return absl::OkStatus();
}

// Sends a request before the load. If the server refuses such requests for
// good, latencies mean nothing and the run ends here. The cause of any other
// error may have passed when the load begins.
absl::Status LoadWorker::Probe() {
  const loadgen::PlannedQuery query{.items = items_[0], .request = 0};
  const std::vector<loadgen::QueryResult> results =
      loadgen::OpenLoopRun(clock_, absl::MakeConstSpan(&query, 1),
                           {.timeout = absl::Seconds(options_.timeout_s)})
          .Run(*target_);
  const loadgen::Target::Answers answers = target_->TakeAnswers();
  if (!options_.record.empty()) target_->Record(options_.record_count);
  const absl::StatusCode code = results[0].code;
  if (code != absl::StatusCode::kInvalidArgument &&
      code != absl::StatusCode::kNotFound &&
      code != absl::StatusCode::kUnimplemented) {
    return absl::OkStatus();
  }
  const auto message = answers.first_errors.find(code);
  const absl::Status refused(
      code, absl::StrCat("the server refuses requests to ", options_.model, ": ",
                         message == answers.first_errors.end()
                             ? absl::StatusCodeToString(code)
                             : message->second));
  const bool drawn = options_.requests.empty() && options_.criteo.empty() &&
                     trace_.empty();
  return drawn ? loadgen::WithOptionForFiles(refused, "--requests") : refused;
}

// A trace that is shorter than the run begins again.
std::vector<absl::Duration> LoadWorker::ArrivalsAt(double qps) const {
  if (trace_.empty()) {
    return profile_.Draw(qps, warmup_, duration_, options_.seed);
  }
  // The trace is stretched in time to have `qps` requests per second on
  // average.
  const absl::Duration length =
      absl::Seconds(static_cast<double>(trace_.size()) / qps);
  const double stretch = absl::FDivDuration(length, trace_length_);
  std::vector<absl::Duration> arrivals;
  for (absl::Duration begin; true; begin += length) {
    for (const absl::Duration at : trace_) {
      const absl::Duration due = begin + at * stretch;
      if (due >= warmup_ + duration_) return arrivals;
      arrivals.push_back(due);
    }
  }
}

absl::Status LoadWorker::Prepare(double qps) {
  const std::vector<absl::Duration> arrivals = ArrivalsAt(qps);
  if (trace_.empty() && options_.requests.empty()) {
    REFRACT_RETURN_IF_ERROR(PrepareRequests(arrivals.size() / parts_ + 1));
  }
  schedule_.clear();
  schedule_.reserve(arrivals.size() / parts_ + 1);
  // After the last request of the trace the run begins again with the first,
  // also if the memory did not hold all requests.
  const size_t round = trace_.empty() ? arrivals.size() : trace_.size();
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const size_t number = i % round;
    if (number % parts_ != part_) continue;
    // Query n, counted from the start of the trace if there is one, belongs to
    // process n % parts and is its request n / parts, modulo the prepared ones.
    const size_t request = number / parts_ % items_.size();
    schedule_.push_back(
        {.at = arrivals[i], .items = items_[request], .request = request});
  }
  return absl::OkStatus();
}

LoadRun LoadWorker::Run(absl::Time start) {
  LoadRun run;
  // The server's counters are read at both ends of the run. Their difference is
  // the run's, if nobody else sends requests.
  const auto before = target_->Statistics(model_);
  // The run has times of the steady clock; reports have times of day.
  const absl::Duration to_time_of_day = absl::Now() - clock_.Now();
  const auto parts = static_cast<int64_t>(parts_);
  loadgen::OpenLoopRun loop(
      clock_, schedule_,
      {.timeout = absl::Seconds(options_.timeout_s),
       .max_in_flight = (options_.max_in_flight + parts - 1) / parts,
       .start = start});
  run.results = loop.Run(*target_);
  run.started = loop.start() + to_time_of_day;
  const auto after = target_->Statistics(model_);
  run.schedule = std::exchange(schedule_, {});
  run.answers = target_->TakeAnswers();
  run.distinct_requests = std::min(items_.size(), run.schedule.size());
  run.request_bytes =
      items_.empty() ? 0 : static_cast<double>(prepared_bytes_) / items_.size();
  if (before.ok() && after.ok() && after->requests > before->requests) {
    const int64_t n = static_cast<int64_t>(after->requests - before->requests);
    run.server = {.requests = static_cast<uint64_t>(n),
                  .queue = (after->queue - before->queue) / n,
                  .before = (after->before - before->before) / n,
                  .remote = (after->remote - before->remote) / n,
                  .after = (after->after - before->after) / n};
  }
  return run;
}

absl::Status LoadWorker::WriteRecords() const {
  const std::filesystem::path folder(options_.record);
  using NamedViews = std::vector<std::pair<std::string, base::TensorView>>;
  for (size_t i = 0; i < recorded_.size(); ++i) {
    absl::StatusOr<loadgen::RecordedResponse> response = target_->Recorded(i);
    if (absl::IsNotFound(response.status())) continue;  // failed
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

}  // namespace refract::tools
