#include "models/shapes/row_picker.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/integers.h"
#include "base/status_macros.h"
#include "models/rows/row_dependence.h"

namespace refract::models {
namespace {

using base::IntAt;
using base::SetInt;

absl::Status CannotDraw(const Value& input, size_t dim) {
  return absl::UnimplementedError(
      absl::StrCat("input ", input.name, ": items cannot be drawn from ",
                   input.shape[dim].ToString(), " in dimension ", dim));
}

}  // namespace

absl::StatusOr<RowPicker> RowPicker::Create(
    const Graph& graph, const ProbeMaker& maker,
    std::vector<std::optional<RaggedInput>> ragged) {
  for (size_t i = ragged.size(); i < graph.inputs.size(); ++i) {
    ragged.push_back(maker.ragged(i));
  }
  RowPicker picker(maker.sample(), std::move(ragged));
  const std::vector<IdInput> uses = FindIdInputs(graph);
  std::vector<size_t> several;
  REFRACT_RETURN_IF_ERROR(picker.FindRows(graph, uses, several));
  REFRACT_RETURN_IF_ERROR(picker.FindBags(graph));
  picker.FindBagsOfSharedOffsets(graph, uses);
  REFRACT_RETURN_IF_ERROR(picker.CheckRowsAreNoContents(graph));
  picker.FindBesideBags(graph);
  if (picker.rows_ == 0) {
    return absl::UnimplementedError(
        "no input has the batch size as a dimension");
  }
  picker.FindKeyed(graph);
  REFRACT_RETURN_IF_ERROR(picker.CheckMatrices(graph));
  for (const size_t i : several) {
    if (picker.roles_[i] != Role::kFixed) continue;
    return CannotDraw(graph.value(graph.inputs[i]), 0);
  }
  REFRACT_RETURN_IF_ERROR(picker.CheckBagsAreEqual(graph));
  return picker;
}

RowPicker::RowPicker(std::vector<base::TensorView> sample,
                     std::vector<std::optional<RaggedInput>> ragged)
    : sample_(std::move(sample)),
      ragged_(std::move(ragged)),
      roles_(sample_.size(), Role::kFixed),
      entries_(sample_.size(), 1),
      bags_of_(sample_.size()) {}

// An input whose shape names the batch has rows of each item in dimension 0, or
// is a vector of offsets or of several features' lengths. Other places of the
// batch cannot be cut. `several`: vectors that may be lengths of several
// features; FindKeyed() decides.
absl::Status RowPicker::FindRows(const Graph& graph,
                                 const std::vector<IdInput>& uses,
                                 std::vector<size_t>& several) {
  const SymExpr batch = SymExpr::Symbol(graph.batch_symbol);
  const bool alone = RowDependenceOf(graph).use == RowUse::kAlone;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const ValueId id = graph.inputs[i];
    const Value& input = graph.value(id);
    for (size_t d = 0; d < input.shape.size(); ++d) {
      const std::vector<std::string> symbols = input.shape[d].Symbols();
      if (std::count(symbols.begin(), symbols.end(), graph.batch_symbol) == 0)
        continue;
      std::optional<RaggedInput>& ragged = ragged_[i];
      // Numbers that end like offsets by chance, one for each item.
      if (ragged && ragged->include_last_offset && input.shape[d] == batch)
        ragged.reset();
      const bool offsets = ragged && ragged->is_offsets;
      // Offsets that include the last have an entry more than rows.
      const int64_t last = offsets && ragged->include_last_offset ? 1 : 0;
      int64_t entries = int64_t{input.shape[d] == batch + SymExpr(last)};
      if (alone && !offsets) entries = EntriesPerItem(graph, uses, id, d);
      if (d == 0 && entries == 0 && !offsets && input.shape.size() == 1 &&
          base::IsInt32OrInt64(input.dtype)) {
        several.push_back(i);
        continue;
      }
      // A matrix of offsets has a row for each table.
      const size_t expected = offsets && input.shape.size() == 2 ? 1 : 0;
      if (d != expected || entries == 0) return CannotDraw(input, d);
      roles_[i] = offsets ? Role::kOffsets : Role::kRows;
      entries_[i] = entries;
      REFRACT_RETURN_IF_ERROR(
          CountRows(input, sample_[i].dims[d] - last, entries));
    }
  }
  return absl::OkStatus();
}

