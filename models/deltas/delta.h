#ifndef REFRACT_MODELS_DELTAS_DELTA_H_
#define REFRACT_MODELS_DELTAS_DELTA_H_

// Deltas: changed rows of a version's embedding tables, as files
// (docs/design/deltas.md has the format). A delta is a manifest and a file of
// rows:
//
//   delta-<sequence>.json   describes the delta; written last
//   <any name>.safetensors  "T/ids", "T/rows" and "T/deleted" of each table T

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "models/tables/id_index.h"
#include "models/tables/row_format.h"

namespace refract::models {

// A state of a version's tables, named by its last delta. Sequence 0 and an
// empty id: as imported.
struct DeltaState {
  int64_t sequence = 0;
  std::string id;

  bool operator==(const DeltaState&) const = default;
};

struct DeltaManifest {
  std::string model;
  int64_t version = 0;
  DeltaState parent;
  // State after the delta; its sequence is greater than the parent's.
  DeltaState state;
  // End of the delta's data in milliseconds since 1970; 0: unknown.
  int64_t created_unix_ms = 0;

  std::string rows_file;  // a name in the manifest's folder
  uint64_t rows_bytes = 0;
  std::string rows_sha256;  // 64 lower-case hexadecimal digits

  struct Counts {
    int64_t upserted = 0;
    int64_t deleted = 0;
  };
  absl::btree_map<std::string, Counts> tables;
};

// Longest manifest, 16 MiB: thousands of tables.
inline constexpr size_t kMaxManifestBytes = size_t{16} << 20;
inline constexpr size_t kMaxDeltaIdBytes = 128;

// InvalidArgument names the key; Unimplemented for a dense part and for schemas
// other than 1.
absl::StatusOr<DeltaManifest> ParseDeltaManifest(absl::string_view json);

// The sequence in the name of a manifest; nullopt for other names.
std::optional<int64_t> SequenceOfName(absl::string_view name);
// "delta-00000000000000000007.json"
std::string NameOfSequence(int64_t sequence);

// A table as deltas see it.
struct DeltaTable {
  int64_t rows = 0;
  int64_t dim = 0;
  // Rows have `dim` elements of this type, or a row format.
  base::DType dtype = base::DType::kFloat32;
  std::optional<RowLayout> layout;
  // Rows of ids; null: ids are row numbers.
  std::shared_ptr<const IdIndex> index;
  // Ids whose rows this node has; the other rows belong to other nodes.
  // nullopt: all rows are here, or ids are row numbers.
  std::optional<OwnIds> own_ids;
  // Whether deltas may name ids that are not in `index`.
  bool takes_new_ids = false;

  // Whether the id belongs to this node and had no row at import.
  bool IsNewId(int64_t id) const {
    return index != nullptr && index->Find(id) == IdIndex::kNoRow &&
           (!own_ids || own_ids->Has(id));
  }
  // Why the table's rows cannot change; empty: they can.
  std::string why_not;
};

// The changes of one table. Spans point into the file's bytes.
struct TableDelta {
  std::string table;
  // Ascending, each id in only one of the two lists. Each id has a row in the
  // table, unless the table takes new ids or the row is at another shard.
  std::vector<int64_t> ids;
  std::vector<int64_t> deleted;
  // The new row of each id: `dim` floats each, or, if `encoded`, as the table
  // keeps its rows.
  const std::byte* rows = nullptr;
  size_t row_bytes = 0;
  bool encoded = false;
};

// The changes in the file of rows, whose `bytes` outlive the result. Errors
// name table and position:
//   DataLoss         size or sha256 are not the manifest's
//   NotFound         a table that the version does not have
//   InvalidArgument  anything else that is wrong, a table that cannot change
absl::StatusOr<std::vector<TableDelta>> ParseDeltaRows(
    absl::Span<const std::byte> bytes, const DeltaManifest& manifest,
    const absl::btree_map<std::string, DeltaTable>& tables);

// As above without a check of size and sha256: for bytes made by a fuzzer.
absl::StatusOr<std::vector<TableDelta>> ParseUnverifiedDeltaRows(
    absl::Span<const std::byte> bytes, const DeltaManifest& manifest,
    const absl::btree_map<std::string, DeltaTable>& tables);

}  // namespace refract::models

#endif  // REFRACT_MODELS_DELTAS_DELTA_H_
