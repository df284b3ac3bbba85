#ifndef REFRACT_MODELS_SHAPES_INFER_H_
#define REFRACT_MODELS_SHAPES_INFER_H_

// Shape inference for graphs that come without shapes (TorchScript), and the
// checks that running a graph several times makes possible.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph.h"
#include "models/weights.h"

namespace refract::models {

// An example of one input: its dtype and rank, and real contents where given.
struct NamedTensor {
  std::string name;
  base::TensorView tensor;
};

// Gives every tensor value of `graph` a dtype and a symbolic shape, from one
// example request (`sample`, all inputs). Probes the graph with other sizes and
// fits each dimension as an affine expression of the input symbols; dimensions
// that fit none stay unknown.
//
// InvalidArgument names the operator that gives a batch-specialised trace away:
// one that fails, or whose result stops following the batch, at sizes other
// than the traced one.
absl::Status InferShapes(absl::Span<const NamedTensor> sample,
                         const WeightStore& weights, Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_INFER_H_
