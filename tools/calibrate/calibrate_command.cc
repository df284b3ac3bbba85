#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "partitioner/verify/calibrate.h"
#include "partitioner/verify/interrupt.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/doctor/machine.h"
#include "tools/json_output.h"
#include "tools/partition/print.h"
#include "tools/progress.h"

namespace refract::tools {
namespace {

struct Options {
  partitioner::CalibrateOptions calibrate;
  std::string output;
};

std::string MachineName() {
  const Machine machine = ReadMachine("/");
  return absl::StrCat(machine.cpu, ", ", machine.cpus, " CPUs");
}

absl::Status Run(Options options, std::ostream& out, std::ostream& err) {
  if (options.calibrate.rounds < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rounds ", options.calibrate.rounds, ": must be at least 1"));
  }
  REFRACT_RETURN_IF_ERROR(
      partitioner::CheckTransport(options.calibrate.nodes.transport));
  options.calibrate.machine = MachineName();
  const partitioner::InterruptGuard guard;
  absl::StatusOr<partitioner::Calibration> calibration =
      absl::InternalError("");
  {
    Progress progress(err);
    calibration = partitioner::Calibrate(
        options.calibrate,
        [&](const std::string& text) { progress.Show(text); }, err);
  }
  REFRACT_RETURN_IF_ERROR(calibration.status());
  REFRACT_RETURN_IF_ERROR(base::WriteText(
      options.output, partitioner::CalibrationToText(*calibration)));
  PrintCalibration(*calibration, out);
  out << "written: " << options.output << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("calibrate",
                         "Measures the time of requests outside their model, "
                         "with a CN and an HN on this machine");
  AddOutputFile(*command, "--output", options->output,
                "file to write, for refract partition --calibration")
      ->required();
  command
      ->add_option(
          "--rounds", options->calibrate.rounds,
          "number of rounds; each round measures every kind of request")
      ->type_name("N");
  AddNodeOptions(*command, options->calibrate.nodes);
  SetAction(*command, context, [&context, options] {
    return Run(*options, context.out, context.err);
  });
}

}  // namespace refract::tools
