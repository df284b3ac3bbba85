#ifndef REFRACT_BASE_COMMAND_LINE_COMMAND_LINE_ERROR_H_
#define REFRACT_BASE_COMMAND_LINE_COMMAND_LINE_ERROR_H_

#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace refract::base {

// The error by which `app` refused a command line, in one line. CLI11 reports a
// missing option before it checks for unknown options, so a misspelt option
// would be reported as missing: this text also names the unknown option.
inline std::string CommandLineError(const CLI::App& app,
                                    const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    for (const std::string& argument : app.remaining(true)) {
      if (!absl::StartsWith(argument, "-")) continue;
      return absl::StrCat(error.what(), ", and ", argument, " is no option");
    }
  }
  return error.what();
}

}  // namespace refract::base

#endif  // REFRACT_BASE_COMMAND_LINE_COMMAND_LINE_ERROR_H_
