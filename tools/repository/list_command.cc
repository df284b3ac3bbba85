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

// "optimal", "none", or the reason why the plan cannot be read. Reads no
// tables, so that packages for GPU nodes can be listed, too.
std::string PlanText(const models::Repository& repository,
                     const std::string& name, int64_t version) {
  const auto model =
      repository.Load(name, version,
                      {.verification = models::Verification::kNone,
                       .scope = models::WeightScope::kHnPart});
  if (!model.ok()) {
    return absl::StrCat("broken: ", OneLine(model.status().message()));
  }
  if (!(*model)->plan) return "none";
  return absl::StrCat((*model)->plan->method,
                      (*model)->plan->uses_hn() ? "" : " (all on the CN)");
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
      std::error_code error;
      const bool package =
          fs::exists(absl::StrCat(folder, "/", models::kHnPartFile), error);
      const uint64_t bytes = models::BytesUnder(folder);
      const std::string plan = PlanText(repository, name, version);
      out << absl::StreamFormat("%-24s %8d %-7s %12.1f  %s%s\n", name, version,
                                is_served ? "yes" : "no",
                                static_cast<double>(bytes) / 0x1p20, plan,
                                package ? ", package for GPU nodes" : "");
      rows.push_back({{"model", name},
                      {"version", version},
                      {"served", is_served},
                      {"bytes", bytes},
                      {"plan", plan},
                      {"package_for", package ? "gpu-node" : ""}});
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
  command->callback([&context, options] {
    context.action = [&context, options] {
      return List(*options, context.out);
    };
  });
}

}  // namespace refract::tools
