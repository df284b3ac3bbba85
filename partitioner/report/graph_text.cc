#include "partitioner/report/graph_text.h"

#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace refract::partitioner {

using models::SymExpr;
using models::Value;
using models::ValueKind;

std::string SecondsText(double seconds) {
  if (seconds == 0) return "0";
  if (seconds < 1e-3) return absl::StrFormat("%.4g us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.4g ms", seconds * 1e3);
  return absl::StrFormat("%.4g s", seconds);
}

std::string BytesText(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.4g %s", bytes, kUnits[unit]);
}

std::string TypeText(const Value& value) {
  switch (value.kind) {
    case ValueKind::kTensor:
      return std::string(base::Name(value.dtype));
    case ValueKind::kSymInt:
      return "int64 size";
    case ValueKind::kSymFloat:
      return "float64 number";
    case ValueKind::kSymBool:
      return "bool";
  }
  return "";
}

// Shapes with symbols, "[B, 26]"; "?" for a tensor of unknown rank.
std::string ShapeText(const Value& value) {
  if (value.kind != ValueKind::kTensor) return "[]";
  if (!value.has_shape) return "?";
  return absl::StrCat(
      "[",
      absl::StrJoin(value.shape, ", ",
                    [](std::string* out, const SymExpr& extent) {
                      out->append(extent.ToString());
                    }),
      "]");
}

std::string RowsText(const models::RowDependence& rows) {
  if (rows.may_coalesce) return "requests may be split and merged";
  return absl::StrCat(
      rows.may_split ? "requests may be split, and merged with requests whose "
                       "tensors without rows are equal: "
                     : "requests are neither split nor merged: ",
      rows.why.empty() ? "no rule shows that each row is scored alone"
                       : rows.why);
}

std::vector<std::string> NamesOf(const models::Graph& graph,
                                 const std::vector<models::ValueId>& ids) {
  std::vector<std::string> names;
  for (const models::ValueId id : ids) names.push_back(graph.value(id).name);
  return names;
}

}  // namespace refract::partitioner
