#ifndef REFRACT_TOOLS_IMPORT_GOLDEN_H_
#define REFRACT_TOOLS_IMPORT_GOLDEN_H_

// Golden requests of a model that is imported: its sample, whole and cut to
// fewer rows, with the answers of PyTorch.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/import.h"
#include "models/repository/weights.h"
#include "models/table_ids.h"
#include "runtime/split_run.h"

namespace refract::tools {

// Inputs, or outputs, of a recorded request, at most: a node keeps them in
// memory.
inline constexpr size_t kMostGoldenBytes = size_t{512} << 10;

struct GoldenOptions {
  // False: PyTorch is not started, and only the requests of `expected` are
  // kept.
  bool record = true;
  // Files of models::ReadExpected().
  std::vector<std::string> expected;
  // As in ImportRequest; PyTorch reads them.
  std::string model_file;
  std::string tables_dir;
  std::vector<std::string> op_libraries;
  // Ids of the tables whose rows requests name by ids.
  const models::TableIds* ids = nullptr;
  // A folder for files of this import, which the caller removes once the
  // version is added.
  std::string scratch;
};

// Writes golden requests to a file that becomes part of the version
// (models::kGoldenFile), and compares their answers with those of `runner`,
// which runs the whole model. FailedPrecondition names the source of the
// answer, output, position and values. If PyTorch is missing or refuses the
// sample, a note says so. `sample`: in the graph's order; empty: nothing is
// recorded.
absl::Status AddGolden(const GoldenOptions& options,
                       absl::Span<const base::Tensor> sample,
                       runtime::RequestRunner& runner,
                       models::ImportedModel& model);

// Rows of `inputs`; nullopt: no input has the batch as a dimension.
std::optional<int64_t> RowsOf(const models::Graph& graph,
                              absl::Span<const base::Tensor> inputs);

// A note for each number in the graph that arithmetic reads and that equals
// `rows`, the rows of the sample: a trace may have computed the number from the
// size of the batch, and the answers for other batches would be wrong. No notes
// for fewer than 3 rows, because 1 and 2 are in every model.
std::vector<std::string> ConstantsLikeRows(const models::Graph& graph,
                                           const models::WeightStore& weights,
                                           int64_t rows);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_IMPORT_GOLDEN_H_
