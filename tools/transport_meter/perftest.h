#ifndef REFRACT_TOOLS_TRANSPORT_METER_PERFTEST_H_
#define REFRACT_TOOLS_TRANSPORT_METER_PERFTEST_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/transport_meter/report.h"
#include "tools/transport_meter/subject.h"

namespace refract::transport_meter {

// The port that the data path and perftest use.
struct VerbsPort {
  std::string device;
  int port = 0;
  int gid_index = 0;
  int mtu_bytes = 0;
};

// The port that the data path would choose. `preference`: "DEVICE",
// "DEVICE:PORT", "DEVICE:PORT:GID", or empty. InvalidArgument: another form;
// Unimplemented: built without verbs; otherwise no port is usable now.
absl::StatusOr<VerbsPort> ChooseVerbsPort(absl::string_view preference);

// The perftest programs that are installed and that this file supports, of
// "ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_write_bw", "ib_read_bw".
std::vector<std::string> InstalledPerftest();

// `program` as a baseline on `port`: its own two processes, started by the two
// sides on their processors, with the same size, iterations, MTU, address and,
// in mode event, --events. It checks no payloads.
std::unique_ptr<Subject> PerftestBaseline(const std::string& program,
                                          const VerbsPort& port);

// The figures of one size from the output of `program`. The median here is of
// whole round trips, while send and write tests print halves; their MB are 2^20
// bytes. InvalidArgument if there is no line of results, or a field of it is
// not a number. A field "inf" is left out of the figures.
absl::StatusOr<Figures> ParsePerftest(const std::string& program,
                                      absl::string_view output);

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_PERFTEST_H_
