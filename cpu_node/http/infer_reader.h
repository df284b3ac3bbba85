#ifndef REFRACT_CPU_NODE_HTTP_INFER_READER_H_
#define REFRACT_CPU_NODE_HTTP_INFER_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/process/byte_budget.h"
#include "cpu_node/http/json_elements.h"
#include "proto/inference/grpc_service.pb.h"

namespace refract::cpu_node {

// The JSON of an inference request. Only the elements of tensors are outside
// gRPC's message, so that both protocols share the checks.
struct InferJson {
  inference::ModelInferRequest message;
  std::vector<JsonElements> elements;  // by input; empty: no `data`
};

// Reads the JSON as a stream, without a tree of values. Unknown fields are
// skipped.
//
//   InvalidArgument    malformed JSON (with line and column), a field of the
//                      wrong type, a field given twice, or more tensors,
//                      parameters or dimensions than gRPC takes
//                      (frontend/request_size.h)
//   ResourceExhausted  `memory` does not have what the elements need
absl::Status ReadInferJson(absl::string_view json, base::ByteBudget& memory,
                           InferJson& out);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_INFER_READER_H_
