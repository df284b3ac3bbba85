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
#include "models/repository/hn_part.h"
#include "models/repository/repository.h"
#include "nlohmann/json.hpp"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/json_output.h"

namespace refract::tools {
namespace {

namespace fs = std::filesystem;

struct VerifyOptions {
  std::string repository;
  JsonOutput json;
  std::vector<std::string> op_libraries;
};

absl::Status VerifyRepository(const VerifyOptions& options, std::ostream& out) {
  REFRACT_RETURN_IF_ERROR(LoadOpLibraries(options.op_libraries));
  const models::Repository repository(options.repository);
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           repository.ListModels());
  nlohmann::ordered_json versions = nlohmann::ordered_json::array();
  size_t bad = 0;
  std::string first_bad;
  const auto report = [&](const std::string& name, int64_t version,
                          uint64_t bytes, const absl::Status& status,
                          const std::vector<std::string>& warnings) {
    const std::string label = absl::StrCat(name, "/", version);
    const char* const word = !status.ok()       ? "bad"
                             : warnings.empty() ? "ok"
                                                : "warn";
    out << absl::StreamFormat("%-4s %-24s %9.1f MiB", word, label,
                              static_cast<double>(bytes) / (1 << 20));
    if (!status.ok()) out << "  " << OneLine(status.message());
    for (const std::string& warning : warnings) out << "  " << OneLine(warning);
    out << "\n";
    out.flush();  // the next version may take minutes
    versions.push_back({{"model", name},
                        {"version", version},
                        {"ok", status.ok()},
                        {"verified_bytes", bytes},
                        {"error", std::string(status.message())},
                        {"warnings", warnings}});
    if (status.ok()) return;
    if (bad++ == 0) first_bad = std::string(status.message());
  };
  for (const std::string& name : names) {
    const auto numbers = repository.ListVersions(name);
    if (!numbers.ok()) {
      report(name, 0, 0, numbers.status(), {});
      continue;
    }
    for (const int64_t version : *numbers) {
      // A package has the files of one kind of nodes, and no others.
      std::error_code error;
      const bool for_gpu_nodes =
          fs::exists(absl::StrCat(options.repository, "/", name, "/", version,
                                  "/", models::kHnPartFile),
                     error);
      const auto model =
          repository.Load(name, version,
                          {.verification = models::Verification::kFull,
                           .scope = for_gpu_nodes ? models::WeightScope::kHnPart
                                                  : models::WeightScope::kWhole,
                           .shard_packages = !for_gpu_nodes});
      report(name, version, model.ok() ? (*model)->verified_bytes : 0,
             model.status(),
             model.ok() ? (*model)->warnings : std::vector<std::string>());
    }
  }
  if (!options.json.empty()) {
    REFRACT_RETURN_IF_ERROR(options.json.Write(versions));
  }
  if (versions.empty()) {
    return absl::NotFoundError(
        absl::StrCat(options.repository, ": has no version of any model"));
  }
  if (bad == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(bad, " of ", versions.size(), " versions: ", first_bad));
}

}  // namespace

void AddVerifyRepositoryCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify-repository",
                         "Reads every file of every version and compares it "
                         "with the digests that import recorded");
  command
      ->add_option("repository", options->repository,
                   "folder with the models, as --model-repository of the nodes")
      ->type_name("DIR")
      ->required();
  options->json.AddTo(*command, context, "the findings");
  AddOpLibraryOption(*command, options->op_libraries);
  SetAction(*command, context, [&context, options] {
    return VerifyRepository(*options, context.out);
  });
}

}  // namespace refract::tools
