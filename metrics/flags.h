#ifndef REFRACT_METRICS_FLAGS_H_
#define REFRACT_METRICS_FLAGS_H_

#include <string>

#include "CLI/CLI.hpp"
#include "base/command_line/port_or_off.h"

namespace refract::metrics {

// A daemon's flags for its metrics.
struct Flags {
  std::string host = "127.0.0.1";
  base::PortOrOff port;
};

// Adds --metrics-host and --metrics-port, with its default.
inline void AddFlags(CLI::App& app, Flags& flags, int default_port) {
  app.add_option("--metrics-host", flags.host,
                 "Address that metrics are served on; only this machine can "
                 "reach the default");
  base::AddPortOrOff(
      app, "--metrics-port", flags.port, default_port,
      "Port for metrics (GET /metrics, Prometheus's text format)");
}

}  // namespace refract::metrics

#endif  // REFRACT_METRICS_FLAGS_H_
