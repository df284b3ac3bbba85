#ifndef REFRACT_BASE_COMMAND_LINE_ERROR_H_
#define REFRACT_BASE_COMMAND_LINE_ERROR_H_

#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace refract::base {

// What is wrong with a command line that `app` refused with `error`, one line.
// CLI11 says that an option is missing before it looks at those that it does
// not know, of which one may be the missing one with a slip of the pen.
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

#endif  // REFRACT_BASE_COMMAND_LINE_ERROR_H_
