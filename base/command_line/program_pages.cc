#include "base/command_line/program_pages.h"

#include <functional>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace refract::base {
namespace {

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) {
    return !command->get_name().empty() && !command->get_group().empty();
  });
}

// An option without a group is hidden from --help, and so from these pages.
std::vector<const CLI::Option*> VisibleOptions(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* option) { return !option->get_group().empty(); });
}

// "--json" and "-j" of an option; nothing for a positional argument.
std::vector<std::string> OptionNames(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) {
    names.push_back(absl::StrCat("--", name));
  }
  for (const std::string& name : option.get_snames()) {
    names.push_back(absl::StrCat("-", name));
  }
  return names;
}

// The fixed set of values of an option: its type name is "all|listed|any", or
// CLI11 appended "{all,listed,any}" to it. Upper case stands for any value.
std::vector<std::string> OptionValues(const CLI::Option& option) {
  std::string type = option.get_type_name();
  const size_t open = type.find('{');
  const size_t close = type.find('}', open);
  char separator = '|';
  if (open != std::string::npos && close != std::string::npos) {
    type = type.substr(open + 1, close - open - 1);
    separator = ',';
  } else if (!absl::StrContains(type, '|')) {
    return {};
  }
  std::vector<std::string> values;
  for (const absl::string_view value : absl::StrSplit(type, separator)) {
    // A transformer's set has "name->number".
    const absl::string_view name = value.substr(0, value.find("->"));
    if (!name.empty() && !absl::c_any_of(name, absl::ascii_isupper)) {
      values.emplace_back(name);
    }
  }
  return values;
}

