#ifndef REFRACT_TOOLS_LOADGEN_TABLE_IDS_H_
#define REFRACT_TOOLS_LOADGEN_TABLE_IDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "models/repository/files/safetensors.h"

namespace refract::loadgen {

// Ids of tables whose rows are named by ids instead of their numbers, as given
// to `refract import`: tensors TABLE.ids, int64 [rows], of mapped safetensors
// files. Thread-safe.
class TableIds {
 public:
  // InvalidArgument names the file, or the tensor that is no list of int64;
  // or a file without such tensors.
  static absl::StatusOr<TableIds> Open(const std::vector<std::string>& paths);

  // Id i is that of row i. Empty: ids of the table are its row numbers. Valid
  // while this object lives.
  absl::Span<const int64_t> Of(absl::string_view table) const;
  bool empty() const { return ids_.empty(); }

 private:
  std::vector<models::SafetensorsFile> files_;
  std::map<std::string, absl::Span<const int64_t>, std::less<>> ids_;
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_TABLE_IDS_H_
