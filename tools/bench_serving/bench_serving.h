#ifndef REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_H_
#define REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/json_output.h"

namespace refract::tools {

// `refract bench serving`. Texts are in the form of the command line;
// bench_serving_command.cc has their descriptions.
struct ServingOptions {
  std::vector<std::string> targets;
  std::string protocol = "grpc";  // or "http"
  bool tls = false;
  // Files; empty: none. `tls_ca` means TLS.
  std::string tls_ca, tls_cert, tls_key, token_file;
  int processes = 1;
  std::string model;
  int64_t version = 0;  // 0: the newest
  double qps = 0;  // 0: the trace's
  // Absent: 10, or the trace's length.
  std::optional<double> duration_s;
  double warmup_s = 1;
  double slo_ms = 0;  // 0: none
  bool find_max = false;
  std::string arrivals = "poisson";
  std::string query_sizes = "mlperf";
  std::string ids = "uniform";
  std::string bag_sizes = "fixed:1";
  int64_t length = 50;
  std::vector<std::string> rows;
  std::vector<std::string> table_ids;  // files
  std::string criteo;
  std::vector<std::string> requests;  // files
  uint64_t seed = 1;
  int connections = 4;
  int64_t max_in_flight = 10'000;
  double timeout_s = 10;
  double wait_s = 10;
  int64_t memory_mib = 1024;
  std::string record;  // folder
  size_t record_count = 4;
  // Files to write; empty: none.
  JsonOutput json;
  std::string csv;
  std::string hlog;
  std::string report;
};

// Loads the server with an open-loop schedule and reports to `out`, to
// options.json and into options.record.
//
// InvalidArgument: an option or the Criteo file is wrong, or the model is one
// that cannot be fed; FailedPrecondition: --find-max found no rate; the
// server's own errors before the run. With several processes the caller must
// be the only thread and not have used gRPC. Queries that fail during a run are
// results, not errors, unless all of them do (Unavailable).
absl::Status RunServing(const ServingOptions& options, std::ostream& out);

// `refract bench compare`: a page of one or two runs from their JSON files.
// InvalidArgument names a file that is no report of `refract bench serving`.
absl::Status CompareServing(const std::vector<std::string>& reports,
                            const std::string& page);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_SERVING_BENCH_SERVING_H_
