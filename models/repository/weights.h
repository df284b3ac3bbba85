#ifndef REFRACT_MODELS_REPOSITORY_WEIGHTS_H_
#define REFRACT_MODELS_REPOSITORY_WEIGHTS_H_

// Weights stay in their files: a WeightTable gives file and bytes of each name;
// a WeightStore maps the files.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/dtype.h"
#include "base/process/mapped_file.h"
#include "models/tables/row_format.h"

namespace refract::models {

struct WeightEntry {
  std::string name;  // parameter name, e.g. "tables.0.weight"
  // Relative to the version's folder.
  std::string file;
  uint64_t offset = 0;  // of the storage's first byte in `file`
  uint64_t bytes = 0;   // of the storage
  base::DType dtype = base::DType::kUnknown;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // elements, as PyTorch counts
  int64_t storage_offset = 0;    // elements
  // For a table whose file has rows in a format: sizes[0] rows of rows->stride
  // bytes. dtype (float32), sizes, strides describe the decoded table.
  std::optional<RowLayout> rows = std::nullopt;
};

struct WeightFile {
  std::string file;  // relative to the version's folder
  uint64_t bytes = 0;
  base::Digest digest;  // of the whole file, computed at import
};

struct WeightTable {
  std::vector<WeightEntry> entries;
  std::vector<WeightFile> files;
};

// A mapped weight. Strided, unlike base::TensorView: exports keep transposed
// parameters and stride-0 stand-ins.
struct WeightView {
  base::DType dtype = base::DType::kUnknown;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  const std::byte* data = nullptr;  // element [0, …, 0]
  // For a table in a row format: `data` is its first row, and dtype, sizes and
  // strides describe the decoded table.
  std::optional<RowLayout> rows = std::nullopt;

  bool is_contiguous() const;
  // Bytes of a contiguous weight, or of all rows.
  size_t bytes() const;
};

// Thread-safe once opened. Views live as long as the store.
class WeightStore {
 public:
  // Maps every file of `table` under `folder`. Errors name the file or weight:
  // NotFound (file absent), InvalidArgument (size differs from what import saw,
  // an entry reaches outside its file, strides reach outside the storage).
  static absl::StatusOr<std::shared_ptr<const WeightStore>> Open(
      absl::string_view folder, const WeightTable& table);

  // Elements of a weight. NotFound names the weight; Unimplemented: a table in
  // a row format, which only look-ups on a CPU read.
  absl::StatusOr<WeightView> Get(absl::string_view name) const;
  // As Get(), or a table in a row format: callers must check `rows`.
  absl::StatusOr<WeightView> GetAsStored(absl::string_view name) const;
  const WeightTable& table() const { return table_; }

  // A store with the same weights, of which those in `data` are read at other
  // addresses: name → first element, laid out as in the file. `rows`: number of
  // rows that lie there, for weights that have fewer rows there than in the
  // file. `memory` owns what `data` points to and lives as long as the store.
  // NotFound names a weight that the store does not have.
  absl::StatusOr<std::shared_ptr<const WeightStore>> WithData(
      const absl::flat_hash_map<std::string, const std::byte*>& data,
      const absl::flat_hash_map<std::string, int64_t>& rows,
      std::shared_ptr<const void> memory) const;
  // Whether `view`, of this store, lies in a mapped file, whose pages may be
  // dropped.
  bool IsMapped(const WeightView& view) const;

 private:
  WeightStore() = default;
  WeightTable table_;
  // Mapped files; null pointers that own the memory of WithData().
  std::vector<std::shared_ptr<const base::MappedFile>> files_;
  absl::flat_hash_map<std::string, WeightView> views_;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_WEIGHTS_H_