// `size` entries of an input are the rows' of the sample, as in other inputs.
absl::Status RowPicker::CountRows(const Value& input, int64_t size,
                                  int64_t entries) {
  const int64_t rows = size / entries;
  if (size % entries != 0 || rows < 1) {
    return absl::UnimplementedError(absl::StrCat(
        "input ", input.name, " has ", size, " rows, and each item has ",
        entries, "; at least 1 item is needed"));
  }
  if (rows_ != 0 && rows_ != rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input ", input.name, " has ", rows, " items, others have ", rows_));
  }
  rows_ = rows;
  return absl::OkStatus();
}

// Offsets and lengths of rows, and the inputs whose bags they divide.
absl::Status RowPicker::FindBags(const Graph& graph) {
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (!ragged_[i]) continue;
    const RaggedInput& ragged = *ragged_[i];
    // Offsets of a size of their own that has a bag for each row.
    const base::Dims& dims = sample_[i].dims;
    const std::vector<SymExpr>& shape = graph.value(graph.inputs[i]).shape;
    if (roles_[i] == Role::kFixed && ragged.is_offsets && dims.size() == 1 &&
        shape.size() == 1 && !shape[0].constant() &&
        dims[0] - (ragged.include_last_offset ? 1 : 0) == rows_ &&
        roles_[ragged.ids] == Role::kFixed) {
      roles_[i] = Role::kOffsets;
    }
    if (roles_[i] == Role::kFixed) continue;
    // Numbers that add up to the batch by chance are no lengths of its rows.
    if (!ragged.is_offsets && roles_[ragged.ids] == Role::kRows) continue;
    const size_t rank = dims.size();
    const bool matrix =
        ragged.is_offsets && rank == 2 &&
        (!ragged.lists.empty() || sample_[ragged.ids].dims[0] == dims[0]);
    if (rank != 1 && !matrix) {
      return absl::UnimplementedError(
          absl::StrCat("input ", graph.value(graph.inputs[i]).name,
                       " holds bags in ", rank, " dimensions"));
    }
    // The ids of these bags are cut by the same offsets.
    const std::vector<size_t> ids =
        ragged.lists.empty() ? std::vector<size_t>{ragged.ids} : ragged.lists;
    for (size_t row = 0; row < ids.size(); ++row) {
      std::optional<Bags>& bags = bags_of_[ids[row]];
      if (bags && !ragged.lists.empty()) {
        return absl::UnimplementedError(absl::StrCat(
            "several rows of input ", graph.value(graph.inputs[i]).name,
            " divide input ", graph.value(graph.inputs[ids[row]]).name));
      }
      bags = Bags{i, row};
      roles_[ids[row]] = Role::kBags;
    }
  }
  return absl::OkStatus();
}

// Offsets of several inputs: FindIdInputs() names each of these.
void RowPicker::FindBagsOfSharedOffsets(const Graph& graph,
                                        const std::vector<IdInput>& uses) {
  const auto place = [&graph](ValueId id) {
    return std::find(graph.inputs.begin(), graph.inputs.end(), id) -
           graph.inputs.begin();
  };
  for (const IdInput& use : uses) {
    if (!use.is_offsets || use.row >= 0 || use.ids == kNoValue) continue;
    const size_t offsets = place(use.input);
    const size_t ids = place(use.ids);
    if (roles_[offsets] != Role::kOffsets || bags_of_[ids]) continue;
    bags_of_[ids] = Bags{offsets, 0};
    roles_[ids] = Role::kBags;
  }
}

// Rows that are contents of bags, such as a user's candidates, are not chosen
// without their offsets.
absl::Status RowPicker::CheckRowsAreNoContents(const Graph& graph) const {
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto& ragged = ragged_[i];
    if (ragged && ragged->is_offsets && roles_[i] == Role::kFixed &&
        roles_[ragged->ids] == Role::kRows) {
      return absl::UnimplementedError(absl::StrCat(
          "the rows of input ", graph.value(graph.inputs[ragged->ids]).name,
          " are entries of the bags of input ",
          graph.value(graph.inputs[i]).name));
    }
  }
  return absl::OkStatus();
}

