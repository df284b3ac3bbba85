#ifndef REFRACT_CPU_NODE_HTTP_INFER_CODEC_H_
#define REFRACT_CPU_NODE_HTTP_INFER_CODEC_H_

// Inference over HTTP: KServe v2's JSON and Triton's binary tensor extension.
// A body is JSON, or JSON followed by the bytes of tensors, in the order of the
// tensors in the JSON that have a `binary_data_size`.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "cpu_node/request.h"

namespace refract::cpu_node {

// Forms in which the answer's tensors travel.
struct OutputForms {
  bool binary = false;  // default for outputs that are not listed
  // By listed output, in InferRequest::outputs's order. Not vector<bool>:
  // elements are references.
  std::vector<char> listed;

  bool IsBinary(size_t output) const {
    return output < listed.size() ? listed[output] != 0 : binary;
  }
};

struct HttpInferRequest {
  InferRequest request;  // without the model's name and version
  std::string id;
  OutputForms forms;
};

// Decodes a body. `json_bytes`: length of the JSON in `body`, the text of the
// header Inference-Header-Content-Length; none: all of it. The memory of a
// tensor's elements is held from `memory` before it is allocated, and stays
// held in `request.memory` for the tensors.
//
//   InvalidArgument    names the byte, the field or the tensor
//   ResourceExhausted  `memory` is used up
absl::StatusOr<HttpInferRequest> DecodeHttpRequest(
    absl::string_view body, const std::optional<std::string>& json_bytes,
    absl::Time now, base::ByteBudget& memory);

struct HttpInferAnswer {
  std::string body;
  std::optional<size_t> json_bytes;  // none: the body is only JSON
};

// InvalidArgument: JSON cannot carry an output that the request wants in JSON
// (FP16, BF16, NaN, infinity).
absl::StatusOr<HttpInferAnswer> EncodeHttpAnswer(const InferResponse& response,
                                                 absl::string_view id,
                                                 const OutputForms& forms);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_INFER_CODEC_H_
