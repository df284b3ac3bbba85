#ifndef REFRACT_MODELS_SHAPES_PROBE_H_
#define REFRACT_MODELS_SHAPES_PROBE_H_

// Requests of other sizes, made of an example, and runs with them.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/shapes/infer.h"
#include "models/shapes/interpreter.h"

namespace refract::models {

// Sizes of every input, in the graph's order.
using InputDims = std::vector<base::Dims>;

// One dimension of one input.
struct Place {
  size_t input = 0;
  size_t dim = 0;
};

// An input whose contents must agree with the last size of another: bag offsets
// (a vector, or one row for each row of ids), or lengths of bags.
struct RaggedInput {
  size_t ids = 0;  // index of the input that holds the bags
  // A matrix of offsets that has a list of ids for each row: their indices.
  std::vector<size_t> lists;
  bool is_offsets = false;
  bool include_last_offset = false;  // offsets: the last one ends the last bag
  friend bool operator==(const RaggedInput&, const RaggedInput&) = default;
};

// Contents that a size must not depend on, unless data decide it.
enum class ProbeContents : uint8_t {
  kSample,
  kOpposite,  // integers are 0, floats and flags have the other sign
  kEqual,     // the integers of an input are the sample's first
};

// Immutable; views the sample, which must outlive it.
class ProbeMaker {
 public:
  // InvalidArgument names an input that is missing, unknown, given twice, or
  // of another dtype than the graph says.
  static absl::StatusOr<ProbeMaker> Create(
      const Graph& graph, absl::Span<const NamedTensor> sample);

  // In the graph's order.
  const std::vector<base::TensorView>& sample() const { return sample_; }
  InputDims sample_dims() const;
  const std::optional<RaggedInput>& ragged(size_t input) const {
    return ragged_[input];
  }

  // Contents: the sample's, repeated or cut along each dimension, so that ids
  // stay within their tables; the first row is the sample's row `shift`.
  // Offsets and lengths spread the ids evenly. Numbers of rows stay below the
  // rows.
  absl::StatusOr<std::vector<base::Tensor>> Make(
      const InputDims& dims, int64_t shift,
      ProbeContents contents = ProbeContents::kSample) const;

 private:
  void FindLimits(const Graph& graph, const std::vector<bool>& is_id);

  std::vector<base::TensorView> sample_;
  std::vector<std::optional<RaggedInput>> ragged_;
  // For each input of row numbers: the dimensions that are larger than each of
  // its row numbers. A dimension of the list is the table's row count. Shapes
  // tell which dimension, but only after the probes.
  std::vector<std::vector<Place>> limits_;
};

// A request of zeros, which are ids of every table, for a graph that has
// shapes. InvalidArgument: a size of an input is unknown at `sizes`.
absl::StatusOr<std::vector<base::Tensor>> ZeroInputs(
    const Graph& graph, const SymbolBindings& sizes);

// Runs a graph on probes. `interpreter` and `maker` must outlive it.
class Prober {
 public:
  Prober(const Interpreter& interpreter, const ProbeMaker& maker)
      : interpreter_(interpreter), maker_(maker) {}
  const ProbeMaker& maker() const { return maker_; }

  // `shift`: the row of the sample to begin with.
  absl::Status Run(const InputDims& dims, InterpreterRun& run,
                   int64_t shift = 0,
                   ProbeContents contents = ProbeContents::kSample) const;

 private:
  const Interpreter& interpreter_;
  const ProbeMaker& maker_;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_PROBE_H_