// Inputs with an entry for each id of another input's bags, such as weights.
void RowPicker::FindBesideBags(const Graph& graph) {
  const std::vector<Role> roles = roles_;
  for (size_t i = 0; i < roles.size(); ++i) {
    const std::vector<SymExpr>& shape = graph.value(graph.inputs[i]).shape;
    if (roles[i] != Role::kFixed || shape.empty()) continue;
    for (size_t ids = 0; ids < roles.size(); ++ids) {
      const std::vector<SymExpr>& other = graph.value(graph.inputs[ids]).shape;
      if (roles[ids] != Role::kBags || other.empty()) continue;
      const bool matrix = HasRowOfEach(*bags_of_[ids]);
      if (matrix ? shape != other || shape[1].constant().has_value()
                 : shape[0] != other[0] || shape[0].constant().has_value()) {
        continue;
      }
      roles_[i] = Role::kBags;
      bags_of_[i] = bags_of_[ids];
      break;
    }
  }
}

// Integers, equally many per row, that add up to the length of other vectors,
// and whose own length varies: lengths of bags, whatever looks the ids up.
void RowPicker::FindKeyed(const Graph& graph) {
  for (size_t i = 0; i < roles_.size(); ++i) {
    const base::TensorView& lengths = sample_[i];
    const Value& input = graph.value(graph.inputs[i]);
    if (roles_[i] != Role::kFixed || !base::IsInt32OrInt64(lengths.dtype) ||
        lengths.dims.size() != 1 || lengths.dims[0] == 0 ||
        lengths.dims[0] % rows_ != 0 || input.shape.size() != 1 ||
        input.shape[0].constant()) {
      continue;
    }
    int64_t total = 0;
    bool counts = true;
    for (int64_t k = 0; k < lengths.dims[0] && counts; ++k) {
      const int64_t length = IntAt(lengths, k);
      counts = length >= 0 && length < (int64_t{1} << 40);
      total += length;
    }
    bool found = false;
    for (size_t k = 0; k < roles_.size() && counts && total > 0; ++k) {
      const base::Dims& other = sample_[k].dims;
      if (k != i && roles_[k] == Role::kFixed && other.size() == 1 &&
          other[0] == total) {
        roles_[k] = Role::kBags;
        bags_of_[k] = Bags{i, 0};
        ragged_[i] = RaggedInput{.ids = k};
        found = true;
      }
    }
    if (!found) continue;
    roles_[i] = Role::kKeyLengths;
    return;  // several cannot be distinguished
  }
}

// Unimplemented names an input that varies in a way that is not known, beside
// bags whose offsets are a matrix.
absl::Status RowPicker::CheckMatrices(const Graph& graph) const {
  for (size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i] != Role::kFixed) continue;
    for (size_t offsets = 0; offsets < roles_.size(); ++offsets) {
      const Value& input = graph.value(graph.inputs[i]);
      if (roles_[offsets] == Role::kOffsets && IsMatrixOfOffsets(offsets) &&
          std::any_of(input.shape.begin(), input.shape.end(),
                      [](const SymExpr& dim) { return !dim.constant(); })) {
        return absl::UnimplementedError(absl::StrCat(
            "input ", input.name, " varies beside the bags of input ",
            graph.value(graph.inputs[offsets]).name));
      }
    }
  }
  return absl::OkStatus();
}

// Inputs that the same offsets or lengths divide have equally many entries.
absl::Status RowPicker::CheckBagsAreEqual(const Graph& graph) const {
  for (size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i] != Role::kBags) continue;
    const size_t ids = IdsOf(*bags_of_[i]);
    const base::Dims& dims = sample_[i].dims;
    const base::Dims& of_ids = sample_[ids].dims;
    const bool matrix = HasRowOfEach(*bags_of_[i]);
    if (matrix ? dims == of_ids : dims[0] == of_ids[0]) continue;
    return absl::UnimplementedError(
        absl::StrCat("input ", graph.value(graph.inputs[i]).name, " has ",
                     dims[matrix ? 1 : 0], " rows, and input ",
                     graph.value(graph.inputs[ids]).name,
                     " of the same bags has ", of_ids[matrix ? 1 : 0]));
  }
  return absl::OkStatus();
}

