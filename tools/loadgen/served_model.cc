#include "tools/loadgen/served_model.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace refract::loadgen {
namespace {

// Symbols for servers without expressions. No exporter writes names with
// blanks, so these cannot meet a model's own symbols.
constexpr absl::string_view kItems = "number of items";
constexpr absl::string_view kLength = "any other size";

using Rows = absl::flat_hash_map<std::string, std::vector<int64_t>>;

absl::Status Unfit(const ServedInput& input, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("input ", input.name, ": ", why));
}

// The words "key=value" of a parameter's text.
absl::flat_hash_map<std::string, std::string> Words(absl::string_view text) {
  absl::flat_hash_map<std::string, std::string> words;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    words.insert(pair);
  }
  return words;
}

const std::string* FindParameter(const ServedModel& model,
                                 absl::string_view prefix,
                                 const std::string& input) {
  const auto it = model.parameters.find(absl::StrCat(prefix, input));
  return it == model.parameters.end() ? nullptr : &it->second;
}

// "table=<weight> rows=<n> [column=<k>]", joined by ";". An id that feeds
// several tables must be in all of them.
absl::StatusOr<std::vector<int64_t>> RowsFrom(const std::string& text,
                                              const ServedInput& input) {
  std::vector<int64_t> rows;
  // `rows` is per column, `of_all` holds for every column; an entry without a
  // column is a table that the whole input is looked up in. The smallest table
  // wins each time.
  std::optional<int64_t> of_all;
  for (absl::string_view entry : absl::StrSplit(text, ';')) {
    const auto words = Words(entry);
    const auto rows_word = words.find("rows");
    int64_t count = 0;
    if (rows_word == words.end() ||
        !absl::SimpleAtoi(rows_word->second, &count) || count < 1) {
      return Unfit(input, absl::StrCat("its parameter ids.", input.name,
                                       " tells no rows: '", text, "'"));
    }
    const auto column_word = words.find("column");
    if (column_word == words.end()) {
      of_all = std::min(of_all.value_or(count), count);
      continue;
    }
    int64_t column = -1;
    if (input.dims.empty() || !absl::SimpleAtoi(column_word->second, &column) ||
        column < 0 || column >= input.dims.back()) {
      return Unfit(input,
                   absl::StrCat("its parameter ids.", input.name,
                                " names column '", column_word->second, "'"));
    }
    // 0: no table of its own.
    rows.resize(input.dims.back(), 0);
    rows[column] = rows[column] == 0 ? count : std::min(rows[column], count);
  }
  // A column in no table gets one row: id 0 is valid for whatever reads it.
  if (rows.empty()) return std::vector<int64_t>{of_all.value_or(1)};
  for (int64_t& count : rows) {
    if (of_all) count = count == 0 ? *of_all : std::min(count, *of_all);
    count = std::max<int64_t>(count, 1);
  }
  return rows;
}

absl::StatusOr<std::vector<models::SymExpr>> SizesFrom(
    const std::string& text, const ServedInput& input) {
  std::vector<models::SymExpr> sizes;
  for (absl::string_view size : absl::StrSplit(text, ';')) {
    REFRACT_ASSIGN_OR_RETURN(models::SymExpr expression,
                             models::SymExpr::Parse(size));
    sizes.push_back(std::move(expression));
  }
  if (sizes.size() != input.dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' has ", sizes.size(), " sizes, the input ",
                     input.dims.size(), " dimensions"));
  }
  return sizes;
}

// For a server without expressions. A first dimension of unknown size is the
// number of items, the number of ids of a bag input, or the number of offsets:
// one per item, and one more with include_last. Other unknown dimensions share
// the size of RequestOptions::length.
std::vector<models::SymExpr> GuessSizes(const InputPlan& plan) {
  std::vector<models::SymExpr> sizes;
  for (int64_t dim : plan.input.dims) {
    sizes.push_back(
        dim >= 0 ? models::SymExpr(dim)
                 : models::SymExpr::Symbol(sizes.empty() ? kItems : kLength));
  }
  if (sizes.empty() || plan.input.dims[0] >= 0) return sizes;
  if (plan.kind == InputKind::kIds && plan.bag >= 0) {
    sizes[0] = models::SymExpr::Symbol(absl::StrCat("ids of ", plan.bag));
  } else if (plan.kind == InputKind::kOffsets && plan.include_last) {
    sizes[0] = sizes[0] + 1;
  }
  return sizes;
}

