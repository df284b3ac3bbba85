#ifndef REFRACT_TOOLS_BENCH_TRANSPORT_METER_TRANSPORT_JSON_H_
#define REFRACT_TOOLS_BENCH_TRANSPORT_METER_TRANSPORT_JSON_H_

#include <string>

#include "tools/bench_transport/bench_transport.h"
#include "tools/transport_meter/report.h"

namespace refract::tools {

// docs/measurements/benchmarking.md lists the fields. NaN becomes null.
std::string TransportJson(const TransportOptions& options,
                          const transport_meter::Report& report);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_TRANSPORT_METER_TRANSPORT_JSON_H_
