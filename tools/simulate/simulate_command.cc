#include "CLI/CLI.hpp"
#include "tools/command.h"

namespace refract::tools {

void AddSimulateCommand(CLI::App& app, Context& context) {
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Placement policies on whole clusters, offline");
  AddSimulateFillCommand(*simulate, context);
  AddSimulateReplayCommand(*simulate, context);
  AddSimulateDisaggregationCommand(*simulate, context);
}

}  // namespace refract::tools
