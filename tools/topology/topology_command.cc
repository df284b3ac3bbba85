#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "placement/topology/read_topology.h"
#include "placement/topology/topology_file.h"
#include "placement/topology/topology_text.h"
#include "tools/command.h"
#include "tools/json_output.h"

namespace refract::tools {
namespace {

struct TopologyOptions {
  placement::TopologySources sources;
  std::string source = "sysfs";
  std::string dump;
  JsonOutput json;
};

absl::Status Topology(const TopologyOptions& options, std::ostream& out) {
  placement::SysfsDump dump;
  absl::StatusOr<placement::NodeTopology> topology =
      placement::ReadTopology(options.sources, &dump);
  if (!topology.ok()) {
    // A file of sysfs that cannot be read is the user's to correct, too.
    return absl::IsUnavailable(topology.status())
               ? absl::FailedPreconditionError(topology.status().message())
               : topology.status();
  }
  if (topology->numa_nodes.empty() && topology->nics.empty() &&
      topology->gpus.empty()) {
    const placement::TopologySources& from = options.sources;
    return absl::FailedPreconditionError(
        absl::StrCat(from.dump_file.empty() ? from.sysfs_root : from.dump_file,
                     ": has no NUMA node, NIC or GPU, so it is no sysfs"));
  }
  const std::string matrix = placement::MatrixText(*topology);
  out << placement::TreeText(*topology);
  if (!matrix.empty()) out << "\n" << matrix;
  if (!options.dump.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(options.dump, dump.ToJson()));
  }
  if (options.json.empty()) return absl::OkStatus();
  return options.json.WriteText(placement::TopologyJson(*topology));
}

}  // namespace

void AddTopologyCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<TopologyOptions>();
  CLI::App* command = app.add_subcommand(
      "topology",
      "Shows the NUMA nodes, NICs and GPUs of a machine and the paths between "
      "them");
  CLI::Option* const root =
      command
          ->add_option("--sysfs-root", options->sources.sysfs_root,
                       "sysfs, or a copy of it with its symbolic links")
          ->type_name("DIR");
  CLI::Option* const source =
      command
          ->add_option("--source", options->source,
                       "source of the facts: sysfs (this program), or "
                       "hwloc as a second opinion")
          ->check(CLI::IsMember({"sysfs", "hwloc"}));
  command
      ->add_option("--load", options->sources.dump_file,
                   "read a dump of another machine instead of sysfs")
      ->type_name("FILE")
      ->excludes(root)
      ->excludes(source);
  AddOutputFile(*command, "--dump", options->dump,
                "write what was read from sysfs to this file (JSON), for "
                "--load elsewhere; it holds names and addresses (IP, MAC) of "
                "network interfaces, and no serial numbers")
      ->excludes(source);
  command
      ->add_option("--override", options->sources.override_file,
                   "correct what was discovered by this file (JSON, the fields "
                   "of --json)")
      ->type_name("FILE");
  options->json.AddTo(*command, context, "the topology");
  SetAction(*command, context, [&context, options] {
    options->sources.hwloc = options->source == "hwloc";
    return Topology(*options, context.out);
  });
}

}  // namespace refract::tools
