#ifndef REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_JSON_H_
#define REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_JSON_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/bench_serving/bench_serving.h"
#include "tools/bench_serving/load_worker.h"
#include "tools/loadgen/report.h"

namespace refract::tools {

// The results of one invocation of `refract bench serving`.
struct ServingReport {
  struct Try {
    double qps = 0;
    int64_t queries = 0, succeeded = 0, within_slo = 0;
    absl::Duration p99;  // of the queries that succeeded
    bool passed = false;
  };

  double qps = 0;  // of the run that is shown
  absl::Duration duration;
  loadgen::Measurement measurement;
  LoadRun run;
  // --find-max
  std::optional<double> max_qps;
  std::vector<Try> tries;

  double response_bytes() const {
    return run.answers.count == 0
               ? 0
               : static_cast<double>(run.answers.bytes) / run.answers.count;
  }
};

// The report, with everything for repeating it: revision, machine, options,
// seed. docs/measurements/benchmarking.md lists the fields.
std::string ServingJson(const ServingOptions& options,
                        const ServingReport& report);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_JSON_H_