absl::Status RowPicker::CheckBags(const Graph& graph) const {
  const auto name = [&graph](size_t input) -> const std::string& {
    return graph.value(graph.inputs[input]).name;
  };
  for (size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i] != Role::kBags) continue;
    const Bags& of = *bags_of_[i];
    if (!ragged_[of.offsets]->is_offsets) continue;
    const int64_t total = TotalOf(of);
    const base::TensorView& offsets = sample_[of.offsets];
    const int64_t width = offsets.dims.back();
    const bool matrix = HasRowOfEach(of);
    const int64_t begin = matrix ? 0 : static_cast<int64_t>(of.row) * width;
    const int64_t end = matrix ? offsets.num_elements() : begin + width;
    int64_t last = 0;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t offset = IntAt(offsets, k);
      if (k % width == 0) last = 0;
      if (offset < last || offset > total) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input ", name(of.offsets), ": offset ", offset,
            " is below the one before it or above the number of ids, ", total,
            ", of input ", name(i)));
      }
      last = offset;
    }
  }
  return absl::OkStatus();
}

bool RowPicker::CanPick(const std::vector<int64_t>& rows) const {
  for (size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i] != Role::kBags || !HasRowOfEach(*bags_of_[i])) continue;
    Bags at = {bags_of_[i]->offsets, 0};
    const int64_t length = LengthOf(BagRanges(at, rows));
    while (++at.row < static_cast<size_t>(sample_[i].dims[0])) {
      if (LengthOf(BagRanges(at, rows)) != length) return false;
    }
  }
  return true;
}

