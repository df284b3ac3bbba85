#include "partitioner/profile/figure_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "partitioner/costs/work.h"
#include "partitioner/split/crossing.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::NodeId;
using models::Value;
using models::ValueId;

// Upper limits of a single figure: 4 PiB, and 30 years. Sums of a whole graph
// are then exact in the cut's integers.
constexpr double kMostBytes = 0x1p52;
constexpr double kMostSeconds = 1e9;

bool Plausible(double figure, double most) {
  return figure >= 0 && figure <= most;  // false for NaN
}

// "[3, -1]"; symbols without a value stay as names.
std::string ShapeText(const Value& value, const models::SymbolBindings& sizes) {
  return absl::StrCat(
      "[",
      absl::StrJoin(value.shape, ", ",
                    [&](std::string* out, const models::SymExpr& extent) {
                      const absl::StatusOr<int64_t> size =
                          extent.Evaluate(sizes);
                      size.ok() ? absl::StrAppend(out, *size)
                                : absl::StrAppend(out, extent.ToString());
                    }),
      "]");
}

std::string SizesText(const models::SymbolBindings& sizes) {
  if (sizes.empty()) return "";
  std::vector<std::string> all;
  for (const auto& [symbol, size] : sizes) {
    all.push_back(absl::StrCat(symbol, " = ", size));
  }
  std::sort(all.begin(), all.end());
  return absl::StrCat(" at ", absl::StrJoin(all, ", "));
}

std::string OperatorText(const Graph& graph, NodeId node) {
  return absl::StrCat("operator ", graph.nodes[node].name, " (",
                      graph.nodes[node].op, ")");
}

}  // namespace

absl::Status CheckFigures(const Graph& graph, const Conditions& conditions,
                          const ValueSizes& sizes) {
  // Sizes, bytes, times of operators, times of runs, crossings: each figure
  // depends only on figures checked before it, so the first message names the
  // cause.
  REFRACT_RETURN_IF_ERROR(CheckSizes(graph, conditions.sizes));
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (Plausible(sizes.bytes[id], kMostBytes)) continue;
    const Value& value = graph.values[id];
    return absl::InvalidArgumentError(absl::StrCat(
        value.producer == models::kNoNode
            ? absl::StrCat("value ", value.name, " has ")
            : absl::StrCat(OperatorText(graph, value.producer), ": its result ",
                           value.name, " would have "),
        "the shape ", ShapeText(value, conditions.sizes),
        SizesText(conditions.sizes), ", ", sizes.bytes[id],
        " bytes; give other sizes"));
  }
  const OperatorCosts& costs = conditions.costs;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const bool hn : {false, true}) {
      const double seconds = hn ? costs.hn_s[n] : costs.cn_s[n];
      if (Plausible(seconds, kMostSeconds)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          OperatorText(graph, static_cast<NodeId>(n)), ": would take ", seconds,
          " s on the ", hn ? "HN" : "CN", SizesText(conditions.sizes)));
    }
  }
  for (const bool hn : {false, true}) {
    const double seconds = hn ? costs.hn_run_s : costs.cn_run_s;
    if (Plausible(seconds, kMostSeconds)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a run of the ", hn ? "HN" : "CN", " would take ", seconds,
                     " s outside its operators"));
  }
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].is_weight()) continue;  // these never cross
    for (const bool up : {true, false}) {
      const Crossing crossing =
          CrossingOf(conditions, static_cast<ValueId>(id), up, sizes.bytes[id]);
      if (Plausible(crossing.bytes, kMostBytes) &&
          Plausible(crossing.link_s, kMostSeconds) &&
          Plausible(crossing.cn_s, kMostSeconds) &&
          Plausible(crossing.hn_s, kMostSeconds)) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "value ", graph.values[id].name, ": would take ", crossing.bytes,
          " bytes, ", crossing.link_s, " s of the link, ", crossing.cn_s,
          " s of the CN and ", crossing.hn_s, " s of the HN to cross ",
          up ? "up" : "down"));
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::partitioner
