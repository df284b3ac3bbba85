#ifndef REFRACT_PARTITIONER_WIRE_CHOICE_H_
#define REFRACT_PARTITIONER_WIRE_CHOICE_H_

// Chooses the wire form of each tensor under a bound on the error of the
// outputs. A policy: knows errors and bytes, no models.

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "models/repository/wire_form.h"

namespace refract::partitioner {

// A tensor that crosses: its size without a form and in each form that it can
// have.
struct WireCandidate {
  double plain_bytes = 0;
  struct Option {
    models::WireType type = models::WireType::kAsIs;
    double bytes = 0;
  };
  std::vector<Option>
      options;  // in any order; options that save nothing are ignored
};

// The largest error of any output, when the tensors cross in these types.
using MeasureError = std::function<absl::StatusOr<double>(
    const std::vector<models::WireType>& types)>;

// One type per candidate, such that the error of all together is at most
// `bound`. First all tensors are tried in their smallest forms. If these exceed
// the bound, the tensors choose in turn, beginning with the tensor that can
// save the most bytes: each takes the smallest form that keeps the bound
// together with the forms chosen before. The choice is greedy: no tensor can
// have a smaller form beside the others, but another combination may save more.
// Measures at most once per option and once more. Errors are those of
// `measure`.
absl::StatusOr<std::vector<models::WireType>> ChooseWireTypes(
    const std::vector<WireCandidate>& candidates, double bound,
    const MeasureError& measure);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_CHOICE_H_
