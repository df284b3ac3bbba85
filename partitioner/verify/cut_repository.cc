#include "partitioner/verify/cut_repository.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "models/rows/row_dependence.h"
#include "proto/inference/model_config.pb.h"

namespace refract::partitioner {
namespace {

namespace fs = std::filesystem;

constexpr char kPlanFile[] = "split_plan.pb";

// The model's configuration with another name: a configuration has to name the
// folder that it is in.
absl::StatusOr<std::string> Renamed(const models::LoadedModel& model,
                                    const std::string& name) {
  inference::ModelConfig config;
  std::string text;
  if (!google::protobuf::TextFormat::ParseFromString(model.config_text,
                                                     &config)) {
    return absl::InternalError(
        absl::StrCat(model.folder, ": its config.pbtxt does not parse"));
  }
  config.set_name(name);
  if (!google::protobuf::TextFormat::PrintToString(config, &text)) {
    return absl::InternalError("config.pbtxt cannot be printed");
  }
  return text;
}

}  // namespace

absl::Status AddCut(const models::LoadedModel& model, const std::string& name,
                    const models::SplitPlan& plan,
                    const std::string& repository) {
  REFRACT_RETURN_IF_ERROR(
      models::ValidatePlan(model.graph, model.digest, plan));
  // The version consists of links to the model's files, so large tables are not
  // copied. Only the plan and the configuration are files of its own.
  const fs::path folder = fs::path(repository) / name;
  const fs::path version = folder / "1";
  const auto failed = [](const fs::path& path, const std::error_code& error) {
    return absl::InternalError(
        absl::StrCat(path.string(), ": ", error.message()));
  };
  std::error_code error;
  fs::create_directories(version, error);
  if (error) return failed(version, error);
  const fs::path source = fs::absolute(model.folder, error);
  if (error) return failed(model.folder, error);
  for (fs::directory_iterator it(source, error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    if (it->path().filename() == kPlanFile) continue;
    fs::create_symlink(it->path(), version / it->path().filename(), error);
    if (error) break;
  }
  if (error) return failed(source, error);
  REFRACT_ASSIGN_OR_RETURN(const std::string config, Renamed(model, name));
  REFRACT_RETURN_IF_ERROR(
      base::WriteText((folder / "config.pbtxt").string(), config));
  // As `refract partition` marks a plan, so that nodes may merge and cut
  // requests.
  models::SplitPlan marked = plan;
  models::MarkRows(model.graph, marked);
  return models::SavePlan(model.graph, marked, (version / kPlanFile).string());
}

}  // namespace refract::partitioner
