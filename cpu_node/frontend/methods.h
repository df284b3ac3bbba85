#ifndef REFRACT_CPU_NODE_FRONTEND_METHODS_H_
#define REFRACT_CPU_NODE_FRONTEND_METHODS_H_

// The methods of KServe v2 except inference, shared by gRPC and HTTP: message
// in, message out. Answer() answers at once.

#include "absl/status/status.h"
#include "cpu_node/control/model_control.h"
#include "cpu_node/engine.h"
#include "proto/inference/grpc_service.pb.h"

namespace refract::cpu_node {

// NotFound names an unknown model or version, Unavailable says why a known
// version cannot be served.
absl::Status Answer(Engine& engine, const inference::ServerLiveRequest& request,
                    inference::ServerLiveResponse& response);
absl::Status Answer(Engine& engine,
                    const inference::ServerReadyRequest& request,
                    inference::ServerReadyResponse& response);
// A known version that cannot be served is "not ready", not an error.
absl::Status Answer(Engine& engine, const inference::ModelReadyRequest& request,
                    inference::ModelReadyResponse& response);
// Omits the extension that only HTTP has (binary_tensor_data).
absl::Status Answer(Engine& engine,
                    const inference::ServerMetadataRequest& request,
                    inference::ServerMetadataResponse& response);
absl::Status Answer(Engine& engine,
                    const inference::ModelMetadataRequest& request,
                    inference::ModelMetadataResponse& response);
absl::Status Answer(Engine& engine,
                    const inference::ModelConfigRequest& request,
                    inference::ModelConfigResponse& response);
absl::Status Answer(Engine& engine,
                    const inference::ModelStatisticsRequest& request,
                    inference::ModelStatisticsResponse& response);
absl::Status Answer(Engine& engine,
                    const inference::RepositoryIndexRequest& request,
                    inference::RepositoryIndexResponse& response);
// Triton's trace settings. Settings per model equal the node's settings.
// FailedPrecondition: the node does not allow changes.
absl::Status Answer(Engine& engine,
                    const inference::TraceSettingRequest& request,
                    inference::TraceSettingResponse& response);
// Load and unload: `done` is called when the change is made or has failed
// (ModelControl). Null `control`: clients may not change models.
void AnswerLater(ModelControl* control,
                 const inference::RepositoryModelLoadRequest& request,
                 ModelControl::Done done);
void AnswerLater(ModelControl* control,
                 const inference::RepositoryModelUnloadRequest& request,
                 ModelControl::Done done);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_METHODS_H_