absl::StatusOr<InputKind> KindOf(const ServedModel& model,
                                 const ServedInput& input, const Rows& rows) {
  if (input.dtype == base::DType::kUnknown) {
    return Unfit(input, absl::StrCat("no values are generated for type '",
                                     input.unknown_type, "'"));
  }
  // The type decides first, then the server's parameters. --rows makes an
  // integer input one of ids where the server says nothing about it.
  if (base::IsFloatingPoint(input.dtype)) return InputKind::kDense;
  if (input.dtype == base::DType::kBool) return InputKind::kCounts;
  if (FindParameter(model, "offsets.", input.name) != nullptr ||
      FindParameter(model, "bags.", input.name) != nullptr) {
    if (base::SizeOf(input.dtype) < sizeof(int32_t)) {
      return Unfit(input, absl::StrCat("offsets of bags do not fit into ",
                                       base::KServeName(input.dtype)));
    }
    return InputKind::kOffsets;
  }
  if (FindParameter(model, "ids.", input.name) != nullptr ||
      rows.contains(input.name)) {
    return InputKind::kIds;
  }
  return InputKind::kCounts;
}

// Ties each offsets input to its ids.
absl::Status PairBags(const ServedModel& model, RequestPlan& plan) {
  std::vector<InputPlan>& inputs = plan.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    InputPlan& offsets = inputs[i];
    if (offsets.kind != InputKind::kOffsets) continue;
    const std::string* text = FindParameter(model, "bags.", offsets.input.name);
    if (text == nullptr) {
      return Unfit(offsets.input,
                   "holds offsets of bags, but the server does not say of "
                   "which input");
    }
    const auto words = Words(*text);
    const auto ids_word = words.find("ids");
    const auto ids =
        std::find_if(inputs.begin(), inputs.end(), [&](const InputPlan& other) {
          return ids_word != words.end() && other.kind == InputKind::kIds &&
                 other.input.name == ids_word->second;
        });
    // Ids that two offsets inputs divide into bags are refused, too: their
    // number could not fit both.
    if (ids == inputs.end() || ids->partner >= 0 ||
        ids->input.dims.size() != 1 || offsets.input.dims.size() != 1) {
      return Unfit(
          offsets.input,
          absl::StrCat("its parameter bags.", offsets.input.name,
                       " names no list of ids of its own: '", *text, "'"));
    }
    const auto last = words.find("include_last");
    offsets.include_last = last != words.end() && last->second == "true";
    offsets.partner = static_cast<int>(ids - inputs.begin());
    ids->partner = static_cast<int>(i);
  }
  // Bags are numbered in the order of the ids inputs, since --bag-sizes lists
  // them in that order.
  for (InputPlan& ids : inputs) {
    if (ids.kind != InputKind::kIds || ids.partner < 0) continue;
    ids.bag = inputs[ids.partner].bag = plan.num_bags++;
  }
  return absl::OkStatus();
}

absl::Status SetRows(const ServedModel& model, const Rows& rows,
                     InputPlan& plan) {
  if (const auto it = rows.find(plan.input.name); it != rows.end()) {
    plan.rows = it->second;
    if (plan.rows.size() > 1 &&
        (plan.input.dims.size() < 2 ||
         plan.input.dims.back() != static_cast<int64_t>(plan.rows.size()))) {
      return Unfit(plan.input,
                   absl::StrCat("--rows gives ", plan.rows.size(),
                                " columns, its shape is ",
                                base::DimsToString(plan.input.dims)));
    }
  } else {
    REFRACT_ASSIGN_OR_RETURN(
        plan.rows,
        RowsFrom(*FindParameter(model, "ids.", plan.input.name), plan.input));
  }
  // Ids that the type can hold.
  const uint64_t most = LargestOf(plan.input.dtype);
  for (int64_t& rows_of : plan.rows) {
    if (static_cast<uint64_t>(rows_of) > most) {
      rows_of = static_cast<int64_t>(most) + 1;
    }
  }
  return absl::OkStatus();
}

