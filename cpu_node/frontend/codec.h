#ifndef REFRACT_CPU_NODE_FRONTEND_CODEC_H_
#define REFRACT_CPU_NODE_FRONTEND_CODEC_H_

// Conversion between KServe v2 messages and plain C++. Uses Protobuf, not gRPC.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/tensor.h"
#include "cpu_node/request.h"
#include "cpu_node/served_model.h"
#include "cpu_node/statistics.h"
#include "proto/inference/grpc_service.pb.h"

namespace refract::cpu_node {

// Decodes a request and copies its tensors into aligned memory. Checks
// everything that does not need the model: known datatypes, valid shapes,
// contents that are given once and fill the shape exactly. InvalidArgument
// names the tensor. `deadline` is infinite unless the request's `timeout`
// parameter (µs) sets it, relative to `now`.
absl::StatusOr<InferRequest> DecodeRequest(
    const inference::ModelInferRequest& message, absl::Time now);

// As above, for messages whose tensors are elsewhere: `tensor_of` decodes an
// input; its errors get the input's name in front.
absl::StatusOr<InferRequest> DecodeRequest(
    const inference::ModelInferRequest& message, absl::Time now,
    absl::FunctionRef<absl::StatusOr<base::Tensor>(int input)> tensor_of);

// For `tensor_of`: SpecOf() returns the dtype and shape that an input declares,
// whose bytes fit into size_t; TensorFromRaw() makes a tensor from its memory
// image. Errors continue a sentence that begins with the input.
absl::StatusOr<base::TensorSpec> SpecOf(
    const inference::ModelInferRequest::InferInputTensor& input);
absl::StatusOr<base::Tensor> TensorFromRaw(const base::TensorSpec& spec,
                                           absl::string_view raw);

// Encodes everything but the request's id. Outputs are always raw.
void EncodeResponse(const InferResponse& response,
                    inference::ModelInferResponse& message);

// `versions`: all served versions of this model.
void EncodeMetadata(const ServedModel& model,
                    const std::vector<std::string>& versions,
                    inference::ModelMetadataResponse& message);

// The model's config.pbtxt. Internal if it does not parse, although loading the
// model checked it.
absl::Status EncodeConfig(const ServedModel& model,
                          inference::ModelConfig& message);

void EncodeStatistics(const ServedModel& model,
                      inference::ModelStatistics& message);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_CODEC_H_
