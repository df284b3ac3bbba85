#ifndef REFRACT_BASE_COMMAND_LINE_COMMAND_LINE_ERROR_H_
#define REFRACT_BASE_COMMAND_LINE_COMMAND_LINE_ERROR_H_

#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace refract::base {

// The error of a command line that `app` refused with `error`, in one line.
// CLI11 reports a missing option before it looks at unknown ones, so a misspelt
// option would be reported as missing: this names the unknown option as well.
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