absl::StatusOr<std::vector<base::Tensor>> RowPicker::Pick(
    const std::vector<int64_t>& rows) const {
  std::vector<base::Tensor> tensors;
  for (size_t i = 0; i < roles_.size(); ++i) {
    const base::TensorView& from = sample_[i];
    absl::StatusOr<base::Tensor> tensor;
    switch (roles_[i]) {
      case Role::kFixed:
        tensor = base::Tensor::CopyOf(from);
        break;
      case Role::kRows:
        tensor = PickRanges(from, RowRanges(rows, entries_[i]));
        break;
      case Role::kOffsets:
        tensor = PickOffsets(i, rows);
        break;
      case Role::kBags:
        tensor = PickBags(i, rows);
        break;
      case Role::kKeyLengths:
        tensor = PickRanges(from, KeyedRows(i, rows));
        break;
    }
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

void RowPicker::LowerLimits(const std::vector<base::Tensor>& inputs,
                            Graph& graph) const {
  for (size_t i = 0; i < roles_.size(); ++i) {
    const size_t lengths = bags_of_[i] ? bags_of_[i]->offsets : i;
    if (roles_[lengths] != Role::kKeyLengths) continue;
    const auto symbol = graph.value(graph.inputs[i]).shape[0].symbol();
    for (SymbolRange& range : graph.symbols) {
      if (range.symbol == symbol) {
        range.min = std::min(range.min, inputs[i].dims()[0]);
      }
    }
  }
}

bool RowPicker::IsMatrixOfOffsets(size_t input) const {
  return sample_[input].dims.size() == 2;
}

bool RowPicker::HasRowOfEach(const Bags& bags) const {
  return IsMatrixOfOffsets(bags.offsets) &&
         ragged_[bags.offsets]->lists.empty();
}

size_t RowPicker::IdsOf(const Bags& bags) const {
  const RaggedInput& ragged = *ragged_[bags.offsets];
  return ragged.lists.empty() ? ragged.ids : ragged.lists[bags.row];
}

int64_t RowPicker::TotalOf(const Bags& bags) const {
  return sample_[IdsOf(bags)].dims[HasRowOfEach(bags) ? 1 : 0];
}

int64_t RowPicker::LengthOf(const std::vector<Range>& ranges) {
  int64_t length = 0;
  for (const Range& range : ranges) length += range.end - range.begin;
  return length;
}

std::vector<RowPicker::Range> RowPicker::RowRanges(
    const std::vector<int64_t>& rows, int64_t entries) {
  std::vector<Range> ranges;
  for (int64_t row : rows) {
    ranges.push_back({row * entries, (row + 1) * entries});
  }
  return ranges;
}

// Lengths lie feature after feature: [f0 of all rows][f1 of all rows] …
std::vector<RowPicker::Range> RowPicker::KeyedRows(
    size_t input, const std::vector<int64_t>& rows) const {
  const int64_t count = sample_[input].dims[0];
  std::vector<Range> ranges;
  for (int64_t first = 0; first < count; first += rows_) {
    for (int64_t row : rows) ranges.push_back({first + row, first + row + 1});
  }
  return ranges;
}

std::vector<RowPicker::Range> RowPicker::BagRanges(
    const Bags& of, const std::vector<int64_t>& rows) const {
  const base::TensorView& bags = sample_[of.offsets];
  const RaggedInput& ragged = *ragged_[of.offsets];
  const int64_t total = TotalOf(of);
  std::vector<Range> ranges;
  if (ragged.is_offsets) {
    const auto first = static_cast<int64_t>(of.row) * bags.dims.back();
    for (const int64_t row : rows) {
      const bool last = row + 1 == rows_ && !ragged.include_last_offset;
      ranges.push_back({IntAt(bags, first + row),
                        last ? total : IntAt(bags, first + row + 1)});
    }
  } else {
    // Where bag i begins: prefix sums of the lengths.
    std::vector<int64_t> begins = {0};
    for (int64_t i = 0; i < bags.dims[0]; ++i) {
      begins.push_back(begins.back() + IntAt(bags, i));
    }
    for (const Range& place : KeyedRows(of.offsets, rows)) {
      ranges.push_back({begins[place.begin], begins[place.end]});
    }
  }
  // Offsets of a sample may be anything.
  for (Range& range : ranges) {
    range.begin = std::clamp<int64_t>(range.begin, 0, total);
    range.end = std::clamp<int64_t>(range.end, range.begin, total);
  }
  return ranges;
}

absl::StatusOr<base::Tensor> RowPicker::PickOffsets(
    size_t input, const std::vector<int64_t>& rows) const {
  const bool closes = ragged_[input]->include_last_offset;
  const auto count = static_cast<int64_t>(rows.size()) + (closes ? 1 : 0);
  base::Dims dims = sample_[input].dims;
  dims.back() = count;
  REFRACT_ASSIGN_OR_RETURN(base::Tensor offsets,
                           base::Tensor::Allocate(sample_[input].dtype, dims));
  int64_t k = 0;
  for (size_t at = 0; k < offsets.view().num_elements(); ++at) {
    // Picked bags lie one after the other, so their offsets begin anew at 0.
    int64_t begin = 0;
    for (const Range& range : BagRanges({input, at}, rows)) {
      SetInt(offsets, k++, begin);
      begin += range.end - range.begin;
    }
    if (closes) SetInt(offsets, k++, begin);
  }
  return offsets;
}

absl::StatusOr<base::Tensor> RowPicker::PickBags(
    size_t input, const std::vector<int64_t>& rows) const {
  const base::TensorView& from = sample_[input];
  const Bags& bags = *bags_of_[input];
  std::vector<Range> ranges = BagRanges(bags, rows);
  if (!HasRowOfEach(bags)) return PickRanges(from, ranges);
  // A matrix with a row for each row of the offsets: its elements are cut.
  const int64_t length = LengthOf(ranges);
  base::TensorView elements = from;
  elements.dims = {from.num_elements()};
  std::vector<Range> all;
  for (int64_t at = 0; at < from.dims[0]; ++at) {
    for (const Range& range :
         BagRanges({bags.offsets, static_cast<size_t>(at)}, rows)) {
      const int64_t first = at * from.dims[1];
      all.push_back({first + range.begin, first + range.end});
    }
  }
  return PickRanges(elements, all, {from.dims[0], length});
}

absl::StatusOr<base::Tensor> RowPicker::PickRanges(
    const base::TensorView& from, const std::vector<Range>& ranges,
    const base::Dims& shape) {
  base::Dims dims = from.dims;
  const size_t row_bytes =
      dims[0] == 0 ? 0 : from.bytes / static_cast<size_t>(dims[0]);
  dims[0] = LengthOf(ranges);
  REFRACT_ASSIGN_OR_RETURN(
      base::Tensor tensor,
      base::Tensor::Allocate(from.dtype, shape.empty() ? dims : shape));
  std::byte* to = tensor.data();
  for (const Range& range : ranges) {
    const size_t bytes = (range.end - range.begin) * row_bytes;
    if (bytes > 0) std::memcpy(to, from.data + range.begin * row_bytes, bytes);
    to += bytes;
  }
  return tensor;
}

}  // namespace refract::models
