#include "tools/bench_transport/bench_transport.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "tools/bench_transport/bench_transport_json.h"
#include "tools/transport_meter/config.h"
#include "tools/transport_meter/report.h"
#include "tools/transport_meter/runner.h"

namespace refract::tools {
namespace {

absl::StatusOr<transport_meter::Config> ParseOptions(
    const TransportOptions& options) {
  transport_meter::Config config;
  REFRACT_ASSIGN_OR_RETURN(config.paths,
                           transport_meter::ParsePaths(options.paths));
  REFRACT_ASSIGN_OR_RETURN(config.levels,
                           transport_meter::ParseLevels(options.levels));
  REFRACT_ASSIGN_OR_RETURN(config.ops, transport_meter::ParseOps(options.ops));
  REFRACT_ASSIGN_OR_RETURN(config.modes,
                           transport_meter::ParseModes(options.modes));
  REFRACT_ASSIGN_OR_RETURN(config.sizes,
                           transport_meter::ParseSizes(options.sizes));
  REFRACT_ASSIGN_OR_RETURN(config.cpus,
                           transport_meter::ParseCpus(options.cpus));
  config.yardsticks = !options.no_yardsticks;
  config.rounds = options.rounds;
  config.time_ms = options.time_ms;
  config.max_iterations = options.max_iterations;
  config.window_bytes = options.window_bytes;
  config.eager_bytes = options.eager_bytes;
  config.rdma_device = options.rdma_device;
  config.seed = options.seed;
  REFRACT_RETURN_IF_ERROR(transport_meter::CheckConfig(config));
  return config;
}

// Overwrites one line of the terminal; writes nothing if stderr is no terminal.
class RunProgress {
 public:
  void Show(const std::string& what) {
    if (!terminal_) return;
    std::fprintf(stderr, "\r\033[K%s", what.c_str());
    std::fflush(stderr);
  }
  ~RunProgress() { Show(""); }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
};

// Suppresses the log below errors: connections come and go by the thousand
// here, and the report names their failures. The child process, which begins as
// a copy of this process, is quiet, too.
class QuietLog {
 public:
  QuietLog() : before_(FLAGS_minloglevel) {
    FLAGS_minloglevel = google::GLOG_ERROR;
  }
  ~QuietLog() { FLAGS_minloglevel = before_; }

 private:
  const int before_;
};

absl::Status NothingMeasured(const transport_meter::Report& report) {
  for (const transport_meter::Row& row : report.rows) {
    if (transport_meter::QuartilesOf(row.Primary()).used > 0) continue;
    return absl::UnavailableError(
        absl::StrCat(row.level, " ", row.name, " at ", row.point.bytes,
                     " B was measured in no round: ", row.error));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTransport(const TransportOptions& options, std::ostream& out) {
  REFRACT_ASSIGN_OR_RETURN(const transport_meter::Config config,
                           ParseOptions(options));
  absl::StatusOr<transport_meter::Report> report = [&] {
    const QuietLog quiet;
    RunProgress progress;
    return transport_meter::RunBench(
        config, [&](const std::string& what) { progress.Show(what); });
  }();
  REFRACT_RETURN_IF_ERROR(report.status());
  out << "processors " << report->cpus[0] << " and " << report->cpus[1]
      << (report->cpus[0] == report->cpus[1]
              ? " (shared: both sides wait for each other to be scheduled)"
              : "")
      << ", " << config.rounds << " rounds; median [quartiles] of rounds\n\n"
      << transport_meter::ReportText(*report);
  if (!options.json.empty()) {
    REFRACT_RETURN_IF_ERROR(
        options.json.WriteText(TransportJson(options, *report)));
  }
  if (!options.csv.empty()) {
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(options.csv, transport_meter::ReportCsv(*report)));
  }
  return NothingMeasured(*report);
}

}  // namespace refract::tools
