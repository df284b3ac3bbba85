#ifndef REFRACT_BASE_COMMAND_LINE_PROGRAM_PAGES_H_
#define REFRACT_BASE_COMMAND_LINE_PROGRAM_PAGES_H_

// Version, man page and completion scripts of a program, all made from the
// option table that parses its command line.

#include <string>

#include "absl/strings/string_view.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::base {

// Adds --version, --man and --completion SHELL. If the command line has one of
// these options, parsing ends with CLI::CallForVersion; its what() is the text
// for stdout, and the exit status is 0. Missing required options are then no
// error. `app` must have its other options and subcommands before it parses.
void AddProgramPages(CLI::App& app, absl::string_view version);

// Manual page (section 1) in groff's man macros, subcommands included.
std::string ManPage(const CLI::App& app, absl::string_view version);

// Completes subcommands, options and the values of options with a fixed set.
std::string BashCompletion(const CLI::App& app);
// The script for bash under zsh's bashcompinit.
std::string ZshCompletion(const CLI::App& app);
std::string FishCompletion(const CLI::App& app);

}  // namespace refract::base

#endif  // REFRACT_BASE_COMMAND_LINE_PROGRAM_PAGES_H_
