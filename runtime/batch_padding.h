#ifndef REFRACT_RUNTIME_BATCH_PADDING_H_
#define REFRACT_RUNTIME_BATCH_PADDING_H_

// Pads requests with fewer rows than a graph supports (Graph::min_batch; many
// exports refuse a batch of one), and removes the added rows from the results.
// Both happen on the CN, around the whole request: before CN-pre and after
// CN-post (or around the unsplit program), so that all parts and the HN see the
// same, larger batch:
//
//   PaddedBatch batch;
//   REFRACT_RETURN_IF_ERROR(padding.Pad(inputs, batch));
//   … OutputSpecs, Run with batch.inputs() …
//   padding.Trim(batch, outputs);
//
// For graphs with min_batch 1, and for large enough batches, both only check
// the shapes.
//
// An added row is a copy of the last one. It would change the results of the
// other rows where rows depend on each other (a mean over the batch), so a
// small batch is refused unless rows are known to be independent.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/graph/op_traits.h"
#include "runtime/compile/signature.h"

namespace refract::runtime {

// One request's inputs after padding. Owns the padded copies, in memory that
// stays from one request to the next.
class PaddedBatch {
 public:
  // In the graph's order. Valid until the next Pad(); inputs without padding
  // are the request's own views.
  absl::Span<const base::TensorView> inputs() const { return inputs_; }
  // The request's own number of rows; nullopt: no row was added.
  std::optional<int64_t> rows() const { return rows_; }

 private:
  friend class BatchPadding;
  std::vector<base::TensorView> inputs_;
  std::vector<base::AlignedBuffer> memory_;  // per padded input
  std::optional<int64_t> rows_;
};

// The smallest batch that can be served: Graph::min_batch, or 1 if smaller
// batches may be padded.
int64_t SmallestBatch(const models::Graph& graph);

// Immutable, thread-safe.
class BatchPadding {
 public:
  explicit BatchPadding(const models::Graph& graph);

  // Inputs with items repeat their last item; bag offsets get empty bags.
  // Invalid inputs pass unchanged: the program refuses them. InvalidArgument
  // names an input that depends on the batch in a way that cannot be padded, a
  // result that has the batch elsewhere than in its first dimension, or the batch
  // and the minimum if rows depend on each other.
  absl::Status Pad(absl::Span<const base::TensorView> inputs,
                   PaddedBatch& batch) const;

  // Drops the added rows of `outputs`, the graph's outputs in order. The views
  // keep their addresses.
  void Trim(const PaddedBatch& batch,
            absl::Span<base::TensorView> outputs) const;

 private:
  enum class Rule : uint8_t {
    kKeep,         // does not depend on the batch
    kRepeatLast,   // the entries of item after item; or batch + 1
                   // offsets, where a repeated end is an empty bag
    kAppendCount,  // one offset per item: the bag begins where the
                   // ids end
    kAppendZero,   // one length per item: the bag is empty
    kImpossible,
  };
  struct Input {
    std::string name;
    Rule rule = Rule::kKeep;
    size_t dim = 0;      // the dimension with the batch
    int64_t pieces = 1;  // in which this dimension repeats the batch
    int64_t entries = 1;  // that each item has in this dimension
    int64_t extra = 0;  // entries beyond the batch: 1 for batch + 1
    // kAppendCount: the input with the ids; of a matrix of offsets the inputs
    // with the ids of each row, whose last dimension counts these ids.
    std::vector<int> ids;
  };
  // `uses`: models::FindIdInputs() of the graph.
  static Input Classify(const models::Graph& graph,
                        const std::vector<models::IdInput>& uses,
                        models::ValueId id);
  // The number of ids that row `row` of the offsets divides into bags.
  static int64_t CountOfIds(absl::Span<const base::TensorView> inputs,
                            const Input& offsets, size_t row);

  const Signature signature_;
  const int64_t min_batch_;
  bool may_pad_ = true;
  std::string why_not_;  // unless may_pad_
  std::vector<Input> inputs_;
  std::vector<bool> output_has_rows_;
  std::string uncut_;  // a result that Trim() cannot cut; empty: none
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_BATCH_PADDING_H_
