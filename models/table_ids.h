#ifndef REFRACT_MODELS_TABLE_IDS_H_
#define REFRACT_MODELS_TABLE_IDS_H_

// Ids of table rows: how import reads them from files and attaches them to a
// model, and how requests change from row numbers to ids and back. PyTorch, and
// every tool that runs a model offline, takes row numbers; a CPU node takes ids
// (models/tables/id_index.h).

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/import.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/repository.h"
#include "models/repository/weights.h"

namespace refract::models {

// By table: where its ids lie, int64 [rows].
using TableIds = std::map<std::string, WeightEntry>;

// The ids in the tensor TABLE.ids of a file, which live as long as the file is
// mapped. `rows`: how many there must be; -1: any number. InvalidArgument: the
// tensor is not int64[rows] at a multiple of 8 bytes.
absl::StatusOr<absl::Span<const int64_t>> IdsIn(const SafetensorsFile& file,
                                                const SafetensorsEntry& tensor,
                                                int64_t rows = -1);

// The tensors TABLE.ids of `options.tables_dir`, for tables of `model`. After
// BindTables(). InvalidArgument names file and tensor: another dtype or number
// than one int64 per row, an id that is there twice, two files with the same.
absl::StatusOr<TableIds> ReadTableIds(const ImportOptions& options,
                                      const ImportedModel& model);

// Adds the ids to the weights of `model`, whose tables become rows of a format:
// only look-ups of a CPU node read such rows. InvalidArgument: a table that is
// not float32 [rows, dim] with its rows one after the other in a file.
absl::Status AttachIds(const TableIds& ids, ImportedModel& model);

// Changes row numbers in `inputs`, a request in the graph's order, into ids
// where look-ups in tables with ids read them. InvalidArgument: a row outside
// its table; an input that is looked up in tables with different ids; a table
// that no input reaches without arithmetic.
absl::Status RowNumbersToIds(const Graph& graph, const TableIds& ids,
                             absl::Span<base::Tensor> inputs);
// The same with the ids of the version; requests of a model without ids stay as
// they are.
absl::Status RowNumbersToIds(const LoadedModel& model,
                             absl::Span<base::Tensor> inputs);
// Changes ids in `inputs`, a request as clients send it, into row numbers. An
// id without a row becomes -1 where the table's policy replaces such ids.
// InvalidArgument: it does not, names input, id and position; or as above.
absl::Status IdsToRowNumbers(const LoadedModel& model,
                             absl::Span<base::Tensor> inputs);

}  // namespace refract::models

#endif  // REFRACT_MODELS_TABLE_IDS_H_
