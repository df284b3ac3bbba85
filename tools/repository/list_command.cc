#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "models/repository/cn_shard.h"
#include "models/repository/files/temporary_folder.h"
#include "models/repository/hn_part.h"
#include "models/repository/repository.h"
#include "nlohmann/json.hpp"
#include "tools/command.h"
#include "tools/json_output.h"

namespace refract::tools {
namespace {

namespace fs = std::filesystem;

struct ListOptions {
  std::string repository;
  JsonOutput json;
};

// Of a version. `plan`: "optimal", "none", or the reason why it cannot be read.
struct Listed {
  std::string plan;
  std::string package_for;  // the node, as in `refract package --for`; or empty
  std::string note;         // about the package
};

// Needs no tables but those of a package.
Listed LookAt(const models::Repository& repository, const std::string& name,
              int64_t version, const std::string& folder) {
  Listed listed;
  models::LoadOptions options = {.verification = models::Verification::kNone};
  std::error_code error;
  if (fs::exists(absl::StrCat(folder, "/", models::kCnShardFile), error)) {
    listed.package_for = "cpu-node";
    options.shard_packages = true;
  } else {
    options.scope = models::WeightScope::kHnPart;
    if (fs::exists(absl::StrCat(folder, "/", models::kHnPartFile), error)) {
      listed.package_for = "gpu-node";
      listed.note = ", package for GPU nodes";
    }
  }
  const auto model = repository.Load(name, version, options);
  if (!model.ok()) {
    listed.plan = absl::StrCat("broken: ", OneLine(model.status().message()));
    return listed;
  }
  const auto& plan = (*model)->plan;
  listed.plan = plan ? absl::StrCat(plan->method,
                                    plan->uses_hn() ? "" : " (all on the CN)")
                     : "none";
  if ((*model)->packaged_shard) {
    listed.note =
        absl::StrCat(", package for shard ", *(*model)->packaged_shard, " of ",
                     plan->num_shards, " CPU nodes");
  }
  return listed;
}

absl::Status List(const ListOptions& options, std::ostream& out) {
  const models::Repository repository(options.repository);
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           repository.ListModels());
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  out << absl::StreamFormat("%-24s %8s %-7s %12s  %s\n", "model", "version",
                            "served", "MiB", "plan");
  for (const std::string& name : names) {
    REFRACT_ASSIGN_OR_RETURN(const std::vector<int64_t> versions,
                             repository.ListVersions(name));
    const auto served = repository.ListServedVersions(name);
    for (const int64_t version : versions) {
      const std::string folder =
          absl::StrCat(options.repository, "/", name, "/", version);
      const bool is_served =
          served.ok() &&
          std::count(served->begin(), served->end(), version) > 0;
      const uint64_t bytes = models::BytesUnder(folder);
      const Listed listed = LookAt(repository, name, version, folder);
      out << absl::StreamFormat("%-24s %8d %-7s %12.1f  %s%s\n", name, version,
                                is_served ? "yes" : "no",
                                static_cast<double>(bytes) / 0x1p20,
                                listed.plan, listed.note);
      rows.push_back({{"model", name},
                      {"version", version},
                      {"served", is_served},
                      {"bytes", bytes},
                      {"plan", listed.plan},
                      {"package_for", listed.package_for}});
    }
  }
  if (options.json.empty()) return absl::OkStatus();
  return options.json.Write(rows);
}

}  // namespace

void AddListCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* command = app.add_subcommand(
      "list", "Lists the models of a repository, their versions and plans");
  command
      ->add_option("repository", options->repository,
                   "folder with the models, as --model-repository of the nodes")
      ->type_name("DIR")
      ->required();
  options->json.AddTo(*command, context, "the list");
  SetAction(*command, context,
            [&context, options] { return List(*options, context.out); });
}

}  // namespace refract::tools
