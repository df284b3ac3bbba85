#ifndef REFRACT_TOOLS_TRANSPORT_METER_RUNNER_H_
#define REFRACT_TOOLS_TRANSPORT_METER_RUNNER_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/transport_meter/config.h"
#include "tools/transport_meter/report.h"

namespace refract::transport_meter {

// The current measurement: "12/90 pingpong busy 64 B".
using ProgressFunction = std::function<void(const std::string&)>;

// Measures everything that `config` asks for. Per point: every subject is
// opened, its payloads are checked, and the number of iterations is chosen that
// takes about config.time_ms; then the rounds measure one subject after the
// other, each round beginning with another one.
//
// A round that fails leaves NaN and its reason in the row, and the subject is
// opened anew. DataLoss: a check found wrong bytes, so that no time means
// anything. Other errors: the processes cannot be set up. The calling thread
// must be the only one (PeerProcess).
absl::StatusOr<Report> RunBench(const Config& config,
                                const ProgressFunction& progress);

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_RUNNER_H_
