#include "tools/command_line.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <ostream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

// The subcommands that may follow the words of the command line.
std::vector<std::string> Choices(const CLI::App& app) {
  const CLI::App* current = &app;
  while (!current->get_subcommands().empty()) {
    current = current->get_subcommands().front();
  }
  const auto positional = [](const CLI::Option* option) {
    return option->get_positional();
  };
  std::vector<std::string> names;
  if (!current->get_options(positional).empty()) return names;
  for (const CLI::App* choice :
       current->get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(choice->get_name());
  }
  return names;
}

// The first option of the command line whose value is the empty text, mostly a
// variable that a script has not set: as a folder it would be the root.
std::string EmptyOption(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") != values.end()) {
      return option->get_name();
    }
  }
  for (const CLI::App* command : app.get_subcommands()) {
    if (std::string name = EmptyOption(*command); !name.empty()) return name;
  }
  return "";
}

// Insertions, deletions and replacements of one character that make `a` of `b`.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  // Dynamic programming by rows: row[j] is the distance between the first i
  // letters of `a` and the first j of `b`. `diagonal` is the value of the row
  // before, one column back.
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// Error text for the first word in the place of a subcommand that is no
// subcommand; empty: there is no such word. CLI11 calls such a word an
// unexpected argument, and with --help it accepts the word.
std::string UnknownCommand(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining(true);
  const std::vector<std::string> choices = Choices(app);
  if (left.empty() || choices.empty() || absl::StartsWith(left[0], "-")) {
    return "";
  }
  const std::string& word = left[0];
  std::string closest;
  // A third of the letters may be wrong, and one in short words. A word that is
  // the begin of a command is at distance 0.
  size_t least = word.size() / 3 + 1;
  for (const std::string& choice : choices) {
    const size_t distance =
        absl::StartsWith(choice, word) ? 0 : EditDistance(word, choice);
    if (distance > least || (distance == least && !closest.empty())) continue;
    least = distance;
    closest = choice;
  }
  return absl::StrCat(
      "unknown command '", word, "'; ",
      closest.empty()
          ? absl::StrCat("the commands are ", absl::StrJoin(choices, ", "))
          : absl::StrCat("did you mean ", closest,
                         "? (--help lists the commands)"));
}

int Fail(std::ostream& err, absl::string_view command, absl::string_view what,
         int exit_status) {
  err << command << ": " << OneLine(what) << "\n";
  return exit_status;
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& arguments, std::ostream& out,
                   std::ostream& err) {
  std::ostream text(out.rdbuf());  // --json - gives it the buffer of `err`
  Context context{.out = text, .err = err, .json = out, .action = nullptr};
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
  AddStatusCommand(app, context);
  AddDrainCommand(app, context);
  AddUndrainCommand(app, context);
  AddTopologyCommand(app, context);

  // CLI11 takes the arguments from the back.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    if (const std::string wrong = UnknownCommand(app); !wrong.empty()) {
      return Fail(err, NamedCommand(app), wrong, kExitBadInput);
    }
    out << app.help();  // of the subcommand that was named, if any
    return kExitOk;
  } catch (const CLI::CallForVersion& pages) {
    out << pages.what();
    if (!absl::EndsWith(pages.what(), "\n")) out << "\n";
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    if (const std::string wrong = UnknownCommand(app); !wrong.empty()) {
      return Fail(err, NamedCommand(app), wrong, kExitBadInput);
    }
    return Fail(err, NamedCommand(app),
                absl::StrCat(base::CommandLineError(app, error),
                             " (--help lists the options)"),
                kExitBadInput);
  }
  const std::string command = NamedCommand(app);
  if (!context.action) {
    return Fail(
        err, command,
        absl::StrCat("which command? ", absl::StrJoin(Choices(app), ", ")),
        kExitBadInput);
  }
  if (const std::string name = EmptyOption(app); !name.empty()) {
    return Fail(err, command,
                absl::StrCat(name, " is empty (--help lists the options)"),
                kExitBadInput);
  }
  absl::Status status;
  try {
    status = context.action();
  } catch (const std::exception& error) {
    // Out of memory, mostly: everything else is a status.
    status = absl::InternalError(error.what());
  }
  text.flush();
  if (!status.ok()) {
    return Fail(err, command, std::string(status.message()),
                ExitStatusOf(status));
  }
  return kExitOk;
}

}  // namespace refract::tools
