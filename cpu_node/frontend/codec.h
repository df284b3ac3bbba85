#ifndef REFRACT_CPU_NODE_FRONTEND_CODEC_H_
#define REFRACT_CPU_NODE_FRONTEND_CODEC_H_

// KServe v2 messages ↔ plain C++. Knows Protobuf, not gRPC.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cpu_node/request.h"
#include "cpu_node/served_model.h"
#include "cpu_node/statistics.h"
#include "proto/inference/grpc_service.pb.h"

namespace refract::cpu_node {

// Copies tensors into aligned memory of their own. Checks what can be said
// without the model: known datatypes, shapes that can exist, contents that are
// given once and fill the shape exactly. InvalidArgument names the tensor.
// `deadline` is left infinite unless the request's `timeout` parameter (µs)
// sets it, counted from `now`.
absl::StatusOr<InferRequest> DecodeRequest(
    const inference::ModelInferRequest& message, absl::Time now);

// All but the request's id. Outputs are always raw.
void EncodeResponse(const InferResponse& response,
                    inference::ModelInferResponse& message);

// `versions`: all that are served of this model.
void EncodeMetadata(const ServedModel& model,
                    const std::vector<std::string>& versions,
                    inference::ModelMetadataResponse& message);

// The model's config.pbtxt. Internal when it does not parse, which loading the
// model should have found.
absl::Status EncodeConfig(const ServedModel& model,
                          inference::ModelConfig& message);

void EncodeStatistics(const ServedModel& model,
                      inference::ModelStatistics& message);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_CODEC_H_
