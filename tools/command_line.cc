#include "tools/command_line.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/command_line/command_line_error.h"
#include "base/command_line/program_pages.h"
#include "tools/command.h"

namespace refract::tools {
namespace {

// The deepest subcommand that was named: "refract bench" of `refract bench`.
std::string NamedCommand(const CLI::App& app) {
  std::string name = app.get_name();
  const CLI::App* current = &app;
  while (!current->get_subcommands().empty()) {
    current = current->get_subcommands().front();
    absl::StrAppend(&name, " ", current->get_name());
  }
  return name;
}

std::string Choices(const CLI::App& app) {
  const CLI::App* current = &app;
  while (!current->get_subcommands().empty()) {
    current = current->get_subcommands().front();
  }
  std::string text;
  for (const CLI::App* choice :
       current->get_subcommands([](const CLI::App*) { return true; })) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", choice->get_name());
  }
  return text;
}

int Fail(std::ostream& err, absl::string_view command, absl::string_view what,
         int exit_status) {
  err << command << ": " << OneLine(what) << "\n";
  return exit_status;
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& arguments, std::ostream& out,
                   std::ostream& err) {
  Context context{.out = out, .err = err, .action = nullptr};
  CLI::App app(
      "Refract serves recommendation models from separate CPU and GPU nodes.",
      "refract");
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(32);
  base::AddProgramPages(app, REFRACT_VERSION);
  AddImportCommand(app, context);
  AddInspectCommand(app, context);
  AddProfileCommand(app, context);
  AddCalibrateCommand(app, context);
  AddPartitionCommand(app, context);
  AddPackageCommand(app, context);
  AddRunCommand(app, context);
  AddBenchCommand(app, context);
  AddQuantizeCommand(app, context);
  AddActivateCommand(app, context);
  AddListCommand(app, context);
  AddRemoveCommand(app, context);
  AddVerifyRepositoryCommand(app, context);
  AddPlaceCommand(app, context);
  AddPlanCommand(app, context);
  AddSimulateCommand(app, context);
  AddExtenderCommand(app, context);
  AddDoctorCommand(app, context);
  AddDrainCommand(app, context);
  AddUndrainCommand(app, context);
  AddTopologyCommand(app, context);

  // CLI11 takes the arguments from the back.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    out << app.help();  // of the subcommand that was named, if any
    return kExitOk;
  } catch (const CLI::CallForVersion& pages) {
    out << pages.what();
    if (!absl::EndsWith(pages.what(), "\n")) out << "\n";
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return Fail(err, NamedCommand(app),
                absl::StrCat(base::CommandLineError(app, error),
                             " (--help lists the options)"),
                kExitBadInput);
  }
  const std::string command = NamedCommand(app);
  if (!context.action) {
    return Fail(err, command, absl::StrCat("which command? ", Choices(app)),
                kExitBadInput);
  }
  absl::Status status;
  try {
    status = context.action();
  } catch (const std::exception& error) {
    // Out of memory, mostly: everything else is a status.
    status = absl::InternalError(error.what());
  }
  out.flush();
  if (!status.ok()) {
    return Fail(err, command, std::string(status.message()),
                ExitStatusOf(status));
  }
  return kExitOk;
}

}  // namespace refract::tools
