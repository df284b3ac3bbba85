#include "cpu_node/frontend/methods.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "cpu_node/frontend/codec.h"

namespace refract::cpu_node {
namespace {

std::vector<std::string> ServedVersions(const Catalog& catalog,
                                        absl::string_view name) {
  std::vector<std::string> versions;
  for (const Catalog::Entry& entry : catalog.entries()) {
    if (entry.name == name && entry.model != nullptr) {
      versions.push_back(absl::StrCat(entry.version));
    }
  }
  return versions;
}

absl::Status NoControl() {
  return absl::UnavailableError(
      "models are loaded and unloaded by request only with "
      "--model-control-mode explicit");
}

// The parameter "config" of a load request; other parameters are unknown.
absl::StatusOr<std::string> ConfigOf(
    const inference::RepositoryModelLoadRequest& request) {
  std::string config;
  for (const auto& [name, value] : request.parameters()) {
    if (name != "config" ||
        value.parameter_choice_case() !=
            inference::ModelRepositoryParameter::kStringParam) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", base::Shorten(name),
          "': only 'config' is known, a model configuration as JSON text"));
    }
    config = value.string_param();
  }
  return config;
}

}  // namespace

absl::Status Answer(Engine&, const inference::ServerLiveRequest&,
                    inference::ServerLiveResponse& response) {
  response.set_live(true);
  return absl::OkStatus();
}

absl::Status Answer(Engine& engine, const inference::ServerReadyRequest&,
                    inference::ServerReadyResponse& response) {
  response.set_ready(engine.Ready());
  return absl::OkStatus();
}

absl::Status Answer(Engine& engine, const inference::ModelReadyRequest& request,
                    inference::ModelReadyResponse& response) {
  const auto model = engine.catalog()->Find(request.name(), request.version());
  // A version that is not served is "not ready"; an unknown model is an error.
  if (!model.ok() && !absl::IsUnavailable(model.status())) {
    return model.status();
  }
  response.set_ready(model.ok() && engine.ModelReady(**model).ok());
  return absl::OkStatus();
}

absl::Status Answer(Engine& engine, const inference::ServerMetadataRequest&,
                    inference::ServerMetadataResponse& response) {
  response.set_name("refract");
  response.set_version(REFRACT_VERSION);
  // Extensions by Triton's names: clients look for them before they use a
  // method.
  if (engine.loads_by_request()) {
    response.add_extensions("model_repository");
    response.add_extensions("model_repository(unload_dependents)");
  }
  response.add_extensions("model_configuration");
  response.add_extensions("statistics");
  response.add_extensions("trace");
  return absl::OkStatus();
}

absl::Status Answer(Engine& engine,
                    const inference::ModelMetadataRequest& request,
                    inference::ModelMetadataResponse& response) {
  REFRACT_ASSIGN_OR_RETURN(
      const std::shared_ptr<const ServedModel> model,
      engine.catalog()->Find(request.name(), request.version()));
  EncodeMetadata(*model, ServedVersions(*engine.catalog(), request.name()),
                 response);
  return absl::OkStatus();
}

absl::Status Answer(Engine& engine,
                    const inference::ModelConfigRequest& request,
                    inference::ModelConfigResponse& response) {
  REFRACT_ASSIGN_OR_RETURN(
      const std::shared_ptr<const ServedModel> model,
      engine.catalog()->Find(request.name(), request.version()));
  return EncodeConfig(*model, *response.mutable_config());
}

absl::Status Answer(Engine& engine,
                    const inference::ModelStatisticsRequest& request,
                    inference::ModelStatisticsResponse& response) {
  // A version that is named and not served is an error; otherwise all served
  // versions are listed.
  if (!request.name().empty() && !request.version().empty()) {
    REFRACT_ASSIGN_OR_RETURN(
        const std::shared_ptr<const ServedModel> model,
        engine.catalog()->Find(request.name(), request.version()));
    EncodeStatistics(*model, *response.add_model_stats());
    return absl::OkStatus();
  }
  bool known = request.name().empty();
  const std::shared_ptr<const Catalog> catalog = engine.catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    if (!request.name().empty() && entry.name != request.name()) continue;
    known = true;
    if (entry.model == nullptr) continue;
    EncodeStatistics(*entry.model, *response.add_model_stats());
  }
  if (known) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("unknown model '", base::Shorten(request.name()), "'"));
}

absl::Status Answer(Engine& engine,
                    const inference::RepositoryIndexRequest& request,
                    inference::RepositoryIndexResponse& response) {
  const std::shared_ptr<const Catalog> catalog = engine.catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    const absl::Status ready =
        entry.model != nullptr ? engine.ModelReady(*entry.model) : entry.status;
    if (request.ready() && !ready.ok()) continue;
    auto* index = response.add_models();
    index->set_name(entry.name);
    index->set_version(absl::StrCat(entry.version));
    index->set_state(ready.ok() ? "READY" : "UNAVAILABLE");
    index->set_reason(std::string(ready.message()));
  }
  return absl::OkStatus();
}

absl::Status Answer(Engine& engine,
                    const inference::TraceSettingRequest& request,
                    inference::TraceSettingResponse& response) {
  if (!request.model_name().empty()) {
    REFRACT_RETURN_IF_ERROR(
        engine.catalog()->Find(request.model_name(), "").status());
  }
  if (!request.settings().empty()) {
    if (!request.model_name().empty()) {
      return absl::UnimplementedError(
          "trace settings of single models are not supported; change those of "
          "the node");
    }
    if (!engine.trace_settings_by_request()) {
      return absl::FailedPreconditionError(
          "trace settings are changed by request only with "
          "--allow-trace-settings");
    }
    if (engine.tracer() == nullptr) {
      return absl::FailedPreconditionError(
          "the node was started without a place for traces (--trace-config)");
    }
    tracing::Values values;
    for (const auto& [name, list] : request.settings()) {
      values[name].assign(list.value().begin(), list.value().end());
    }
    REFRACT_RETURN_IF_ERROR(engine.tracer()->Change(values));
  }
  const tracing::Settings settings = engine.tracer() == nullptr
                                         ? tracing::Settings()
                                         : engine.tracer()->settings();
  for (const auto& [name, list] : tracing::ToValues(settings)) {
    auto& value = (*response.mutable_settings())[name];
    for (const std::string& text : list) value.add_value(text);
  }
  return absl::OkStatus();
}

void AnswerLater(ModelControl* control,
                 const inference::RepositoryModelLoadRequest& request,
                 ModelControl::Done done) {
  absl::StatusOr<std::string> config = ConfigOf(request);
  if (!config.ok()) return done(config.status());
  if (control == nullptr) return done(NoControl());
  control->Load(request.model_name(), *std::move(config), std::move(done));
}

// Triton's only parameter, unload_dependents, concerns ensembles, which do not
// exist here.
void AnswerLater(ModelControl* control,
                 const inference::RepositoryModelUnloadRequest& request,
                 ModelControl::Done done) {
  if (control == nullptr) return done(NoControl());
  control->Unload(request.model_name(), std::move(done));
}

}  // namespace refract::cpu_node
