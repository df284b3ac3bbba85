#ifndef REFRACT_MODELS_SHAPES_INTERPRETER_H_
#define REFRACT_MODELS_SHAPES_INTERPRETER_H_

// Runs a graph operator by operator and writes down every shape. For probes at
// import; requests are served by runtime/.

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"
#include "models/shapes/decoded_tables.h"
#include "runtime/torch/node_sequence.h"

namespace refract::models {

// Type, shape and number of a value in one run.
struct Observation {
  bool seen = false;
  base::TensorSpec spec;  // tensors
  int64_t number = 0;     // kSymInt
};

struct InterpreterRun {
  std::vector<Observation> values;    // by ValueId; partial after an error
  std::vector<base::Tensor> outputs;  // of the graph, copied
  NodeId failed = kNoNode;            // the node that an error is about
};

// For one thread at a time. `graph` and `weights` must outlive it.
class Interpreter {
 public:
  // NotFound names an operator that LibTorch lacks, or a weight.
  static absl::StatusOr<std::unique_ptr<const Interpreter>> Create(
      const Graph& graph, const WeightStore& weights);

  // `inputs` in the graph's order. Each tensor lives until its last reader has
  // run. Errors are the operator's own (runtime::aten::Caller), with
  // `run.failed` set; `run.values` has the values computed before.
  absl::Status Run(absl::Span<const base::TensorView> inputs,
                   InterpreterRun& run) const;

 private:
  Interpreter() = default;

  const Graph* graph_ = nullptr;
  std::vector<WeightView> weights_;  // by ValueId; empty for other values
  DecodedTables tables_;
  runtime::aten::NodeSequence nodes_;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_INTERPRETER_H_
