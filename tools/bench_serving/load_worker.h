#ifndef REFRACT_TOOLS_BENCH_SERVING_LOAD_WORKER_H_
#define REFRACT_TOOLS_BENCH_SERVING_LOAD_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/tensor.h"
#include "tools/bench_serving/bench_serving.h"
#include "tools/loadgen/arrivals/arrivals.h"
#include "tools/loadgen/arrivals/trace.h"
#include "tools/loadgen/open_loop.h"
#include "tools/loadgen/request_maker.h"
#include "tools/loadgen/schedule.h"
#include "tools/loadgen/served_model.h"
#include "tools/loadgen/targets/target.h"

namespace refract::tools {

// The results of a run at one rate, query by query.
struct LoadRun {
  std::vector<loadgen::PlannedQuery> schedule;
  std::vector<loadgen::QueryResult> results;
  absl::Time started;  // wall clock, of the schedule's begin
  loadgen::Target::Answers answers;
  size_t distinct_requests = 0;
  double request_bytes = 0;  // mean
  // Means per request, `requests` apart; warm-up included. Absent when the
  // server keeps no statistics.
  std::optional<loadgen::ServerTimes> server;
};

// Makes the load of an invocation, or a part of it: connections, a model, and requests that grow
// in number as longer runs need them. One thread calls it.
class LoadWorker {
 public:
  // Sends the queries `part`, `part` + `parts`, … of each schedule. `options`
  // and `out`, which gets notes for the user, outlive it.
  LoadWorker(const ServingOptions& options, std::ostream& out, int part,
             int parts);
  ~LoadWorker();

  // Reads the files of the options, connects, asks for the model, and sends one
  // request before the load. Errors as RunServing()'s.
  absl::Status Connect();

  // Seconds measured in each run: --duration, or else the trace's length.
  absl::Duration duration() const { return duration_; }
  // The rate of --qps, or else the trace's.
  double qps() const { return qps_; }

  // Makes the schedule and the requests of a run.
  absl::Status Prepare(double qps);
  // Runs the prepared schedule to the last answer. It begins at `start` of the
  // steady clock; at once if that has passed.
  LoadRun Run(absl::Time start);

  // Writes the first requests and their answers as --record says.
  absl::Status WriteRecords() const;

 private:
  absl::Status ReadContentOptions();
  absl::Status ConnectTarget();
  absl::Status ReadArrivals();
  absl::Status ReadRequests();
  absl::Status MakeRequestMaker();
  absl::StatusOr<std::vector<base::Tensor>> MakeTensors(int64_t items);
  absl::Status PrepareRequest(int64_t items, std::vector<base::Tensor> tensors);
  absl::Status PrepareRequests(size_t count);
  absl::Status Probe();
  bool HasRoom() const;
  std::vector<absl::Duration> ArrivalsAt(double qps) const;

  const ServingOptions& options_;
  std::ostream& out_;
  const size_t part_;
  const size_t parts_;
  base::Clock& clock_;
  std::unique_ptr<loadgen::Target> target_;
  loadgen::ServedModel model_;
  loadgen::ArrivalProfile profile_;
  loadgen::QuerySizes sizes_;
  loadgen::Random size_random_;
  loadgen::RequestOptions request_options_;
  absl::flat_hash_map<std::string, std::vector<int64_t>> rows_;
  loadgen::TableIds table_ids_;
  std::optional<loadgen::RequestMaker> maker_;
  absl::Duration warmup_;
  absl::Duration duration_;
  double qps_ = 0;
  std::vector<int64_t> items_;  // of each prepared request
  uint64_t prepared_bytes_ = 0;
  std::vector<std::vector<base::Tensor>> recorded_;  // the first requests
  // Arrivals of the trace, and the time after which it begins again.
  std::vector<absl::Duration> trace_;
  absl::Duration trace_length_;
  std::vector<loadgen::PlannedQuery> schedule_;
};

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_SERVING_LOAD_WORKER_H_
