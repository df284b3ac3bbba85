#ifndef REFRACT_RUNTIME_CUDA_PLAN_FREE_SIZES_H_
#define REFRACT_RUNTIME_CUDA_PLAN_FREE_SIZES_H_

// Sizes of a part's inputs that are neither constant nor the batch's, such as
// the steps of a sequence. A program for a GPU is made for one value of each.
// Where a part mixes the rows of a request, the batch is one of these sizes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"
#include "runtime/program.h"

namespace refract::runtime::cuda_plan {

// One value per size, in the order of FreeSizes::all().
using SizeValues = std::vector<int64_t>;

// A size that requests choose.
struct FreeSize {
  std::string symbol;
  // Range of the size in requests, both ends included.
  int64_t min = 0;
  int64_t max = 0;
  // Whether the model declares it; else `max` is the limit given to Find().
  bool declared = false;
  // Where to read it in a request: dimension `dim` of input `input`, or the
  // input itself if `dim` is -1.
  int input = 0;
  int dim = -1;
  models::SymExpr expr;
  std::string input_name;
};

// Immutable, thread-safe.
class FreeSizes {
 public:
  // `limit` ≥ 1: the largest value of a size that the model does not declare.
  // `skipped`: inputs whose sizes are handled elsewhere (empty: none).
  // `batch_limit`: the largest batch, if the batch is one of the sizes.
  // Unimplemented for a size that no input has by itself.
  static absl::StatusOr<FreeSizes> Find(
      const models::Graph& graph, const Part& part, int64_t limit,
      const std::vector<bool>& skipped = {},
      std::optional<int64_t> batch_limit = std::nullopt);

  const std::vector<FreeSize>& all() const { return all_; }
  bool empty() const { return all_.empty(); }
  // Whether the batch is one of the sizes: a program then has no rows, and
  // takes a request as a whole.
  bool has_batch() const { return has_batch_; }
  SizeValues Largest() const;
  SizeValues Smallest() const;  // at least 1 each
  // The sizes of a request, whose inputs are known to fit each other
  // (Program::OutputSpecs). InvalidArgument names input, size and limit.
  absl::StatusOr<SizeValues> Of(
      absl::Span<const base::TensorView> inputs) const;
  models::SymbolBindings Bind(const SizeValues& values) const;
  // "T 12, N 40".
  std::string ToString(const SizeValues& values) const;

 private:
  std::vector<FreeSize> all_;
  bool has_batch_ = false;
};

}  // namespace refract::runtime::cuda_plan

#endif  // REFRACT_RUNTIME_CUDA_PLAN_FREE_SIZES_H_
