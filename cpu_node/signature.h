#ifndef REFRACT_CPU_NODE_SIGNATURE_H_
#define REFRACT_CPU_NODE_SIGNATURE_H_

// What a model takes and gives, as clients see it, and the check of a request
// against it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/tensor.h"
#include "cpu_node/request.h"
#include "models/graph/graph.h"

namespace refract::cpu_node {

struct TensorSignature {
  std::string name;
  base::DType dtype = base::DType::kUnknown;
  base::Dims dims;  // −1: differs between requests
};

// A request that fits its model's signature. Views point into the request.
struct BoundRequest {
  std::vector<base::TensorView> inputs;  // in the graph's order
  std::vector<size_t> outputs;           // indices into the graph's outputs
  int64_t batch = 1;  // rows; 1 for models without a batch dimension
};

// Immutable; thread-safe.
class Signature {
 public:
  // InvalidArgument names an input that requests cannot be checked against
  // (unknown dtype or rank, or not a tensor).
  static absl::StatusOr<Signature> Of(const models::Graph& graph);

  // Names, dtypes, ranks and fixed dimensions; batch ≥ 1. InvalidArgument names
  // the tensor. Relations between sizes (a shared batch, N + 1 offsets) are
  // runtime::Program::OutputSpecs's to check.
  absl::StatusOr<BoundRequest> Bind(const InferRequest& request) const;

  const std::vector<TensorSignature>& inputs() const { return inputs_; }
  const std::vector<TensorSignature>& outputs() const { return outputs_; }

 private:
  Signature() = default;
  absl::Status CheckInput(const TensorSignature& expected,
                          const base::TensorView& given) const;

  std::vector<TensorSignature> inputs_;
  std::vector<TensorSignature> outputs_;
  absl::flat_hash_map<std::string, size_t> input_index_;
  absl::flat_hash_map<std::string, size_t> output_index_;
  // Where the number of rows can be read off: dimension `dim` of input `input`.
  struct BatchPlace {
    size_t input = 0;
    size_t dim = 0;
  };
  std::optional<BatchPlace> batch_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SIGNATURE_H_
