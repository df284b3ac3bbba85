#ifndef REFRACT_BASE_COMMAND_LINE_MODEL_CONTROL_FLAGS_H_
#define REFRACT_BASE_COMMAND_LINE_MODEL_CONTROL_FLAGS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/string_view.h"
#include "base/number_range.h"

namespace refract::base {

// Flags of both daemons, with Triton's names (docs/how-to/model_control.md).
struct ModelControlFlags {
  std::vector<std::string> modes = {"none"};  // none, or poll and explicit
  double poll_s = 15;
  std::vector<std::string> load_models;  // "*": all
  bool exit_on_error = false;

  bool poll() const { return Has("poll"); }
  bool by_request() const { return Has("explicit"); }
  // Whether a node loads `model` at its start.
  bool LoadsAtStart(absl::string_view model) const {
    if (!by_request() || poll()) return true;
    return std::any_of(
        load_models.begin(), load_models.end(),
        [&](const std::string& name) { return name == "*" || name == model; });
  }

 private:
  bool Has(absl::string_view mode) const {
    return std::find(modes.begin(), modes.end(), mode) != modes.end();
  }
};

// `requests`: for the help, the sender of load requests in mode explicit.
inline void AddModelControlFlags(CLI::App& app, ModelControlFlags& flags,
                                 const std::string& requests) {
  app.add_option("--model-control-mode", flags.modes,
                 "Which models are served: none (the models of the repository "
                 "at start), poll (the repository is looked at again every "
                 "--repository-poll-secs), explicit (" +
                     requests + "), or poll,explicit")
      ->delimiter(',')
      ->type_name("none|poll|explicit")
      ->check(CLI::IsMember({"none", "poll", "explicit"}));
  app.add_option("--repository-poll-secs", flags.poll_s,
                 "With poll: time between two looks at the repository")
      ->type_name("SECONDS")
      ->check(NumberIn(0.05, 86400));
  app.add_option("--load-model", flags.load_models,
                 "With explicit: model to load at start; may be repeated, '*' "
                 "for all")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->default_str("");
  app.add_flag("--exit-on-error", flags.exit_on_error,
               "Exit at the start if a version that should be served cannot be "
               "loaded; without this flag the node leaves that version out and "
               "serves the others");
}

// Call after parsing. Empty, or the error.
inline std::string CheckModelControlFlags(const ModelControlFlags& flags) {
  if (flags.modes.size() > 1 &&
      std::find(flags.modes.begin(), flags.modes.end(), "none") !=
          flags.modes.end()) {
    return "--model-control-mode: none cannot be combined with another mode";
  }
  if (!flags.load_models.empty() && !flags.by_request()) {
    return "--load-model: only with --model-control-mode explicit";
  }
  return "";
}

}  // namespace refract::base

#endif  // REFRACT_BASE_COMMAND_LINE_MODEL_CONTROL_FLAGS_H_
