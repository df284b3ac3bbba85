#ifndef REFRACT_CPU_NODE_FRONTEND_METHODS_H_
#define REFRACT_CPU_NODE_FRONTEND_METHODS_H_

// The methods of KServe v2 but inference, the same for gRPC and HTTP: message
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
// Without the extension of a front end's own encodings (binary_tensor_data).
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
// Triton's trace settings. Those of single models are the node's.
// FailedPrecondition: a change, and the node does not allow it.
absl::Status Answer(Engine& engine,
                    const inference::TraceSettingRequest& request,
                    inference::TraceSettingResponse& response);
// Changes of models: `done` is called when they are made, or have failed
// (ModelControl). Null: models are not changed by request.
void AnswerLater(ModelControl* control,
                 const inference::RepositoryModelLoadRequest& request,
                 ModelControl::Done done);
void AnswerLater(ModelControl* control,
                 const inference::RepositoryModelUnloadRequest& request,
                 ModelControl::Done done);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_METHODS_H_
