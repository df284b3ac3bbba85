#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_PERFTEST_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_PERFTEST_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/transport_bench/report.h"
#include "tools/transport_bench/subject.h"

namespace refract::transport_bench {

// The port that the data path and perftest use.
struct VerbsPort {
  std::string device;
  int port = 0;
  int gid_index = 0;
  int mtu_bytes = 0;
};

// What the data path would choose. `preference`: "DEVICE", "DEVICE:PORT" or
// "DEVICE:PORT:GID", or empty. InvalidArgument: it has another form;
// Unimplemented: built without verbs; else no port is usable now.
absl::StatusOr<VerbsPort> ChooseVerbsPort(absl::string_view preference);

// The perftest programs that are installed, of those that this knows:
// "ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_write_bw", "ib_read_bw".
std::vector<std::string> InstalledPerftest();

// `program` as a baseline on `port`: its own two processes, started by the two
// sides on their processors, with the same size, iterations, MTU, address and,
// in mode event, --events. It checks no payloads.
std::unique_ptr<Subject> PerftestBaseline(const std::string& program,
                                          const VerbsPort& port);

// The figures of one size from the output of `program`. Its median is that of
// whole round trips here, where send and write tests print halves; their MB are
// 2^20 bytes. InvalidArgument when there is no line of results, or one with
// something that is no number ("inf" is one, and becomes no figure).
absl::StatusOr<Figures> ParsePerftest(const std::string& program,
                                      absl::string_view output);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_PERFTEST_H_
