#ifndef REFRACT_TOOLS_BENCH_TRANSPORT_METER_TRANSPORT_H_
#define REFRACT_TOOLS_BENCH_TRANSPORT_METER_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "tools/json_output.h"

namespace refract::tools {

// `refract bench transport`. Texts are in the form of the command line;
// bench_transport_command.cc has their descriptions.
struct TransportOptions {
  std::string paths = "shm,tcp";
  std::string levels = "path,message,channel";
  std::string ops = "pingpong,pull,get,stream,get-stream,fan-in";
  std::string modes = "busy,event";
  std::string sizes = "64,256,1K,4K,14K,64K,256K,1M,2M";
  bool no_yardsticks = false;
  int rounds = 5;
  double time_ms = 40;
  int max_iterations = 100'000;
  size_t window_bytes = size_t{4} << 20;
  size_t eager_bytes = size_t{64} << 10;
  std::string rdma_device;
  std::string cpus;
  uint64_t seed = 1;
  JsonOutput json;
  std::string csv;
};

// Measures between this process and a child, and reports to `out`, to
// options.json and options.csv. Must be called while the process has one thread
// only.
//
// InvalidArgument: an option is wrong, or a file cannot be written. DataLoss:
// payloads arrived wrong. Unavailable: a figure was measured in no round; the
// report is written nevertheless.
absl::Status RunTransport(const TransportOptions& options, std::ostream& out);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_TRANSPORT_METER_TRANSPORT_H_
