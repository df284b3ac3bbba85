#ifndef REFRACT_BASE_COMMAND_LINE_PORT_OR_OFF_H_
#define REFRACT_BASE_COMMAND_LINE_PORT_OR_OFF_H_

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"

namespace refract::base {

// The value of an option for a daemon's additional server. If the default port
// is taken by another daemon, the server is left out; a port that the user
// named must be free.
struct PortOrOff {
  std::string text;    // a number, or "off"
  bool given = false;  // else `text` is the default

  bool on() const { return text != "off"; }
  // 0: any free port. nullopt: off.
  std::optional<int> number() const {
    int port = 0;
    if (!on() || !absl::SimpleAtoi(text, &port)) return std::nullopt;
    return port;
  }
};

// Adds the option. `about` ends before "; 0 = …".
inline void AddPortOrOff(CLI::App& app, const std::string& name,
                         PortOrOff& port, int default_port,
                         const std::string& about) {
  port.text = std::to_string(default_port);
  app.add_option(name, port.text,
                 about + "; 0 = any free one, printed on stdout; off = none")
      ->type_name("PORT|off")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            int number = 0;
            if (text == "off" || (absl::SimpleAtoi(text, &number) &&
                                  number >= 0 && number <= 65535)) {
              return "";
            }
            return "'" + text + "' is neither a port from 0 to 65535 nor off";
          },
          ""))
      ->each([&port](const std::string&) { port.given = true; });
}

}  // namespace refract::base

#endif  // REFRACT_BASE_COMMAND_LINE_PORT_OR_OFF_H_
