#ifndef REFRACT_METRICS_FLAGS_H_
#define REFRACT_METRICS_FLAGS_H_

#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"

namespace refract::metrics {

// What a daemon's command line says about its metrics.
struct Flags {
  std::string host = "127.0.0.1";
  std::string port;         // a number, or "off"
  bool port_given = false;  // else `port` is the default

  bool on() const { return port != "off"; }
};

// Adds --metrics-host and --metrics-port, with its default.
inline void AddFlags(CLI::App& app, Flags& flags, int default_port) {
  flags.port = std::to_string(default_port);
  app.add_option("--metrics-host", flags.host,
                 "Address that metrics are served on; only this machine can "
                 "reach the default")
      ->capture_default_str();
  app.add_option("--metrics-port", flags.port,
                 "Port for metrics (GET /metrics, Prometheus's text format); "
                 "0 = any free one, printed on stdout; off = none")
      ->type_name("PORT|off")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            int port = 0;
            if (text == "off" ||
                (absl::SimpleAtoi(text, &port) && port >= 0 && port <= 65535)) {
              return "";
            }
            return "'" + text + "' is neither a port from 0 to 65535 nor off";
          },
          ""))
      ->each([&flags](const std::string&) { flags.port_given = true; })
      ->capture_default_str();
}

}  // namespace refract::metrics

#endif  // REFRACT_METRICS_FLAGS_H_
