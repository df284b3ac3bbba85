#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "models/repository/hn_part.h"
#include "tools/command.h"
#include "tools/common_options.h"

namespace refract::tools {
namespace {

struct PackageOptions {
  std::string model;
  std::string target;
  std::string output;
};

absl::Status Package(const PackageOptions& options, std::ostream& out) {
  REFRACT_ASSIGN_OR_RETURN(
      const auto model,
      LoadModel(options.model, {.scope = models::WeightScope::kHnPart}));
  REFRACT_ASSIGN_OR_RETURN(const models::HnPackage package,
                           models::PackageHnPart(*model, options.output));
  out << absl::StreamFormat(
      "packaged %s for GPU nodes: %d weights, %.1f MiB; the whole version has "
      "%.1f MiB\n",
      package.folder, package.weights,
      static_cast<double>(package.bytes) / 0x1p20,
      static_cast<double>(package.whole_bytes) / 0x1p20);
  out << "next: refract-gpu-node --model-repository " << options.output << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddPackageCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<PackageOptions>();
  CLI::App* command = app.add_subcommand(
      "package",
      "Writes the files of a version that a kind of node needs: for GPU nodes "
      "the graph, the plan and the weights of the HN part, without tables");
  command->add_option("model", options->model, "a model with a split plan")
      ->type_name("DIR/NAME[/VERSION]")
      ->required();
  command->add_option("--for", options->target, "kind of node")
      ->type_name("gpu-node")
      ->check(CLI::IsMember({"gpu-node"}))
      ->required();
  command
      ->add_option("--output", options->output,
                   "repository to write to, made if missing; the "
                   "--model-repository of the GPU nodes")
      ->type_name("DIR")
      ->required();
  command->callback([&context, options] {
    context.action = [&context, options] {
      return Package(*options, context.out);
    };
  });
}

}  // namespace refract::tools
