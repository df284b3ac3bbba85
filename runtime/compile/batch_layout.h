#ifndef REFRACT_RUNTIME_COMPILE_BATCH_LAYOUT_H_
#define REFRACT_RUNTIME_COMPILE_BATCH_LAYOUT_H_

// How the rows (items to score) of requests lie in a part's inputs and outputs.
// By this layout several requests are executed as one batch, and a long request
// in several steps.
// An input has one or several entries per row, row after row, or a bag of
// entries per row with offsets beside it (bag_inputs.h), or is the same for all
// rows.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "runtime/compile/bag_inputs.h"
#include "runtime/program.h"

namespace refract::runtime {

// Reusable memory for gathered inputs. Not thread-safe: one per instance.
class RowBuffers {
 public:
  // Scratch for the results of Gather() and Slice().
  std::vector<base::TensorView>& views() { return views_; }
  // At least `bytes`, aligned to base::kTensorAlignBytes; valid until the next
  // call for the same input.
  std::byte* Get(size_t input, size_t bytes);

 private:
  std::vector<base::TensorView> views_;
  std::vector<base::AlignedBuffer> buffers_;
};

// Immutable except for Withdraw(), thread-safe.
class BatchLayout {
 public:
  // `rows`: of the part (models::FindHnRowDependence).
  BatchLayout(const models::Graph& graph, const Part& part,
              const models::RowDependence& rows);

  // The reason why requests are executed alone and whole: some operator mixes
  // rows, or an input or output does not have one entry per row. Empty: rows
  // are independent. The nodes take this answer from no other place.
  const std::string& why_not() const { return why_not_; }
  // Call when verification contradicted the layout (VerifyRows()).
  void Withdraw(std::string why) { why_not_ = std::move(why); }

  // An unknown dimension 0 (wire::Codec::Peek).
  static constexpr int64_t kUnknownRows = -1;

  // Rows of inputs that have the layout, by their sizes alone; nullopt for
  // other inputs, and if no number of rows is known yet. Valid, like all
  // methods below, only if why_not() is empty.
  std::optional<int64_t> Rows(absl::Span<const base::TensorView> inputs) const;

  // Requests with equal keys can be executed together: their inputs differ only
  // in rows, unless Gather() finds otherwise. Empty: cannot be merged.
  // Returned in the memory of `key`; its contents are lost.
  std::string MergeKey(absl::Span<const base::TensorView> inputs,
                       std::string key = {}) const;

  // Whether an input does not depend on the rows: it is equal in requests with
  // equal keys.
  bool IsSameForAll(size_t input) const {
    return inputs_[input] == Rule::kSame;
  }

  // Stacks the inputs of requests with equal keys row by row in `buffers`,
  // valid until their next use; inputs without rows are a copy of the first
  // request's. InvalidArgument if those of another request differ, and if
  // offsets do not describe consecutive bags from the first entry on (to the
  // last entry, if they declare it): no request may reach another's entries.
  // Inputs are checked in the copy, which no peer can change.
  absl::StatusOr<absl::Span<const base::TensorView>> Gather(
      absl::Span<const absl::Span<const base::TensorView>> requests,
      RowBuffers& buffers) const;
  // `count` rows from `first` on. Row counts and offsets are written to
  // `buffers`. Errors as Gather(), but entries after the last bag are left out.
  // No peer may still write to the offsets.
  absl::StatusOr<absl::Span<const base::TensorView>> Slice(
      absl::Span<const base::TensorView> inputs, int64_t first, int64_t count,
      RowBuffers& buffers) const;

 private:
  enum class Rule : uint8_t {
    kRows,     // entries of row after row in dimension 0
    kCount,    // the number of rows, as a size
    kSame,     // does not depend on the rows
    kOffsets,  // of bags: one per row, and perhaps one more
    kEntries,  // of bags
  };
  absl::Status GatherBags(
      const BagInputs& bag,
      absl::Span<const absl::Span<const base::TensorView>> requests,
      RowBuffers& buffers, std::vector<base::TensorView>& gathered) const;
  absl::Status SliceBags(const BagInputs& bag, int64_t first, int64_t count,
                         RowBuffers& buffers,
                         std::vector<base::TensorView>& slice) const;

  std::vector<Rule> inputs_;
  std::vector<int64_t> entries_;  // that a row of the input has; for kRows
  std::vector<BagInputs> bags_;
  std::string why_not_;
};

// `rows` rows of `output`, which has one entry per row, from row `first` on.
struct RowRange {
  size_t offset = 0;  // bytes
  size_t bytes = 0;
};
RowRange RangeOfRows(const base::TensorView& output, int64_t first,
                     int64_t rows);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_BATCH_LAYOUT_H_
