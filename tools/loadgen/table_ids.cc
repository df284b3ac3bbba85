#include "tools/loadgen/table_ids.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace refract::loadgen {

absl::StatusOr<TableIds> TableIds::Open(const std::vector<std::string>& paths) {
  TableIds all;
  for (const std::string& path : paths) {
    REFRACT_ASSIGN_OR_RETURN(models::SafetensorsFile file,
                             models::SafetensorsFile::Open(path));
    bool any = false;
    for (const models::SafetensorsEntry& tensor : file.entries()) {
      absl::string_view table = tensor.name;
      if (!absl::ConsumeSuffix(&table, ".ids")) continue;
      const base::TensorView view = file.View(tensor);
      if (tensor.dtype != base::DType::kInt64 || tensor.dims.size() != 1 ||
          tensor.offset % sizeof(int64_t) != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": tensor ", tensor.name, ": is ", base::Name(tensor.dtype),
            base::DimsToString(tensor.dims),
            "; ids are int64 [rows] at a multiple of 8 bytes"));
      }
      any = true;
      if (!all.ids_.emplace(table, view.as<int64_t>()).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": tensor ", tensor.name, ": is in another file, too"));
      }
    }
    if (!any) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has no tensor TABLE.ids"));
    }
    all.files_.push_back(std::move(file));
  }
  return all;
}

absl::Span<const int64_t> TableIds::Of(absl::string_view table) const {
  const auto found = ids_.find(table);
  return found == ids_.end() ? absl::Span<const int64_t>() : found->second;
}

}  // namespace refract::loadgen
