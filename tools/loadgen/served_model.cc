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
// More pieces than any model has tables.
constexpr int64_t kMaxPieces = 1 << 16;

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

// The word that says which part of an input an entry is about, its column, row
// or piece; both empty: all of it.
struct FeatureWord {
  absl::string_view key;
  absl::string_view value;
};
FeatureWord FeatureOf(
    const absl::flat_hash_map<std::string, std::string>& words) {
  for (const absl::string_view key : {"column", "row", "piece"}) {
    const auto word = words.find(key);
    if (word != words.end()) return {key, word->second};
  }
  return {};
}

// First and last number of "3" or "3-7", such as the features of a word;
// nullopt for other texts.
std::optional<std::pair<int64_t, int64_t>> RangeIn(absl::string_view value) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(value, absl::MaxSplits('-', 1));
  int64_t first = 0;
  if (!absl::SimpleAtoi(ends.first, &first)) return std::nullopt;
  int64_t last = first;
  if (ends.first.size() < value.size() &&
      !absl::SimpleAtoi(ends.second, &last)) {
    return std::nullopt;
  }
  if (first < 0 || last < first) return std::nullopt;
  return std::make_pair(first, last);
}

const std::string* FindParameter(const ServedModel& model,
                                 absl::string_view prefix,
                                 const std::string& input) {
  const auto it = model.parameters.find(absl::StrCat(prefix, input));
  return it == model.parameters.end() ? nullptr : &it->second;
}

// The number of features of a matrix; 0: unknown.
int64_t FeaturesOf(const ServedInput& input, bool feature_major) {
  if (input.dims.empty()) return 0;
  const int64_t size = feature_major ? input.dims.front() : input.dims.back();
  return std::max<int64_t>(size, 0);
}

