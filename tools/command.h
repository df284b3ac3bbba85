#ifndef REFRACT_TOOLS_COMMAND_H_
#define REFRACT_TOOLS_COMMAND_H_

// Shared by all subcommands of `refract`. Each subcommand has a folder with one
// function AddXxxCommand(), listed here and in command_line.cc. It declares
// options and, when chosen, sets Context::action. Nothing runs while the
// command line is being parsed.

#include <functional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::tools {

// Exit statuses are part of the command line's contract (scripts read them).
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitBadInput = 2;

// 2 for bad usage and bad input, which the user can correct; 1 for all other
// errors.
int ExitStatusOf(const absl::Status& status);

// `text` with line breaks and runs of blanks made single blanks, since errors
// of libraries may have several lines.
std::string OneLine(absl::string_view text);

// One invocation. Used by one thread.
struct Context {
  // Text for people: to stdout, with --json - to stderr.
  std::ostream& out;
  std::ostream& err;
  std::ostream& json;  // stdout, for JsonOutput
  // Set by the subcommand that was chosen.
  std::function<absl::Status()> action;
};

// Sets Context::action where the command line chooses `command`.
void SetAction(CLI::App& command, Context& context,
               std::function<absl::Status()> action);

// The library must be called with `app` that outlives parsing and `context`
// that outlives the action.
void AddImportCommand(CLI::App& app, Context& context);
void AddInspectCommand(CLI::App& app, Context& context);
void AddCalibrateCommand(CLI::App& app, Context& context);
void AddPackageCommand(CLI::App& app, Context& context);
void AddPartitionCommand(CLI::App& app, Context& context);
void AddProfileCommand(CLI::App& app, Context& context);
void AddRunCommand(CLI::App& app, Context& context);
void AddBenchCommand(CLI::App& app, Context& context);
// Under `bench`.
void AddBenchTransportCommand(CLI::App& bench, Context& context);
void AddDrainCommand(CLI::App& app, Context& context);
void AddUndrainCommand(CLI::App& app, Context& context);
void AddExtenderCommand(CLI::App& app, Context& context);
void AddStatusCommand(CLI::App& app, Context& context);
void AddDoctorCommand(CLI::App& app, Context& context);
void AddPlaceCommand(CLI::App& app, Context& context);
void AddPlanCommand(CLI::App& app, Context& context);
// Under `plan`.
void AddPlanLoanCommand(CLI::App& plan, Context& context);
void AddSimulateCommand(CLI::App& app, Context& context);
// Under `simulate`.
void AddSimulateFillCommand(CLI::App& simulate, Context& context);
void AddSimulateReplayCommand(CLI::App& simulate, Context& context);
void AddSimulateDisaggregationCommand(CLI::App& simulate, Context& context);
void AddActivateCommand(CLI::App& app, Context& context);
void AddListCommand(CLI::App& app, Context& context);
void AddRemoveCommand(CLI::App& app, Context& context);
void AddQuantizeCommand(CLI::App& app, Context& context);
void AddVerifyRepositoryCommand(CLI::App& app, Context& context);
void AddTopologyCommand(CLI::App& app, Context& context);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_COMMAND_H_
