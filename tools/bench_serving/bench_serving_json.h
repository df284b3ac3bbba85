#ifndef REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_JSON_H_
#define REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_JSON_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/bench_serving/bench_serving.h"
#include "tools/loadgen/grpc_target.h"
#include "tools/loadgen/report.h"

namespace refract::tools {

// What one invocation of `refract bench serving` found out.
struct ServingReport {
  struct Try {
    double qps = 0;
    absl::Duration p99;
    bool passed = false;
  };

  double qps = 0;  // of the run that is shown
  loadgen::Measurement measurement;
  loadgen::GrpcTarget::Answers answers;
  size_t sent_requests = 0;      // warm-up included
  size_t distinct_requests = 0;  // of those
  double request_bytes = 0;      // mean
  // Means per request, `requests` apart; warm-up included. Absent when the
  // server keeps no statistics.
  std::optional<loadgen::ServerTimes> server;
  // --find-max
  std::optional<double> max_qps;
  std::vector<Try> tries;

  double response_bytes() const {
    return answers.count == 0
               ? 0
               : static_cast<double>(answers.bytes) / answers.count;
  }
};

// The report with what is needed to repeat it: revision, machine, options,
// seed. docs/measurements/benchmarking.md lists the fields.
std::string ServingJson(const ServingOptions& options,
                        const ServingReport& report);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_JSON_H_
