#ifndef REFRACT_TOOLS_BENCH_SERVING_WORKER_PROCESSES_H_
#define REFRACT_TOOLS_BENCH_SERVING_WORKER_PROCESSES_H_

// A load shared by several processes: each has its own connections, threads and
// requests, and sends every N-th query of one schedule.

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/bench_serving/bench_serving.h"
#include "tools/bench_serving/load_worker.h"

namespace refract::tools {

// Runs the load in this process or in its children.
class LoadSource {
 public:
  // ServingOptions::processes > 1 forks: the caller must be the only thread,
  // and not have used gRPC. `options` and `out` outlive it.
  static std::unique_ptr<LoadSource> Create(const ServingOptions& options,
                                            std::ostream& out);
  virtual ~LoadSource() = default;

  // The first error of any process; Unavailable when a process ends.
  virtual absl::Status Connect() = 0;
  virtual absl::Duration duration() const = 0;
  virtual double qps() const = 0;
  // One run at this rate, all queries in the order of the schedule.
  virtual absl::StatusOr<LoadRun> Run(double qps) = 0;
  virtual absl::Status WriteRecords() = 0;
};

// The runs of all processes as one run. Server times are the first process's:
// each process reads the counters of the whole server.
LoadRun MergeRuns(std::vector<LoadRun> parts);

// For pipes between processes of one program.
std::string EncodeRun(const LoadRun& run);
// DataLoss when the text is no encoded run.
absl::StatusOr<LoadRun> DecodeRun(absl::string_view text);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_SERVING_WORKER_PROCESSES_H_
