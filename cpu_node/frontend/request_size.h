#ifndef REFRACT_CPU_NODE_FRONTEND_REQUEST_SIZE_H_
#define REFRACT_CPU_NODE_FRONTEND_REQUEST_SIZE_H_

// Computes the memory that a request will take from its bytes alone: Protobuf
// allocates while it decodes, and an empty message of two bytes becomes 200.

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace refract::cpu_node {

// More than any model has; each tensor costs some hundred bytes once decoded.
inline constexpr size_t kMaxTensorsOfRequest = 1 << 14;
// LibTorch's limit for most operators.
inline constexpr size_t kMaxDimsOfTensor = 64;
// Parameters of the request, its inputs and its outputs together.
inline constexpr size_t kMaxParametersOfRequest = 1 << 10;
inline constexpr size_t kMaxParameterBytesOfRequest = size_t{1} << 20;
// Fields unknown to this version; Protobuf keeps them.
inline constexpr size_t kMaxUnknownFields = 1 << 10;

// Upper bounds, and the names that could be read.
struct RequestSize {
  std::string model_name;     // cut to kMaxNameTextBytes
  std::string model_version;  // likewise
  size_t message_bytes = 0;   // as received, after decompression
  size_t decoded_bytes = 0;   // as a ModelInferRequest
  size_t tensor_bytes = 0;    // of all inputs as tensors
};

// Walks over a serialized inference.ModelInferRequest without allocating. Fills
// in `size`, on errors as far as it got. Calls `named` once, when the names in
// `size` are known: before the first tensor, since Protobuf writes fields in
// the order of their numbers, or at the end. An error of `named` ends the walk
// and is returned.
//
//   InvalidArgument    not a ModelInferRequest, or more than the limits above;
//                      names the field and both numbers
//   ResourceExhausted  longer than `max_bytes`
absl::Status MeasureRequest(google::protobuf::io::ZeroCopyInputStream& bytes,
                            size_t max_bytes, RequestSize& size,
                            absl::FunctionRef<absl::Status()> named);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_REQUEST_SIZE_H_
