#ifndef REFRACT_RUNTIME_STABLE_INPUTS_H_
#define REFRACT_RUNTIME_STABLE_INPUTS_H_

// Safe use of inputs in memory that others may still write, such as a slot lent
// to a peer. Ids, offsets and sizes are read more than once, first for checks
// and then for use, so they must be copied. Numbers that are only computed with
// need no copy: a peer that changes them gets a wrong result and nothing else.

#include <vector>

#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "runtime/program.h"

namespace refract::runtime {

// Whether a result within `part` has a size that its inputs' shapes do not
// determine (nonzero, masked_select, …; also if the importer could not find
// out). Such operators read their input twice, to count and to write, so none
// of their inputs may change.
bool SizesDependOnData(const models::Graph& graph, const Part& part);

// Views of inputs that are safe to run on, and the copies behind them.
// Move-only. Reusable for one request after the other: its memory grows to
// powers of two and is kept.
class StableInputs {
 public:
  StableInputs() = default;  // no inputs
  StableInputs(absl::Span<const base::TensorView> inputs, bool everything) {
    Hold(inputs, everything);
  }

  // Copies inputs that are not floating point, or all inputs. The other
  // `inputs` must outlive the views, which are valid until the next call.
  absl::Span<const base::TensorView> Hold(
      absl::Span<const base::TensorView> inputs, bool everything);

  absl::Span<const base::TensorView> views() const { return views_; }

 private:
  std::vector<base::TensorView> views_;
  base::AlignedBuffer copies_;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_STABLE_INPUTS_H_
