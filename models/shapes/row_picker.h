#ifndef REFRACT_MODELS_SHAPES_ROW_PICKER_H_
#define REFRACT_MODELS_SHAPES_ROW_PICKER_H_

// Requests made of chosen rows of a sample: of its items and of their bags.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/graph/op_traits.h"
#include "models/shapes/probe.h"

namespace refract::models {

// Immutable. Views the tensors of the sample, which must outlive it.
class RowPicker {
 public:
  // `ragged`, if not empty, replaces what `maker` says of each input.
  // Unimplemented names the input whose rows cannot be separated,
  // InvalidArgument inputs with different numbers of rows.
  static absl::StatusOr<RowPicker> Create(
      const Graph& graph, const ProbeMaker& maker,
      std::vector<std::optional<RaggedInput>> ragged = {});

  // Of the sample.
  int64_t rows() const { return rows_; }

  // InvalidArgument unless the sample's offsets rise and stay within the number
  // of ids. Pick() cuts bags of other offsets.
  absl::Status CheckBags(const Graph& graph) const;

  // Whether each matrix of ids is still one, that is, the bags of `rows` have
  // as many ids in each of its rows.
  bool CanPick(const std::vector<int64_t>& rows) const;

  // A request of `rows` in this order; rows may repeat. CanPick(rows).
  absl::StatusOr<std::vector<base::Tensor>> Pick(
      const std::vector<int64_t>& rows) const;

  // "At least 2" of an exporter means rows. Sizes that count the entries of
  // keyed bags may be as small as in `inputs`, a request that ran correctly.
  void LowerLimits(const std::vector<base::Tensor>& inputs, Graph& graph) const;

 private:
  // Relation of an input's leading size to the batch.
  enum class Role : uint8_t {
    kFixed,    // nothing
    kRows,     // entries of row after row
    kOffsets,  // begin of each row's bag, and perhaps the end of the last
    kBags,     // the ids of all rows' bags, one after the other
    // Lengths of all rows' bags of several features, one feature after the
    // other (TorchRec's KeyedJaggedTensor).
    kKeyLengths,
  };
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  // The offsets or lengths of an input's bags; of a matrix of offsets the row
  // that divides a list.
  struct Bags {
    size_t offsets = 0;
    size_t row = 0;
  };

  RowPicker(std::vector<base::TensorView> sample,
            std::vector<std::optional<RaggedInput>> ragged);

  // The steps of Create(), in this order: each reads the roles that the steps
  // before it have found.
  absl::Status FindRows(const Graph& graph, const std::vector<IdInput>& uses,
                        std::vector<size_t>& several);
  absl::Status CountRows(const Value& input, int64_t size, int64_t entries);
  absl::Status FindBags(const Graph& graph);
  void FindBagsOfSharedOffsets(const Graph& graph,
                               const std::vector<IdInput>& uses);
  absl::Status CheckRowsAreNoContents(const Graph& graph) const;
  void FindBesideBags(const Graph& graph);
  void FindKeyed(const Graph& graph);
  absl::Status CheckMatrices(const Graph& graph) const;
  absl::Status CheckBagsAreEqual(const Graph& graph) const;

  bool IsMatrixOfOffsets(size_t input) const;
  // Whether the bags lie in a matrix with a row for each row of the offsets.
  bool HasRowOfEach(const Bags& bags) const;
  size_t IdsOf(const Bags& bags) const;
  int64_t TotalOf(const Bags& bags) const;

  // Places of `rows` in an input with entries of row after row, in input
  // `input` with lengths of several features, and in bags.
  static std::vector<Range> RowRanges(const std::vector<int64_t>& rows,
                                      int64_t entries);
  std::vector<Range> KeyedRows(size_t input,
                               const std::vector<int64_t>& rows) const;
  std::vector<Range> BagRanges(const Bags& of,
                               const std::vector<int64_t>& rows) const;
  static int64_t LengthOf(const std::vector<Range>& ranges);

  absl::StatusOr<base::Tensor> PickOffsets(
      size_t input, const std::vector<int64_t>& rows) const;
  absl::StatusOr<base::Tensor> PickBags(size_t input,
                                        const std::vector<int64_t>& rows) const;
  // Entries of dimension 0. `shape`: the result's, if it is not a list of them.
  static absl::StatusOr<base::Tensor> PickRanges(
      const base::TensorView& from, const std::vector<Range>& ranges,
      const base::Dims& shape = {});

  // By input:
  std::vector<base::TensorView> sample_;
  std::vector<std::optional<RaggedInput>> ragged_;
  std::vector<Role> roles_;
  std::vector<int64_t> entries_;  // that a row of the input has; for kRows
  std::vector<std::optional<Bags>> bags_of_;

  int64_t rows_ = 0;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_ROW_PICKER_H_
