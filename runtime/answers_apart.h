#ifndef REFRACT_RUNTIME_ANSWERS_APART_H_
#define REFRACT_RUNTIME_ANSWERS_APART_H_

// How far two answers to the same rows are apart: computed among other rows, so
// with sums in another order, on another device, or by another engine.

#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"

namespace refract::runtime {

struct Apart {
  // Infinity where a NaN, an infinity or an integer differs, or the sizes do.
  double largest = 0;
  // What is expected of sums in another order: a share of the largest value (at
  // least 1), far above what rounding does, far below what mixing rows does.
  double allowed = 0;

  bool ok() const { return largest <= allowed; }
};

// Of two tensors of one type.
Apart Compare(const base::TensorView& a, const base::TensorView& b);

// How far an answer may be from a recorded one: 10⁻⁵ and `share` of the largest
// value of the output.
struct Tolerance {
  double share = 1e-4;
  // Integers and booleans agree. False: they are not compared, as a near tie of
  // an argmax may go either way.
  bool exact_integers = true;
};

// Of `config` and `plan` (null: the model is not split). A share of 0.05 where
// weights, arithmetic or what crosses have fewer bits than float32;
// `share`, where given (golden_tolerance of config.pbtxt), takes the place of
// either share.
Tolerance ToleranceOf(const models::ModelConfig& config,
                      const models::SplitPlan* plan,
                      std::optional<double> share);

// OK, or FailedPrecondition with output, position and both values:
// "output 'score' at [3, 0] is 0.25, the recorded answer is 0.75 (0.0001 apart
// is allowed)".
// `recorded`: an output without dtype was not recorded. Lengths as
// graph.outputs.
absl::Status CompareWithRecorded(const models::Graph& graph,
                                 absl::Span<const base::TensorView> answers,
                                 absl::Span<const base::TensorView> recorded,
                                 const Tolerance& tolerance);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_ANSWERS_APART_H_