// Sets rows and feature_major by "table=<weight> rows=<n>", with " column=<k>"
// or "<k>-<last>", " row=<k>" or " piece=<k>", joined by ";". An id that feeds
// several tables must be in all of them.
absl::Status SetRowsFrom(const std::string& text, InputPlan& plan) {
  const ServedInput& input = plan.input;
  std::vector<int64_t>& rows = plan.rows;
  // `rows` is per feature, `of_all` holds for every feature; an entry without a
  // feature is a table that the whole input is looked up in. The smallest table
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
    const FeatureWord word = FeatureOf(words);
    if (word.key.empty()) {
      of_all = std::min(of_all.value_or(count), count);
      continue;
    }
    const bool feature_major = word.key == "row";
    const int64_t features = word.key == "piece"
                                 ? static_cast<int64_t>(plan.bags.size())
                                 : FeaturesOf(input, feature_major);
    const auto range = RangeIn(word.value);
    if (!range || range->second >= features ||
        (!rows.empty() && feature_major != plan.feature_major)) {
      return Unfit(input,
                   absl::StrCat("its parameter ids.", input.name, " names ",
                                word.key, " '", word.value, "'"));
    }
    plan.feature_major = feature_major;
    // 0: no table of its own.
    rows.resize(features, 0);
    for (int64_t k = range->first; k <= range->second; ++k) {
      rows[k] = rows[k] == 0 ? count : std::min(rows[k], count);
    }
  }
  // An integer in no table gets one row: id 0 is valid for whatever reads it.
  if (rows.empty()) rows = {of_all.value_or(1)};
  const bool floats = base::IsFloatingPoint(input.dtype);
  for (int64_t& count : rows) {
    if (of_all) count = count == 0 ? *of_all : std::min(count, *of_all);
    if (!floats) count = std::max<int64_t>(count, 1);
  }
  return absl::OkStatus();
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
// number of items. The last dimension of ids in bags counts the ids, that of
// offsets the items, and one more with include_last. Other unknown dimensions
// share the size of RequestOptions::length.
std::vector<models::SymExpr> GuessSizes(const InputPlan& plan) {
  std::vector<models::SymExpr> sizes;
  for (int64_t dim : plan.input.dims) {
    sizes.push_back(
        dim >= 0 ? models::SymExpr(dim)
                 : models::SymExpr::Symbol(sizes.empty() ? kItems : kLength));
  }
  if (sizes.empty() || plan.input.dims.back() >= 0) return sizes;
  if (plan.kind == InputKind::kIds && !plan.bags.empty()) {
    sizes.back() =
        models::SymExpr::Symbol(absl::StrCat("ids of ", plan.bags[0]));
  } else if (plan.kind == InputKind::kOffsets) {
    sizes.back() =
        models::SymExpr::Symbol(kItems) + (plan.include_last ? 1 : 0);
  } else if (plan.kind == InputKind::kLengths) {
    sizes.back() = models::SymExpr::Symbol(kItems) *
                   static_cast<int64_t>(plan.bags.size());
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
  const bool has_ids = FindParameter(model, "ids.", input.name) != nullptr;
  if (base::IsFloatingPoint(input.dtype)) {
    // CTR code packs ids and dense features into one matrix of floats.
    if (has_ids) return InputKind::kIds;
    if (FindParameter(model, "integers.", input.name) == nullptr) {
      return InputKind::kDense;
    }
    return rows.contains(input.name) ? InputKind::kIds : InputKind::kCounts;
  }
  if (input.dtype == base::DType::kBool) return InputKind::kCounts;
  if (FindParameter(model, "offsets.", input.name) != nullptr ||
      FindParameter(model, "bags.", input.name) != nullptr) {
    if (base::SizeOf(input.dtype) < sizeof(int32_t)) {
      return Unfit(input, absl::StrCat("offsets of bags do not fit into ",
                                       base::KServeName(input.dtype)));
    }
    return InputKind::kOffsets;
  }
  if (FindParameter(model, "lengths.", input.name) != nullptr) {
    return InputKind::kLengths;
  }
  if (has_ids || rows.contains(input.name)) return InputKind::kIds;
  return InputKind::kCounts;
}

// Whether offsets of a shape may divide ids of a shape: a list a list, and the
// rows of a matrix those of another.
bool FitsBags(const base::Dims& ids, const base::Dims& offsets) {
  if (ids.size() != offsets.size()) return false;
  return ids.size() == 1 ||
         (ids.size() == 2 && ids[0] >= 0 && ids[0] == offsets[0]);
}

// The input of ids that `words` names; the end if there is none.
std::vector<InputPlan>::iterator IdsIn(
    const absl::flat_hash_map<std::string, std::string>& words,
    std::vector<InputPlan>& inputs) {
  const auto ids = words.find("ids");
  if (ids == words.end()) return inputs.end();
  return std::find_if(inputs.begin(), inputs.end(), [&](const InputPlan& plan) {
    return plan.kind == InputKind::kIds && plan.input.name == ids->second;
  });
}

// Ties each input of lengths to its ids. PairBags() numbers their bags.
absl::Status PairLengths(const ServedModel& model, RequestPlan& plan) {
  std::vector<InputPlan>& inputs = plan.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    InputPlan& lengths = inputs[i];
    if (lengths.kind != InputKind::kLengths) continue;
    const std::string& text =
        *FindParameter(model, "lengths.", lengths.input.name);
    const auto words = Words(text);
    const auto ids = IdsIn(words, inputs);
    const auto word = words.find("pieces");
    int64_t pieces = 0;
    if (ids == inputs.end() || ids->partner >= 0 ||
        ids->input.dims.size() != 1 || lengths.input.dims.empty() ||
        word == words.end() || !absl::SimpleAtoi(word->second, &pieces) ||
        pieces < 1 || pieces > kMaxPieces) {
      return Unfit(
          lengths.input,
          absl::StrCat("its parameter lengths.", lengths.input.name,
                       " names no list of ids of its own: '", text, "'"));
    }
    ids->partner = static_cast<int>(i);
    ids->bags.resize(static_cast<size_t>(pieces));
  }
  return absl::OkStatus();
}

