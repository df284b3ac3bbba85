#ifndef REFRACT_PARTITIONER_WIRE_CHOICE_H_
#define REFRACT_PARTITIONER_WIRE_CHOICE_H_

// Which tensor crosses in which form, when scores may be so far off and no
// further. A policy: knows errors and bytes, no models.

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "models/repository/wire_form.h"

namespace refract::partitioner {

// A tensor that crosses: its size as it is, and in the forms that it can have.
struct WireCandidate {
  double plain_bytes = 0;
  struct Option {
    models::WireType type = models::WireType::kAsIs;
    double bytes = 0;
  };
  std::vector<Option>
      options;  // in any order; those that save nothing count not
};

// The largest error of any output, when the tensors cross in these types.
using MeasureError = std::function<absl::StatusOr<double>(
    const std::vector<models::WireType>& types)>;

// One type per candidate, such that the error of all together is at most
// `bound`. If the smallest forms of all keep it, those; else one tensor after
// the other, the one with the most bytes to save first, gets its smallest form
// that keeps the bound together with all that were given before. Greedy: no
// tensor can have a smaller form beside the others, but another choice may save
// more. Measures at most one time per option and once more. Errors are
// `measure`'s.
absl::StatusOr<std::vector<models::WireType>> ChooseWireTypes(
    const std::vector<WireCandidate>& candidates, double bound,
    const MeasureError& measure);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_CHOICE_H_
