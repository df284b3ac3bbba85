#include "tools/loadgen/table_ids.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "models/table_ids.h"

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
      const std::string label = absl::StrCat(path, ": tensor ", tensor.name);
      const auto ids = models::IdsIn(file, tensor);
      if (!ids.ok()) return base::Annotate(ids.status(), label);
      any = true;
      if (!all.ids_.emplace(table, *ids).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(label, ": is in another file, too"));
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