// Ties each offsets input to its ids.
absl::Status PairBags(const ServedModel& model, RequestPlan& plan) {
  std::vector<InputPlan>& inputs = plan.inputs;
  std::vector<std::vector<size_t>> ids_of(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    InputPlan& offsets = inputs[i];
    if (offsets.kind != InputKind::kOffsets) continue;
    const std::string* text = FindParameter(model, "bags.", offsets.input.name);
    if (text == nullptr) {
      return Unfit(offsets.input,
                   "holds offsets of bags, but the server does not say of "
                   "which input");
    }
    const std::vector<std::string> entries = absl::StrSplit(*text, ';');
    for (size_t row = 0; row < entries.size(); ++row) {
      const auto words = Words(entries[row]);
      const auto ids = IdsIn(words, inputs);
      // Several entries are the rows of the offsets in order, each with a list
      // of ids. Ids that two offsets inputs divide into bags are refused, too:
      // their number could not fit both.
      const base::Dims& dims = offsets.input.dims;
      const FeatureWord word = FeatureOf(words);
      const bool fits =
          entries.size() == 1 && word.key.empty()
              ? ids != inputs.end() && FitsBags(ids->input.dims, dims)
              : word.key == "row" && word.value == absl::StrCat(row) &&
                    dims.size() == 2 &&
                    dims[0] == static_cast<int64_t>(entries.size()) &&
                    ids != inputs.end() && ids->input.dims.size() == 1;
      if (!fits || ids->partner >= 0) {
        return Unfit(
            offsets.input,
            absl::StrCat("its parameter bags.", offsets.input.name,
                         " names no list of ids of its own: '", *text, "'"));
      }
      const auto last = words.find("include_last");
      offsets.include_last = last != words.end() && last->second == "true";
      ids->partner = static_cast<int>(i);
      ids->bags.resize(1);
      ids_of[i].push_back(static_cast<size_t>(ids - inputs.begin()));
    }
  }
  // Bags are numbered in the order of the ids inputs, since --bag-sizes lists
  // them in that order.
  for (InputPlan& ids : inputs) {
    if (ids.partner < 0) continue;
    for (int& bag : ids.bags) bag = plan.num_bags++;
    if (inputs[ids.partner].kind == InputKind::kLengths) {
      inputs[ids.partner].bags = ids.bags;
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const size_t ids : ids_of[i]) {
      inputs[i].bags.push_back(inputs[ids].bags[0]);
    }
  }
  return absl::OkStatus();
}