// Ids in place of the rows of `plan`, in the columns whose table has ids.
absl::Status SetIds(const ServedModel& model, const TableIds& ids,
                    InputPlan& plan) {
  const std::string* text = FindParameter(model, "ids.", plan.input.name);
  if (text == nullptr) return absl::OkStatus();
  const size_t columns = plan.rows.size();
  // The table that each column is looked up in first.
  std::vector<std::string> tables(columns);
  for (absl::string_view entry : absl::StrSplit(*text, ';')) {
    const auto words = Words(entry);
    const auto table = words.find("table");
    const auto column = words.find("column");
    size_t begin = 0;
    size_t end = columns;
    if (column != words.end() && columns > 1) {
      if (!absl::SimpleAtoi(column->second, &begin)) continue;  // RowsFrom()
      end = begin + 1;
    }
    if (table == words.end()) continue;
    for (size_t i = begin; i < std::min(end, columns); ++i) {
      // One id is drawn per element, so all tables of a column must know it:
      // two tables are fine as long as both take row numbers.
      const auto own = ids.Of(table->second);
      if (tables[i].empty()) {
        tables[i] = table->second;
      } else if (tables[i] != table->second &&
                 (!own.empty() || !ids.Of(tables[i]).empty())) {
        return Unfit(plan.input, absl::StrCat("is looked up in tables ",
                                              tables[i], " and ",
                                              table->second,
                                              ", whose ids differ"));
      }
      if (own.empty()) continue;
      if (plan.input.dtype != base::DType::kInt64) {
        return Unfit(plan.input,
                     absl::StrCat("is ", base::Name(plan.input.dtype),
                                  "; table ", table->second,
                                  " has ids of int64"));
      }
      if (plan.rows[i] > static_cast<int64_t>(own.size())) {
        return Unfit(plan.input,
                     absl::StrCat("table ", table->second, " has ",
                                  plan.rows[i], " rows; --table-ids has ",
                                  own.size(), " ids"));
      }
      plan.ids.resize(columns);
      plan.ids[i] = own;
    }
  }
  return absl::OkStatus();
}

absl::Status SetSizes(const ServedModel& model, InputPlan& plan) {
  const std::string* text = FindParameter(model, "shape.", plan.input.name);
  if (text == nullptr) {
    plan.sizes = GuessSizes(plan);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<models::SymExpr>> sizes =
      SizesFrom(*text, plan.input);
  if (!sizes.ok()) {
    return Unfit(plan.input, std::string(sizes.status().message()));
  }
  plan.sizes = *std::move(sizes);
  return absl::OkStatus();
}

}  // namespace

uint64_t LargestOf(base::DType dtype) {
  switch (dtype) {
    case base::DType::kInt8:
      return INT8_MAX;
    case base::DType::kUInt8:
      return UINT8_MAX;
    case base::DType::kInt16:
      return INT16_MAX;
    case base::DType::kInt32:
      return INT32_MAX;
    default:
      return INT64_MAX;
  }
}

absl::StatusOr<RequestPlan> PlanRequests(const ServedModel& model,
                                         const Rows& rows,
                                         const TableIds& ids) {
  RequestPlan plan;
  const auto batch = model.parameters.find("batch_symbol");
  plan.batch_symbol =
      batch == model.parameters.end() ? std::string(kItems) : batch->second;
  for (const ServedInput& input : model.inputs) {
    REFRACT_ASSIGN_OR_RETURN(const InputKind kind, KindOf(model, input, rows));
    plan.inputs.push_back({.input = input, .kind = kind});
  }
  // A misspelt name in --rows would otherwise go unnoticed.
  for (const auto& [name, unused] : rows) {
    const auto it = std::find_if(
        plan.inputs.begin(), plan.inputs.end(),
        [&name = name](const InputPlan& p) { return p.input.name == name; });
    if (it == plan.inputs.end() || it->kind != InputKind::kIds) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rows: ", model.name, " has no ids input ", name));
    }
  }
  // Before the sizes: GuessSizes() asks which bag an input belongs to.
  REFRACT_RETURN_IF_ERROR(PairBags(model, plan));
  bool uses_ids = false;
  for (InputPlan& input : plan.inputs) {
    if (input.kind == InputKind::kIds) {
      REFRACT_RETURN_IF_ERROR(SetRows(model, rows, input));
      REFRACT_RETURN_IF_ERROR(SetIds(model, ids, input));
      uses_ids |= !input.ids.empty();
    }
    REFRACT_RETURN_IF_ERROR(SetSizes(model, input));
  }
  if (!ids.empty() && !uses_ids) {
    return absl::InvalidArgumentError(
        absl::StrCat("--table-ids: no input of ", model.name,
                     " is looked up in a table of these files"));
  }
  return plan;
}

absl::StatusOr<Rows> ParseRows(const std::vector<std::string>& texts) {
  Rows result;
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(text, absl::MaxSplits('=', 1));
    std::vector<int64_t>& rows = result[pair.first];
    rows.clear();
    for (absl::string_view number : absl::StrSplit(pair.second, ',')) {
      int64_t count = 0;
      if (!absl::SimpleAtoi(number, &count) || count < 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--rows '", text, "': wants INPUT=N or INPUT=N,N,... with N >= 1"));
      }
      rows.push_back(count);
    }
  }
  return result;
}

}  // namespace refract::loadgen
