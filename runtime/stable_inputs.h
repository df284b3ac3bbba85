#ifndef REFRACT_RUNTIME_STABLE_INPUTS_H_
#define REFRACT_RUNTIME_STABLE_INPUTS_H_

// Runs on inputs that lie in memory which somebody else may still write, such
// as a slot lent to a peer. Ids, offsets and sizes are looked at more than
// once, to check them and then to use them, so they must be copies. Numbers
// that are only computed with stay where they are: changing them gives the one
// who does it a wrong result and nothing else.

#include <vector>

#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "runtime/program.h"

namespace refract::runtime {

// Whether some result within `part` has a size that its inputs' shapes do not
// tell (nonzero, masked_select, …; also where the importer could not tell).
// Such operators look at their input twice, to count and to write, so no input
// of theirs may change at all.
bool SizesDependOnData(const models::Graph& graph, const Part& part);

// Views of inputs that are safe to run on, and the copies behind them.
// Move-only. May be used for one request after the other: its memory, which
// grows to powers of two, stays.
class StableInputs {
 public:
  StableInputs() = default;  // of none
  StableInputs(absl::Span<const base::TensorView> inputs, bool everything) {
    Hold(inputs, everything);
  }

  // Copies what is not floating point, or everything. The rest of `inputs` must
  // outlive the views, which are valid until the next call.
  absl::Span<const base::TensorView> Hold(
      absl::Span<const base::TensorView> inputs, bool everything);

  absl::Span<const base::TensorView> views() const { return views_; }

 private:
  std::vector<base::TensorView> views_;
  base::AlignedBuffer copies_;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_STABLE_INPUTS_H_
