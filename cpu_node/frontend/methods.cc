#include "cpu_node/frontend/methods.h"

#include <string>
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

// Models are loaded at start alone.
absl::Status NoModelControl() {
  return absl::UnimplementedError("this server does not load or unload models");
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
  const absl::StatusOr<const ServedModel*> model =
      engine.catalog().Find(request.name(), request.version());
  if (!model.ok() && !absl::IsUnavailable(model.status())) {
    return model.status();
  }
  response.set_ready(model.ok() && engine.ModelReady(**model).ok());
  return absl::OkStatus();
}

absl::Status Answer(Engine&, const inference::ServerMetadataRequest&,
                    inference::ServerMetadataResponse& response) {
  response.set_name("refract");
  response.set_version(REFRACT_VERSION);
  // Without "model_repository": models can be listed, but not loaded, by
  // clients.
  response.add_extensions("model_configuration");
  response.add_extensions("statistics");
  return absl::OkStatus();
}

absl::Status Answer(Engine& engine,
                    const inference::ModelMetadataRequest& request,
                    inference::ModelMetadataResponse& response) {
  REFRACT_ASSIGN_OR_RETURN(
      const ServedModel* const model,
      engine.catalog().Find(request.name(), request.version()));
  EncodeMetadata(*model, ServedVersions(engine.catalog(), request.name()),
                 response);
  return absl::OkStatus();
}

absl::Status Answer(Engine& engine,
                    const inference::ModelConfigRequest& request,
                    inference::ModelConfigResponse& response) {
  REFRACT_ASSIGN_OR_RETURN(
      const ServedModel* const model,
      engine.catalog().Find(request.name(), request.version()));
  return EncodeConfig(*model, *response.mutable_config());
}

absl::Status Answer(Engine& engine,
                    const inference::ModelStatisticsRequest& request,
                    inference::ModelStatisticsResponse& response) {
  if (!request.name().empty() && !request.version().empty()) {
    REFRACT_ASSIGN_OR_RETURN(
        const ServedModel* const model,
        engine.catalog().Find(request.name(), request.version()));
    EncodeStatistics(*model, *response.add_model_stats());
    return absl::OkStatus();
  }
  bool known = request.name().empty();
  for (const Catalog::Entry& entry : engine.catalog().entries()) {
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
  for (const Catalog::Entry& entry : engine.catalog().entries()) {
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

absl::Status Answer(Engine&, const inference::RepositoryModelLoadRequest&,
                    inference::RepositoryModelLoadResponse&) {
  return NoModelControl();
}

absl::Status Answer(Engine&, const inference::RepositoryModelUnloadRequest&,
                    inference::RepositoryModelUnloadResponse&) {
  return NoModelControl();
}

}  // namespace refract::cpu_node
