#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "models/repository/cn_shard.h"
#include "models/repository/hn_part.h"
#include "tools/command.h"
#include "tools/common_options.h"

namespace refract::tools {
namespace {

struct PackageOptions {
  std::string model;
  std::string target;
  std::string output;
  std::optional<size_t> shard;
};

absl::Status PackageShard(const PackageOptions& options, std::ostream& out) {
  REFRACT_ASSIGN_OR_RETURN(const auto model, LoadModel(options.model, {}));
  REFRACT_ASSIGN_OR_RETURN(
      const models::Package package,
      models::PackageCnShard(*model, *options.shard, options.output));
  const size_t shards = model->plan->num_shards;
  out << absl::StreamFormat(
      "packaged %s for shard %d of %d CPU nodes: %.1f MiB; the whole version "
      "has %.1f MiB\n",
      package.folder, *options.shard, shards,
      static_cast<double>(package.bytes) / 0x1p20,
      static_cast<double>(package.whole_bytes) / 0x1p20);
  out << "next: refract-cpu-node --model-repository " << options.output
      << " --shard " << *options.shard << " --shard-peers HOST:PORT,… (of all "
      << shards << " shards)\n";
  return absl::OkStatus();
}

absl::Status Package(const PackageOptions& options, std::ostream& out) {
  if (options.target == "cpu-node") {
    if (!options.shard.has_value()) {
      return absl::InvalidArgumentError(
          "--for cpu-node: wants --shard; a CPU node that is no shard needs "
          "the whole version");
    }
    return PackageShard(options, out);
  }
  if (options.shard.has_value()) {
    return absl::InvalidArgumentError(
        "--shard: is for --for cpu-node; GPU nodes have no tables");
  }
  REFRACT_ASSIGN_OR_RETURN(
      const auto model,
      LoadModel(options.model, {.scope = models::WeightScope::kHnPart}));
  REFRACT_ASSIGN_OR_RETURN(const models::Package package,
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
      "the graph, the plan and the weights of the HN part, without tables; for "
      "a CPU node of a shard group all weights, but only its rows of divided "
      "tables");
  command->add_option("model", options->model, "a model with a split plan")
      ->type_name("DIR/NAME[/VERSION]")
      ->required();
  command->add_option("--for", options->target, "kind of node")
      ->type_name("gpu-node|cpu-node")
      ->check(CLI::IsMember({"gpu-node", "cpu-node"}))
      ->required();
  command
      ->add_option("--shard", options->shard,
                   "with --for cpu-node: number of the node in its shard "
                   "group, from 0 (refract partition --shards)")
      ->type_name("K");
  command
      ->add_option("--output", options->output,
                   "repository to write to, made if missing; the "
                   "--model-repository of the nodes, one for each shard")
      ->type_name("DIR")
      ->required();
  SetAction(*command, context,
            [&context, options] { return Package(*options, context.out); });
}

}  // namespace refract::tools
