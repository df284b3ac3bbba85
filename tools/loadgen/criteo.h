#ifndef REFRACT_TOOLS_LOADGEN_CRITEO_H_
#define REFRACT_TOOLS_LOADGEN_CRITEO_H_

// Criteo's click logs as text: per line a label, 13 integers and 26 categories
// of up to 8 hexadecimal digits, separated by tabs; all but the label may be
// empty (https://ailab.criteo.com/criteo-1tb-click-logs-dataset/).

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::loadgen {

inline constexpr int kCriteoIntegers = 13;
inline constexpr int kCriteoCategories = 26;

struct CriteoRow {
  // log(1 + max(x, 0)), as MLPerf's reference does; empty: 0.
  std::array<float, kCriteoIntegers> dense = {};
  // Empty: nullopt.
  std::array<std::optional<uint32_t>, kCriteoCategories> categories = {};
};

// A category's row in a table of `rows` ≥ 1 rows: the category, which is a
// 32-bit hash already, modulo `rows`. Absent: row 0, which it shares with the
// categories that are a multiple of `rows`.
inline int64_t CriteoId(std::optional<uint32_t> category, int64_t rows) {
  return category.has_value() ? static_cast<int64_t>(*category) % rows : 0;
}

// InvalidArgument names the field: "field 3 (I2): …". Fields count from 1.
absl::StatusOr<CriteoRow> ParseCriteoLine(absl::string_view line);

// At most `max_rows` ≥ 1 rows of `path`, those of process `part` of `parts`:
// every parts-th row, from row `part`. Other lines are not looked at.
// InvalidArgument names path, line and field of a bad line, and a file that
// cannot be read or has no row for the process.
absl::StatusOr<std::vector<CriteoRow>> ReadCriteo(const std::string& path,
                                                  size_t max_rows,
                                                  size_t part = 0,
                                                  size_t parts = 1);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_CRITEO_H_
