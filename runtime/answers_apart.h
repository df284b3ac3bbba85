#ifndef REFRACT_RUNTIME_ANSWERS_APART_H_
#define REFRACT_RUNTIME_ANSWERS_APART_H_

// Distance of two answers to the same rows, computed among other rows (with
// sums in another order), on another device, or by another engine.

#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"

namespace refract::runtime {

struct Apart {
  // Infinity if a NaN, an infinity, an integer or a size differs.
  double largest = 0;
  // Expected difference of sums in another order: a share of the largest value
  // (at least 1), far above rounding, far below the effect of mixing rows.
  double allowed = 0;

  bool ok() const { return largest <= allowed; }
};

// Compares two tensors of one type.
Apart Compare(const base::TensorView& a, const base::TensorView& b);

// Allowed difference from a recorded answer: 10⁻⁵ and `share` of the largest
// value of the output.
struct Tolerance {
  double share = 1e-4;
  // Integers and booleans must agree. False: they are not compared, because a
  // near tie of an argmax may go either way.
  bool exact_integers = true;
};

// The tolerance for `config` and `plan` (null: the model is not split). The
// share is 0.05 if weights, arithmetic or crossing values have fewer bits than
// float32; `share`, if given (golden_tolerance of config.pbtxt), replaces
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
