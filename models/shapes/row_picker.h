#ifndef REFRACT_MODELS_SHAPES_ROW_PICKER_H_
#define REFRACT_MODELS_SHAPES_ROW_PICKER_H_

// Requests made of chosen rows of a sample: of its items and of their bags.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/shapes/probe.h"

namespace refract::models {

// Immutable.
class RowPicker {
 public:
  virtual ~RowPicker() = default;

  // `maker` must outlive the picker. `ragged`, if not empty, replaces what
  // `maker` says of each input. Unimplemented names the input whose rows cannot
  // be separated, InvalidArgument inputs with different numbers of rows.
  static absl::StatusOr<std::unique_ptr<const RowPicker>> Create(
      const Graph& graph, const ProbeMaker& maker,
      std::vector<std::optional<RaggedInput>> ragged = {});

  // Of the sample.
  int64_t rows() const { return rows_; }

  // InvalidArgument unless the sample's offsets rise and stay within the number
  // of ids. Pick() cuts bags of other offsets.
  virtual absl::Status CheckBags(const Graph& graph) const = 0;

  // Whether each matrix of ids is still one, that is, the bags of `rows` have
  // as many ids in each of its rows.
  virtual bool CanPick(const std::vector<int64_t>& rows) const = 0;

  // A request of `rows` in this order; rows may repeat. CanPick(rows).
  virtual absl::StatusOr<std::vector<base::Tensor>> Pick(
      const std::vector<int64_t>& rows) const = 0;

  // "At least 2" of an exporter means rows. Sizes that count the entries of
  // keyed bags may be as small as in `inputs`, a request that ran correctly.
  virtual void LowerLimits(const std::vector<base::Tensor>& inputs,
                           Graph& graph) const = 0;

 protected:
  int64_t rows_ = 0;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_ROW_PICKER_H_