bool TakesValue(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

// Calls visit(path, app) for `app` and everything below it.
using Visitor = std::function<void(const std::string&, const CLI::App&)>;
void Walk(const std::string& path, const CLI::App& app, const Visitor& visit) {
  visit(path, app);
  for (const CLI::App* command : Commands(app)) {
    Walk(absl::StrCat(path, " ", command->get_name()), *command, visit);
  }
}

// Text of a man page: groff reads a backslash, and a line that begins with a
// point or an apostrophe, as a command. A bare "-" becomes a hyphen that
// searching for an option does not find.
std::string Groff(absl::string_view text) {
  std::string line = absl::StrReplaceAll(
      text,
      {{"\\", "\\e"}, {"-", "\\-"}, {"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
  if (absl::StartsWith(line, ".") || absl::StartsWith(line, "'")) {
    line.insert(0, "\\&");
  }
  return line;
}

void AppendOptions(const CLI::App& app, std::string& page) {
  for (const CLI::Option* option : VisibleOptions(app)) {
    const bool positional = option->nonpositional() == false;
    std::string head = positional ? option->get_name(true)
                                  : absl::StrJoin(OptionNames(*option), ", ");
    if (!positional && TakesValue(*option)) {
      absl::StrAppend(&head, " ", option->get_type_name());
    }
    absl::StrAppend(&page, ".TP\n\\fB", Groff(head), "\\fR\n",
                    Groff(option->get_description()));
    if (!option->get_default_str().empty()) {
      absl::StrAppend(&page, " [", Groff(option->get_default_str()), "]");
    }
    if (option->get_required()) absl::StrAppend(&page, " (required)");
    absl::StrAppend(&page, "\n");
  }
}

std::string ShellQuoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string FunctionName(const CLI::App& app) {
  return absl::StrCat("_", absl::StrReplaceAll(app.get_name(), {{"-", "_"}}));
}

}  // namespace

std::string ManPage(const CLI::App& app, absl::string_view version) {
  std::string page = absl::StrCat(
      ".TH ", absl::AsciiStrToUpper(app.get_name()), " 1 \"\" \"refract ",
      version, "\"\n.SH NAME\n", Groff(app.get_name()), " \\- ",
      Groff(app.get_description()), "\n.SH SYNOPSIS\n.B ",
      Groff(app.get_name()),
      Commands(app).empty() ? "\n[OPTION]...\n"
                            : "\nCOMMAND [OPTION]... [ARGUMENT]...\n",
      ".SH OPTIONS\n");
  AppendOptions(app, page);
  if (!Commands(app).empty()) {
    absl::StrAppend(&page, ".SH COMMANDS\n");
    Walk(app.get_name(), app,
         [&app, &page](const std::string& path, const CLI::App& command) {
           if (&command == &app) return;
           absl::StrAppend(&page, ".SS ", Groff(path), "\n",
                           Groff(command.get_description()), "\n");
           AppendOptions(command, page);
         });
  }
  absl::StrAppend(&page,
                  ".SH EXIT STATUS\n0 on success, 2 on bad usage or bad input, "
                  "1 on any other failure.\n");
  return page;
}

// The script has three case statements: `paths` finds the subcommand on the
// line, `values` the words after an option with a fixed set of values, `words`
// the options and subcommands of a path.
std::string BashCompletion(const CLI::App& app) {
  std::string paths, values, words;
  Walk(app.get_name(), app,
       [&](const std::string& path, const CLI::App& command) {
         std::vector<std::string> choices, flags;
         for (const CLI::App* child : Commands(command)) {
           choices.push_back(child->get_name());
           absl::StrAppend(
               &paths, paths.empty() ? "" : "|",
               ShellQuoted(absl::StrCat(path, " ", child->get_name())));
         }
         for (const CLI::Option* option : VisibleOptions(command)) {
           const std::vector<std::string> names = OptionNames(*option);
           flags.insert(flags.end(), names.begin(), names.end());
           const std::vector<std::string> allowed = OptionValues(*option);
           if (names.empty() || allowed.empty()) continue;
           std::vector<std::string> patterns;
           for (const std::string& name : names) {
             patterns.push_back(ShellQuoted(absl::StrCat(path, ":", name)));
           }
           absl::StrAppend(&values, "    ", absl::StrJoin(patterns, "|"),
                           ") words=", ShellQuoted(absl::StrJoin(allowed, " ")),
                           " ;;\n");
         }
         absl::StrAppend(&words, "      ", ShellQuoted(path),
                         ") options=", ShellQuoted(absl::StrJoin(flags, " ")),
                         " commands=", ShellQuoted(absl::StrJoin(choices, " ")),
                         " ;;\n");
       });
  const std::string function = FunctionName(app);
  std::string script = absl::StrCat(
      "# Completion of ", app.get_name(), " for bash: source this file.\n",
      function, "() {\n",
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local path=",
      ShellQuoted(app.get_name()), " words= options= commands= i\n");
  if (!paths.empty()) {
    absl::StrAppend(&script,
                    "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
                    "    case \"$path ${COMP_WORDS[i]}\" in\n      ",
                    paths,
                    ") path=\"$path ${COMP_WORDS[i]}\" ;;\n    esac\n  done\n");
  }
  absl::StrAppend(&script, "  case \"$path:$prev\" in\n", values,
                  "  esac\n"
                  "  if [[ -z $words ]]; then\n"
                  "    case \"$path\" in\n",
                  words,
                  "    esac\n"
                  "    if [[ $cur == -* ]]; then words=$options; else "
                  "words=$commands; fi\n"
                  "  fi\n"
                  "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                  "}\n"
                  // File names where no word fits.
                  "complete -o default -F ",
                  function, " ", app.get_name(), "\n");
  return script;
}

std::string ZshCompletion(const CLI::App& app) {
  return absl::StrCat("#compdef ", app.get_name(),
                      "\nautoload -U +X bashcompinit && bashcompinit\n",
                      BashCompletion(app));
}

// Fish takes a line per subcommand and option, each with the condition under
// which it is offered.
std::string FishCompletion(const CLI::App& app) {
  std::string script;
  Walk(app.get_name(), app,
       [&](const std::string& path, const CLI::App& command) {
         // Conditions: every name of the path was typed, and for subcommands
         // none of their names yet.
         std::vector<std::string> conditions;
         const std::vector<std::string> names = absl::StrSplit(path, ' ');
         for (size_t i = 1; i < names.size(); ++i) {
           conditions.push_back(
               absl::StrCat("__fish_seen_subcommand_from ", names[i]));
         }
         std::vector<std::string> children;
         for (const CLI::App* child : Commands(command)) {
           children.push_back(child->get_name());
         }
         const auto line = [&](std::vector<std::string> when) {
           return absl::StrCat(
               "complete -c ", app.get_name(),
               when.empty() ? ""
                            : absl::StrCat(" -n ", ShellQuoted(absl::StrJoin(
                                                       when, "; and "))));
         };
         std::vector<std::string> before_child = conditions;
         if (!children.empty()) {
           before_child.push_back(
               absl::StrCat("not __fish_seen_subcommand_from ",
                            absl::StrJoin(children, " ")));
         }
         for (const CLI::App* child : Commands(command)) {
           absl::StrAppend(&script, line(before_child), " -f -a ",
                           child->get_name(), " -d ",
                           ShellQuoted(child->get_description()), "\n");
         }
         for (const CLI::Option* option : VisibleOptions(command)) {
           if (OptionNames(*option).empty()) continue;
           absl::StrAppend(&script, line(before_child));
           for (const std::string& name : option->get_lnames()) {
             absl::StrAppend(&script, " -l ", name);
           }
           for (const std::string& name : option->get_snames()) {
             absl::StrAppend(&script, " -s ", name);
           }
           const std::vector<std::string> allowed = OptionValues(*option);
           if (!allowed.empty()) {
             absl::StrAppend(&script, " -x -a ",
                             ShellQuoted(absl::StrJoin(allowed, " ")));
           } else if (TakesValue(*option)) {
             absl::StrAppend(&script, " -r");
           }
           absl::StrAppend(&script, " -d ",
                           ShellQuoted(option->get_description()), "\n");
         }
       });
  return script;
}

void AddProgramPages(CLI::App& app, absl::string_view version) {
  app.set_version_flag("--version", absl::StrCat(app.get_name(), " ", version));
  app.add_flag_callback(
      "--man",
      [&app, version = std::string(version)] {
        // CLI11's way to print a text and exit with 0 from inside the parser.
        throw CLI::CallForVersion(ManPage(app, version), 0);
      },
      "Print the manual page for man(1) and exit");
  app.add_option_function<std::string>(
         "--completion",
         [&app](const std::string& shell) {
           throw CLI::CallForVersion(shell == "bash"  ? BashCompletion(app)
                                     : shell == "zsh" ? ZshCompletion(app)
                                                      : FishCompletion(app),
                                     0);
         },
         "Print the completion script of a shell and exit")
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace refract::base