absl::Status SetRows(const ServedModel& model, const Rows& rows,
                     InputPlan& plan) {
  if (const auto it = rows.find(plan.input.name); it != rows.end()) {
    plan.rows = it->second;
    const auto features = static_cast<int64_t>(plan.rows.size());
    const bool is_list = plan.input.dims.size() == 1 && plan.bags.size() > 1;
    const bool is_matrix = plan.input.dims.size() > 1;
    // Columns, unless only the rows are as many.
    plan.feature_major = is_matrix && plan.input.dims.back() != features &&
                         plan.input.dims.size() == 2 &&
                         plan.input.dims.front() == features;
    const int64_t fits = is_list ? static_cast<int64_t>(plan.bags.size())
                         : is_matrix
                             ? FeaturesOf(plan.input, plan.feature_major)
                             : 1;
    if (features > 1 && features != fits) {
      return Unfit(
          plan.input,
          absl::StrCat("--rows gives ", features, " columns, its shape is ",
                       base::DimsToString(plan.input.dims)));
    }
  } else {
    REFRACT_RETURN_IF_ERROR(
        SetRowsFrom(*FindParameter(model, "ids.", plan.input.name), plan));
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

// Ids in place of the rows of `plan`, in the features whose table has ids.
absl::Status SetIds(const ServedModel& model, const TableIds& ids,
                    InputPlan& plan) {
  const std::string* text = FindParameter(model, "ids.", plan.input.name);
  if (text == nullptr) return absl::OkStatus();
  const size_t features = plan.rows.size();
  // The table that each feature is looked up in first.
  std::vector<std::string> tables(features);
  for (absl::string_view entry : absl::StrSplit(*text, ';')) {
    const auto words = Words(entry);
    const auto table = words.find("table");
    const FeatureWord word = FeatureOf(words);
    size_t begin = 0;
    size_t end = features;
    if (!word.key.empty() && features > 1) {
      const auto range = RangeIn(word.value);
      if (!range) continue;  // SetRowsFrom()
      begin = static_cast<size_t>(range->first);
      end = static_cast<size_t>(range->second) + 1;
    }
    if (table == words.end()) continue;
    for (size_t i = begin; i < std::min(end, features); ++i) {
      // One id is drawn per element, so all tables of a feature must know it:
      // two tables are fine as long as both take row numbers.
      const auto own = ids.Of(table->second);
      if (tables[i].empty()) {
        tables[i] = table->second;
      } else if (tables[i] != table->second &&
                 (!own.empty() || !ids.Of(tables[i]).empty())) {
        return Unfit(plan.input,
                     absl::StrCat("is looked up in tables ", tables[i], " and ",
                                  table->second, ", whose ids differ"));
      }
      if (own.empty()) continue;
      if (plan.input.dtype != base::DType::kInt64) {
        return Unfit(
            plan.input,
            absl::StrCat("is ", base::Name(plan.input.dtype), "; table ",
                         table->second, " has ids of int64"));
      }
      if (plan.rows[i] > static_cast<int64_t>(own.size())) {
        return Unfit(
            plan.input,
            absl::StrCat("table ", table->second, " has ", plan.rows[i],
                         " rows; --table-ids has ", own.size(), " ids"));
      }
      plan.ids.resize(features);
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

// "<symbol>=<least>-<most>" joined by ";". Other texts are left out: a request
// beyond a limit is refused by name.
std::map<std::string, std::pair<int64_t, int64_t>> LimitsFrom(
    const std::string& text) {
  std::map<std::string, std::pair<int64_t, int64_t>> limits;
  for (absl::string_view entry : absl::StrSplit(text, ';')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const auto range = RangeIn(pair.second);
    if (range) limits[std::string(pair.first)] = *range;
  }
  return limits;
}

// Sets least and end by "<least>;<end>".
absl::Status SetRange(const ServedModel& model, InputPlan& plan) {
  const std::string* text = FindParameter(model, "integers.", plan.input.name);
  if (text == nullptr) return absl::OkStatus();
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(*text, absl::MaxSplits(';', 1));
  plan.unknown_indices = ends.second == "?";
  const auto end = plan.unknown_indices ? models::SymExpr()
                                        : models::SymExpr::Parse(ends.second);
  if (!absl::SimpleAtoi(ends.first, &plan.least) || plan.least < 0 ||
      !end.ok()) {
    return Unfit(plan.input,
                 absl::StrCat("its parameter integers.", plan.input.name,
                              " tells no range: '", *text, "'"));
  }
  plan.end = *end;
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
  const auto limits = model.parameters.find("size_limits");
  if (limits != model.parameters.end()) {
    plan.limits = LimitsFrom(limits->second);
  }
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
  REFRACT_RETURN_IF_ERROR(PairLengths(model, plan));
  REFRACT_RETURN_IF_ERROR(PairBags(model, plan));
  bool uses_ids = false;
  for (InputPlan& input : plan.inputs) {
    if (input.kind == InputKind::kIds) {
      REFRACT_RETURN_IF_ERROR(SetRows(model, rows, input));
      REFRACT_RETURN_IF_ERROR(SetIds(model, ids, input));
      uses_ids |= !input.ids.empty();
    }
    if (input.kind == InputKind::kCounts) {
      REFRACT_RETURN_IF_ERROR(SetRange(model, input));
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

int64_t ItemsOf(const ServedModel& model,
                absl::Span<const base::Tensor> tensors) {
  const auto batch = model.parameters.find("batch_symbol");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ServedInput& input = model.inputs[i];
    const std::string* text = FindParameter(model, "shape.", input.name);
    if (text == nullptr || batch == model.parameters.end()) continue;
    const auto sizes = SizesFrom(*text, input);
    if (!sizes.ok()) continue;
    for (size_t d = 0; d < tensors[i].dims().size(); ++d) {
      const auto solved = (*sizes)[d].Solve(tensors[i].dims()[d]);
      if (solved && solved->symbol == batch->second) return solved->value;
    }
  }
  const bool any = !tensors.empty() && !tensors[0].dims().empty();
  return any ? tensors[0].dims()[0] : 1;
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
