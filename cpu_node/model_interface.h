#ifndef REFRACT_CPU_NODE_MODEL_INTERFACE_H_
#define REFRACT_CPU_NODE_MODEL_INTERFACE_H_

// Inputs and outputs of a model as clients see them, and the check of a request
// against them.

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

struct TensorInfo {
  std::string name;
  base::DType dtype = base::DType::kUnknown;
  base::Dims dims;  // −1: varies between requests
};

// A request that fits its model's interface. Views point into the request.
// Reusable for one request after the other: its memory stays.
struct BoundRequest {
  std::vector<base::TensorView> inputs;  // in the graph's order
  std::vector<size_t> outputs;           // indices into the graph's outputs
  int64_t batch = 1;  // rows; 1 for models without a batch dimension
};

// Immutable; thread-safe.
class ModelInterface {
 public:
  // InvalidArgument names an input whose requests cannot be checked (unknown
  // dtype or rank, or not a tensor).
  static absl::StatusOr<ModelInterface> Of(const models::Graph& graph);

  // Checks names, dtypes, ranks and fixed dimensions; batch ≥ 1.
  // InvalidArgument names the tensor. runtime::Program::OutputSpecs() checks
  // relations between sizes (a shared batch, N + 1 offsets).
  // `bound` is overwritten.
  absl::Status Bind(const InferRequest& request, BoundRequest& bound) const;

  const std::vector<TensorInfo>& inputs() const { return inputs_; }
  const std::vector<TensorInfo>& outputs() const { return outputs_; }

 private:
  ModelInterface() = default;
  absl::Status BindInputs(const InferRequest& request,
                          BoundRequest& bound) const;
  absl::Status BindOutputs(const InferRequest& request,
                           BoundRequest& bound) const;
  absl::Status CheckInput(const TensorInfo& expected,
                          const base::TensorView& given) const;

  std::vector<TensorInfo> inputs_;
  std::vector<TensorInfo> outputs_;
  absl::flat_hash_map<std::string, size_t> input_index_;
  absl::flat_hash_map<std::string, size_t> output_index_;
  // Source of the number of rows: dimension `dim` of input `input`.
  struct BatchDim {
    size_t input = 0;
    size_t dim = 0;
  };
  std::optional<BatchDim> batch_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_MODEL_INTERFACE_H_
