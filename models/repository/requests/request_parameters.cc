#include "models/repository/requests/request_parameters.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "models/graph/index_ranges.h"
#include "models/graph/op_traits.h"

namespace refract::models {
namespace {

constexpr absl::string_view kIdsPrefix = "ids.";
constexpr absl::string_view kOffsetsPrefix = "offsets.";
constexpr absl::string_view kBagsPrefix = "bags.";
constexpr absl::string_view kLengthsPrefix = "lengths.";
constexpr absl::string_view kIntegersPrefix = "integers.";
constexpr absl::string_view kShapePrefix = "shape.";
constexpr absl::string_view kBatchKey = "batch_symbol";
constexpr absl::string_view kLimitsKey = "size_limits";

// The input that a parameter is about: the rest of `key` behind its prefix;
// empty for other keys.
absl::string_view InputOf(absl::string_view key) {
  for (const absl::string_view prefix :
       {kIdsPrefix, kOffsetsPrefix, kBagsPrefix, kLengthsPrefix,
        kIntegersPrefix, kShapePrefix}) {
    if (absl::ConsumePrefix(&key, prefix)) return key;
  }
  return "";
}

// Whether `next` tells of the column after that of `use`, and of nothing else.
bool IsNextColumn(const IdInput& use, const IdInput& next) {
  return next.input == use.input && next.table == use.table &&
         next.is_offsets == use.is_offsets && next.column == use.column + 1;
}

}  // namespace

std::map<std::string, std::string> RequestParameters(const Graph& graph) {
  std::map<std::string, std::string> parameters;
  // Per input with offsets: the text for each of its rows; −1: for all of it.
  std::map<std::string, std::map<int64_t, std::string>> bags;
  const std::vector<IdInput> uses = FindIdInputs(graph);
  for (size_t i = 0; i < uses.size(); ++i) {
    const IdInput& use = uses[i];
    const std::string& name = graph.value(use.input).name;
    std::string& text = parameters[absl::StrCat(
        use.is_offsets ? kOffsetsPrefix : kIdsPrefix, name)];
    absl::StrAppend(&text, text.empty() ? "" : ";", "table=", use.table,
                    " rows=", use.rows);
    if (use.column >= 0) {
      absl::StrAppend(&text, " column=", use.column);
      // Columns that a look-up reads together have one entry.
      const int64_t first = use.column;
      while (i + 1 < uses.size() && IsNextColumn(uses[i], uses[i + 1])) ++i;
      if (uses[i].column > first) absl::StrAppend(&text, "-", uses[i].column);
    }
    if (use.row >= 0) absl::StrAppend(&text, " row=", use.row);
    if (use.lengths != kNoValue) {
      // Without lengths a reader cannot tell where a piece ends.
      if (use.piece >= 0) absl::StrAppend(&text, " piece=", use.piece);
      parameters[absl::StrCat(kLengthsPrefix, graph.value(use.lengths).name)] =
          absl::StrCat("ids=", name, " pieces=", use.pieces);
    }
    if (use.is_offsets && use.ids != kNoValue) {
      // Rows of offsets divide the same rows of a matrix of ids, or a list
      // each.
      const bool lists = use.row >= 0 && graph.value(use.ids).shape.size() == 1;
      bags[name][lists ? use.row : -1] = absl::StrCat(
          "ids=", graph.value(use.ids).name,
          " include_last=", use.include_last_offset ? "true" : "false",
          lists ? absl::StrCat(" row=", use.row) : "");
    }
  }
  for (const auto& [name, of_rows] : bags) {
    parameters[absl::StrCat(kBagsPrefix, name)] =
        absl::StrJoin(of_rows, ";", [](std::string* out, const auto& row) {
          absl::StrAppend(out, row.second);
        });
  }
  for (const IndexRange& range : FindIndexRanges(graph)) {
    const std::string& name = graph.value(range.input).name;
    if (parameters.contains(absl::StrCat(kIdsPrefix, name))) continue;
    parameters[absl::StrCat(kIntegersPrefix, name)] =
        absl::StrCat(range.least, ";", range.end.ToString());
  }
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    if (!value.has_shape || value.shape.empty()) continue;
    parameters[absl::StrCat(kShapePrefix, value.name)] = absl::StrJoin(
        value.shape, ";", [](std::string* out, const SymExpr& size) {
          absl::StrAppend(out, size.ToString());
        });
  }
  if (!graph.batch_symbol.empty()) {
    parameters[std::string(kBatchKey)] = graph.batch_symbol;
  }
  std::string limits;
  for (const SymbolRange& range : graph.symbols) {
    // torch.export writes about INT64_MAX where nothing limits a size.
    const bool limited = range.max < INT32_MAX || range.min > 1;
    if (!limited || range.symbol == graph.batch_symbol) continue;
    absl::StrAppend(&limits, limits.empty() ? "" : ";", range.symbol, "=",
                    range.min, "-", range.max);
  }
  if (!limits.empty()) parameters[std::string(kLimitsKey)] = limits;
  return parameters;
}

bool IsRequestParameter(absl::string_view key) {
  return key == kBatchKey || key == kLimitsKey || !InputOf(key).empty();
}

absl::Status CheckRequestParameter(absl::string_view key, const Graph& graph) {
  const absl::string_view input = InputOf(key);
  if (input.empty()) return absl::OkStatus();
  for (const ValueId id : graph.inputs) {
    if (graph.value(id).name == input) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the model has no input ", input));
}

}  // namespace refract::models
