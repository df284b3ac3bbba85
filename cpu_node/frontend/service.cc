#include "cpu_node/frontend/service.h"

#include <algorithm>
#include <chrono>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/process/within_memory.h"
#include "cpu_node/frontend/codec.h"
#include "cpu_node/frontend/status.h"

namespace refract::cpu_node {
namespace {

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// gRPC gives calendar time; the engine uses a steady clock, so only the
// difference is carried over.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context,
                      absl::Time now) {
  using SystemClock = std::chrono::system_clock;
  const SystemClock::time_point deadline = context.deadline();
  if (deadline == SystemClock::time_point::max()) return absl::InfiniteFuture();
  return now + absl::FromChrono(deadline - SystemClock::now());
}

// Reactor of a ModelInfer call with a cancellation callback, which gRPC's
// default reactor lacks. Deletes itself when gRPC is done with it.
class InferReactor final : public grpc::ServerUnaryReactor {
 public:
  std::stop_token cancel() const { return cancel_.get_token(); }

 private:
  // The client cancelled, its connection ended, or the deadline passed.
  void OnCancel() override { cancel_.request_stop(); }
  void OnDone() override { delete this; }

  std::stop_source cancel_;
};

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

}  // namespace

grpc::ServerUnaryReactor* InferenceService::ServerLive(
    grpc::CallbackServerContext* context, const inference::ServerLiveRequest*,
    inference::ServerLiveResponse* response) {
  response->set_live(true);
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::ServerReady(
    grpc::CallbackServerContext* context, const inference::ServerReadyRequest*,
    inference::ServerReadyResponse* response) {
  response->set_ready(engine_.Ready());
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::ModelReady(
    grpc::CallbackServerContext* context,
    const inference::ModelReadyRequest* request,
    inference::ModelReadyResponse* response) {
  const absl::StatusOr<const ServedModel*> model =
      engine_.catalog().Find(request->name(), request->version());
  // A known model that cannot be loaded is "not ready", not an error.
  if (!model.ok() && !absl::IsUnavailable(model.status())) {
    return Finish(context, model.status());
  }
  response->set_ready(model.ok() && engine_.ModelReady(**model).ok());
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(
    grpc::CallbackServerContext* context,
    const inference::ServerMetadataRequest*,
    inference::ServerMetadataResponse* response) {
  response->set_name("refract");
  response->set_version(REFRACT_VERSION);
  // Without "model_repository": models can be listed, but not loaded, by
  // clients.
  response->add_extensions("model_configuration");
  response->add_extensions("statistics");
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(
    grpc::CallbackServerContext* context,
    const inference::ModelMetadataRequest* request,
    inference::ModelMetadataResponse* response) {
  const absl::StatusOr<const ServedModel*> model =
      engine_.catalog().Find(request->name(), request->version());
  if (model.ok()) {
    EncodeMetadata(**model, ServedVersions(engine_.catalog(), request->name()),
                   *response);
  }
  return Finish(context, model.status());
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(
    grpc::CallbackServerContext* context,
    const inference::ModelInferRequest* request,
    inference::ModelInferResponse* response) {
  // Counted before decoding: AwaitQuiet() waits for arrivals of any kind.
  infer_calls_.fetch_add(1, std::memory_order_relaxed);
  const absl::Time now = engine_.clock().Now();
  absl::StatusOr<InferRequest> decoded = DecodeRequest(*request, now);
  if (!decoded.ok()) {
    return Finish(
        context, engine_.Refuse(request->model_name(), request->model_version(),
                                decoded.status()));
  }
  decoded->deadline = std::min(decoded->deadline, DeadlineOf(*context, now));
  auto* const reactor = new InferReactor;
  decoded->cancel = reactor->cancel();
  // `request` and `response` live until the reactor is finished.
  engine_.Infer(*std::move(decoded),
                [request, response,
                 reactor](const absl::StatusOr<InferResponse>& result) {
                  // Encoding allocates in proportion to the answer; without
                  // memory only this request fails.
                  const absl::Status status = base::WithinMemory([&] {
                    REFRACT_RETURN_IF_ERROR(result.status());
                    response->set_id(request->id());
                    EncodeResponse(*result, *response);
                    return absl::OkStatus();
                  });
                  reactor->Finish(ToGrpcStatus(status));
                });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::ModelConfig(
    grpc::CallbackServerContext* context,
    const inference::ModelConfigRequest* request,
    inference::ModelConfigResponse* response) {
  const absl::StatusOr<const ServedModel*> model =
      engine_.catalog().Find(request->name(), request->version());
  if (!model.ok()) return Finish(context, model.status());
  return Finish(context, EncodeConfig(**model, *response->mutable_config()));
}

grpc::ServerUnaryReactor* InferenceService::ModelStatistics(
    grpc::CallbackServerContext* context,
    const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  if (!request->name().empty() && !request->version().empty()) {
    const absl::StatusOr<const ServedModel*> model =
        engine_.catalog().Find(request->name(), request->version());
    if (model.ok()) EncodeStatistics(**model, *response->add_model_stats());
    return Finish(context, model.status());
  }
  bool known = request->name().empty();
  for (const Catalog::Entry& entry : engine_.catalog().entries()) {
    if (!request->name().empty() && entry.name != request->name()) continue;
    known = true;
    if (entry.model == nullptr) continue;
    EncodeStatistics(*entry.model, *response->add_model_stats());
  }
  if (known) return Finish(context, absl::OkStatus());
  return Finish(context, absl::NotFoundError(absl::StrCat(
                             "unknown model '", request->name(), "'")));
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(
    grpc::CallbackServerContext* context,
    const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  for (const Catalog::Entry& entry : engine_.catalog().entries()) {
    const absl::Status ready = entry.model != nullptr
                                   ? engine_.ModelReady(*entry.model)
                                   : entry.status;
    if (request->ready() && !ready.ok()) continue;
    auto* index = response->add_models();
    index->set_name(entry.name);
    index->set_version(absl::StrCat(entry.version));
    index->set_state(ready.ok() ? "READY" : "UNAVAILABLE");
    index->set_reason(std::string(ready.message()));
  }
  return Finish(context, absl::OkStatus());
}

}  // namespace refract::cpu_node
