#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/integers.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/rows/row_dependence.h"
#include "models/shapes/infer.h"
#include "models/shapes/interpreter.h"
#include "models/shapes/probe.h"

namespace refract::models {
namespace {

using base::IntAt;
using base::SetInt;

// Kernels round differently for one row and for many; a specialised graph is
// wrong by far more.
constexpr double kRelative = 1e-3;
constexpr double kAbsolute = 1e-4;

// Relation of an input's leading size to the batch.
enum class Role : uint8_t {
  kFixed,    // nothing
  kRows,     // entries of row after row
  kOffsets,  // begin of each row's bag, and perhaps the end of the last
  kBags,     // the ids of all rows' bags, one after the other
  // Several features, one after the other (TorchRec's KeyedJaggedTensor):
  // lengths of all rows' bags, and the contents of the bags.
  kKeyLengths,
  kKeyValues,
};

// Requests made of chosen rows of the sample.
class RowPicker {
 public:
  // Unimplemented names the input whose rows cannot be separated.
  static absl::StatusOr<RowPicker> Create(const Graph& graph,
                                          const ProbeMaker& maker) {
    RowPicker picker(maker);
    const SymExpr batch = SymExpr::Symbol(graph.batch_symbol);
    const std::vector<IdInput> uses = FindIdInputs(graph);
    const bool alone = FindRowDependence(graph).use == RowUse::kAlone;
    picker.roles_.resize(graph.inputs.size(), Role::kFixed);
    picker.entries_.resize(graph.inputs.size(), 1);
    std::vector<size_t> several;
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      // An input whose shape names the batch has rows of each item in dimension
      // 0, or is a vector of offsets or of several features' lengths. Other
      // places of the batch cannot be cut.
      const ValueId id = graph.inputs[i];
      const Value& input = graph.value(id);
      for (size_t d = 0; d < input.shape.size(); ++d) {
        const std::vector<std::string> symbols = input.shape[d].Symbols();
        if (std::count(symbols.begin(), symbols.end(), graph.batch_symbol) == 0)
          continue;
        const auto& ragged = maker.ragged(i);
        const bool offsets = ragged && ragged->is_offsets;
        // Offsets that include the last have an entry more than rows.
        const int64_t last = offsets && ragged->include_last_offset ? 1 : 0;
        int64_t entries = int64_t{input.shape[d] == batch + SymExpr(last)};
        if (alone && !offsets) entries = EntriesPerItem(graph, uses, id, d);
        if (d == 0 && entries == 0 && !offsets && input.shape.size() == 1 &&
            base::IsInt32OrInt64(input.dtype)) {
          several.push_back(i);  // lengths of several features: below
          continue;
        }
        // A matrix of offsets has a row for each table.
        const size_t expected = offsets && input.shape.size() == 2 ? 1 : 0;
        if (d != expected || entries == 0) {
          return absl::UnimplementedError(
              absl::StrCat("input ", input.name, " has the size ",
                           input.shape[d].ToString(), " in dimension ", d));
        }
        picker.roles_[i] = offsets ? Role::kOffsets : Role::kRows;
        picker.entries_[i] = entries;
        const int64_t rows = (maker.sample()[i].dims[d] - last) / entries;
        if (picker.rows_ != 0 && picker.rows_ != rows) {
          return absl::InvalidArgumentError(
              absl::StrCat("input ", input.name, " has ", rows,
                           " rows where others have ", picker.rows_));
        }
        picker.rows_ = rows;
      }
    }
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      if (picker.roles_[i] == Role::kFixed || !maker.ragged(i)) continue;
      const RaggedInput& ragged = *maker.ragged(i);
      const size_t rank = maker.sample()[i].dims.size();
      const bool matrix =
          ragged.is_offsets && rank == 2 &&
          (!ragged.lists.empty() || maker.sample()[ragged.ids].dims[0] ==
                                        maker.sample()[i].dims[0]);
      if (rank != 1 && !matrix) {
        return absl::UnimplementedError(
            absl::StrCat("input ", graph.value(graph.inputs[i]).name,
                         " holds bags in ", rank, " dimensions"));
      }
      // The ids of these bags are cut by the same offsets.
      picker.bags_of_.resize(graph.inputs.size());
      const std::vector<size_t> ids =
          ragged.lists.empty() ? std::vector<size_t>{ragged.ids} : ragged.lists;
      for (size_t row = 0; row < ids.size(); ++row) {
        std::optional<Bags>& bags = picker.bags_of_[ids[row]];
        if (bags && !ragged.lists.empty()) {
          return absl::UnimplementedError(absl::StrCat(
              "several rows of input ", graph.value(graph.inputs[i]).name,
              " divide input ", graph.value(graph.inputs[ids[row]]).name));
        }
        bags = Bags{i, row};
        picker.roles_[ids[row]] = Role::kBags;
      }
    }
    // Rows that are contents of bags, such as a user's candidates, are not
    // chosen without their offsets.
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      const auto& ragged = maker.ragged(i);
      if (ragged && ragged->is_offsets && picker.roles_[i] == Role::kFixed &&
          picker.roles_[ragged->ids] == Role::kRows) {
        return absl::UnimplementedError(absl::StrCat(
            "the rows of input ", graph.value(graph.inputs[ragged->ids]).name,
            " are entries of the bags of input ",
            graph.value(graph.inputs[i]).name));
      }
    }
    picker.FindBesideBags(graph);
    if (picker.rows_ == 0) {
      return absl::UnimplementedError(
          "no input has the batch size as a dimension");
    }
    picker.FindKeyed(graph);
    REFRACT_RETURN_IF_ERROR(picker.CheckMatrices(graph));
    for (const size_t i : several) {
      if (picker.roles_[i] != Role::kFixed) continue;
      const Value& input = graph.value(graph.inputs[i]);
      return absl::UnimplementedError(
          absl::StrCat("input ", input.name, " has the size ",
                       input.shape[0].ToString(), " in dimension 0"));
    }
    return picker;
  }

  int64_t rows() const { return rows_; }

  // Whether each matrix of ids is still one, that is, the bags of `rows` have
  // as many ids in each of its rows.
  bool CanPick(const std::vector<int64_t>& rows) const {
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i] != Role::kBags || !HasRowOfEach(*bags_of_[i])) continue;
      const int64_t length = LengthOf(BagRanges(bags_of_[i]->offsets, 0, rows));
      for (int64_t row = 1; row < maker_.sample()[i].dims[0]; ++row) {
        if (LengthOf(BagRanges(bags_of_[i]->offsets, row, rows)) != length) {
          return false;
        }
      }
    }
    return true;
  }

  // "At least 2" of an exporter means rows. Sizes that count the entries of
  // keyed bags may be as small as in `inputs`, a request that ran correctly.
  void LowerLimits(const std::vector<base::Tensor>& inputs,
                   Graph& graph) const {
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i] != Role::kKeyLengths && roles_[i] != Role::kKeyValues) {
        continue;
      }
      const auto symbol = graph.value(graph.inputs[i]).shape[0].symbol();
      for (SymbolRange& range : graph.symbols) {
        if (range.symbol == symbol) {
          range.min = std::min(range.min, inputs[i].dims()[0]);
        }
      }
    }
  }

  // CanPick(rows).
  absl::StatusOr<std::vector<base::Tensor>> Pick(
      const std::vector<int64_t>& rows) const {
    std::vector<base::Tensor> tensors;
    for (size_t i = 0; i < roles_.size(); ++i) {
      const base::TensorView& from = maker_.sample()[i];
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
          tensor = PickRanges(from, KeyedRows(rows));
          break;
        case Role::kKeyValues:
          tensor = PickRanges(from, KeyedBags(rows));
          break;
      }
      if (!tensor.ok()) return tensor.status();
      tensors.push_back(*std::move(tensor));
    }
    return tensors;
  }

 private:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };

  // The offsets or lengths of an input's bags; of a matrix of offsets the row
  // that divides a list.
  struct Bags {
    size_t offsets = 0;
    size_t row = 0;
  };

  explicit RowPicker(const ProbeMaker& maker) : maker_(maker) {}

  bool IsMatrixOfOffsets(size_t input) const {
    return maker_.sample()[input].dims.size() == 2;
  }
  // Whether the bags lie in a matrix with a row for each row of the offsets.
  bool HasRowOfEach(const Bags& bags) const {
    return IsMatrixOfOffsets(bags.offsets) &&
           maker_.ragged(bags.offsets)->lists.empty();
  }
  static int64_t LengthOf(const std::vector<Range>& ranges) {
    int64_t length = 0;
    for (const Range& range : ranges) length += range.end - range.begin;
    return length;
  }

  // Unimplemented names an input that varies in a way that is not known, beside
  // bags whose offsets are a matrix.
  absl::Status CheckMatrices(const Graph& graph) const {
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

  // Inputs with an entry for each id of another input's bags, such as weights.
  void FindBesideBags(const Graph& graph) {
    const std::vector<Role> roles = roles_;
    for (size_t i = 0; i < roles.size(); ++i) {
      const std::vector<SymExpr>& shape = graph.value(graph.inputs[i]).shape;
      if (roles[i] != Role::kFixed || shape.empty()) continue;
      for (size_t ids = 0; ids < roles.size(); ++ids) {
        // Same symbolic size and same size in the sample as the ids.
        if (roles[ids] != Role::kBags) continue;
        const std::vector<SymExpr>& other =
            graph.value(graph.inputs[ids]).shape;
        const bool matrix = other.size() == 2;
        if (matrix ? shape != other || shape[1].constant().has_value()
                   : shape[0] != other[0] || shape[0].constant().has_value()) {
          continue;
        }
        const base::Dims& dims = maker_.sample()[i].dims;
        const base::Dims& of_ids = maker_.sample()[ids].dims;
        if (matrix ? dims != of_ids : dims[0] != of_ids[0]) continue;
        roles_[i] = Role::kBags;
        bags_of_[i] = bags_of_[ids];
        break;
      }
    }
  }

  // Integers, equally many per row, that add up to the length of other vectors,
  // and whose own length varies: lengths of bags, whatever looks the ids up.
  void FindKeyed(const Graph& graph) {
    for (size_t i = 0; i < roles_.size(); ++i) {
      const base::TensorView& lengths = maker_.sample()[i];
      const Value& input = graph.value(graph.inputs[i]);
      if (roles_[i] != Role::kFixed ||
          !base::IsInt32OrInt64(lengths.dtype) || lengths.dims.size() != 1 ||
          lengths.dims[0] == 0 || lengths.dims[0] % rows_ != 0 ||
          input.shape.size() != 1 || input.shape[0].constant()) {
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
        const base::Dims& other = maker_.sample()[k].dims;
        if (k != i && roles_[k] == Role::kFixed && other.size() == 1 &&
            other[0] == total) {
          roles_[k] = Role::kKeyValues;
          found = true;
        }
      }
      if (!found) continue;
      roles_[i] = Role::kKeyLengths;
      keyed_lengths_ = i;
      return;  // several cannot be distinguished
    }
  }

  // Indexes into the lengths of `rows`, feature by feature.
  // Lengths lie feature after feature: [f0 of all rows][f1 of all rows] …
  std::vector<Range> KeyedRows(const std::vector<int64_t>& rows) const {
    const int64_t count = maker_.sample()[keyed_lengths_].dims[0];
    std::vector<Range> ranges;
    for (int64_t first = 0; first < count; first += rows_) {
      for (int64_t row : rows) ranges.push_back({first + row, first + row + 1});
    }
    return ranges;
  }

  std::vector<Range> KeyedBags(const std::vector<int64_t>& rows) const {
    const base::TensorView& lengths = maker_.sample()[keyed_lengths_];
    // begins[i]: where bag i begins in the values; prefix sums of the lengths.
    std::vector<int64_t> begins = {0};
    for (int64_t i = 0; i < lengths.dims[0]; ++i) {
      begins.push_back(begins.back() + IntAt(lengths, i));
    }
    std::vector<Range> ranges;
    for (const Range& place : KeyedRows(rows)) {
      ranges.push_back({begins[place.begin], begins[place.end]});
    }
    return ranges;
  }

  static std::vector<Range> RowRanges(const std::vector<int64_t>& rows,
                                      int64_t entries) {
    std::vector<Range> ranges;
    for (int64_t row : rows) {
      ranges.push_back({row * entries, (row + 1) * entries});
    }
    return ranges;
  }

  // Ranges of the bags of `rows`, by the offsets or lengths in input `i`, of a
  // matrix in its row `at`.
  std::vector<Range> BagRanges(size_t i, size_t at,
                               const std::vector<int64_t>& rows) const {
    const base::TensorView& bags = maker_.sample()[i];
    const RaggedInput& ragged = *maker_.ragged(i);
    const size_t ids = ragged.lists.empty() ? ragged.ids : ragged.lists[at];
    const int64_t total = maker_.sample()[ids].dims.back();
    const auto bag = [&](int64_t row) {
      return IntAt(bags, static_cast<int64_t>(at) * bags.dims.back() + row);
    };
    std::vector<Range> all;
    int64_t begin = 0;
    for (int64_t row = 0; row < rows_; ++row) {
      Range range;
      if (!ragged.is_offsets) {
        range = {begin, begin + bag(row)};
        begin = range.end;
      } else {
        const bool last = row + 1 == rows_ && !ragged.include_last_offset;
        range = {bag(row), last ? total : bag(row + 1)};
      }
      // Offsets of a sample may be anything.
      range.begin = std::clamp<int64_t>(range.begin, 0, total);
      range.end = std::clamp<int64_t>(range.end, range.begin, total);
      all.push_back(range);
    }
    std::vector<Range> ranges;
    for (int64_t row : rows) ranges.push_back(all[row]);
    return ranges;
  }

  absl::StatusOr<base::Tensor> PickOffsets(
      size_t i, const std::vector<int64_t>& rows) const {
    const bool closes = maker_.ragged(i)->include_last_offset;
    const auto count = static_cast<int64_t>(rows.size()) + (closes ? 1 : 0);
    base::Dims dims = maker_.sample()[i].dims;
    dims.back() = count;
    REFRACT_ASSIGN_OR_RETURN(
        base::Tensor offsets,
        base::Tensor::Allocate(maker_.sample()[i].dtype, dims));
    int64_t k = 0;
    for (int64_t at = 0; at * count < offsets.view().num_elements(); ++at) {
      // Picked bags lie one after the other, so their offsets begin anew at 0.
      int64_t begin = 0;
      for (const Range& range : BagRanges(i, at, rows)) {
        SetInt(offsets, k++, begin);
        begin += range.end - range.begin;
      }
      if (closes) SetInt(offsets, k++, begin);
    }
    return offsets;
  }

  absl::StatusOr<base::Tensor> PickBags(
      size_t i, const std::vector<int64_t>& rows) const {
    const base::TensorView& from = maker_.sample()[i];
    const Bags& bags = *bags_of_[i];
    std::vector<Range> ranges = BagRanges(bags.offsets, bags.row, rows);
    if (!HasRowOfEach(bags)) return PickRanges(from, ranges);
    // A matrix with a row for each row of the offsets: its elements are cut.
    const int64_t length = LengthOf(ranges);
    base::TensorView elements = from;
    elements.dims = {from.num_elements()};
    std::vector<Range> all;
    for (int64_t at = 0; at < from.dims[0]; ++at) {
      for (const Range& range : BagRanges(bags.offsets, at, rows)) {
        const int64_t first = at * from.dims[1];
        all.push_back({first + range.begin, first + range.end});
      }
    }
    return PickRanges(elements, all, {from.dims[0], length});
  }

  // Entries of dimension 0. `shape`: the result's, if it is not a list of them.
  static absl::StatusOr<base::Tensor> PickRanges(
      const base::TensorView& from, const std::vector<Range>& ranges,
      const base::Dims& shape = {}) {
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
      if (bytes > 0)
        std::memcpy(to, from.data + range.begin * row_bytes, bytes);
      to += bytes;
    }
    return tensor;
  }

  const ProbeMaker& maker_;
  std::vector<Role> roles_;
  std::vector<int64_t> entries_;  // that a row of the input has; for kRows
  std::vector<std::optional<Bags>> bags_of_;  // by input
  size_t keyed_lengths_ = 0;  // the input that has the role kKeyLengths
  int64_t rows_ = 0;
};

bool Close(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return a == b || std::fabs(a - b) <= kAbsolute + kRelative * std::fabs(b);
}

// Compares row 0 of two tensors; `a` has `a_rows` and `b` has `b_rows`. Tensors
// without rows have nothing to compare.
bool SameFirstRow(const base::Tensor& a, int64_t a_rows, const base::Tensor& b,
                  int64_t b_rows) {
  if (b.dims().empty() || b.dims()[0] != b_rows) return true;
  if (a.dims().size() != b.dims().size() || a.dims()[0] != a_rows ||
      a.bytes() * b_rows != b.bytes() * a_rows) {
    return false;
  }
  const size_t bytes = a.bytes() / a_rows;
  if (a.dtype() == base::DType::kFloat32) {
    for (size_t i = 0; i < bytes / sizeof(float); ++i) {
      if (!Close(a.view().as<float>()[i], b.view().as<float>()[i])) {
        return false;
      }
    }
    return true;
  }
  if (a.dtype() == base::DType::kFloat64) {
    for (size_t i = 0; i < bytes / sizeof(double); ++i) {
      if (!Close(a.view().as<double>()[i], b.view().as<double>()[i])) {
        return false;
      }
    }
    return true;
  }
  // Half floats round at about kRelative; fp32 models would show such defects.
  if (base::IsFloatingPoint(a.dtype())) return true;
  return std::memcmp(a.data(), b.data(), bytes) == 0;
}

bool SameFirstRows(const InterpreterRun& a, int64_t a_rows,
                   const InterpreterRun& b, int64_t b_rows) {
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    if (!SameFirstRow(a.outputs[i], a_rows, b.outputs[i], b_rows)) return false;
  }
  return true;
}

absl::Status RunRows(const Interpreter& interpreter, const RowPicker& picker,
                     const std::vector<int64_t>& rows, InterpreterRun& run,
                     std::vector<base::Tensor>* made = nullptr) {
  REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs, picker.Pick(rows));
  std::vector<base::TensorView> views;
  for (const base::Tensor& input : inputs) views.push_back(input.view());
  const absl::Status status = interpreter.Run(views, run);
  if (made != nullptr) *made = std::move(inputs);
  return status;
}

}  // namespace

absl::Status CheckRows(absl::Span<const NamedTensor> sample,
                       const WeightStore& weights, Graph& graph,
                       std::vector<std::string>& notes) {
  if (graph.batch_symbol.empty()) return absl::OkStatus();
  REFRACT_ASSIGN_OR_RETURN(const ProbeMaker maker,
                           ProbeMaker::Create(graph, sample));
  const absl::StatusOr<RowPicker> picker = RowPicker::Create(graph, maker);
  if (absl::IsUnimplemented(picker.status())) {
    notes.push_back(
        absl::StrCat("a batch of 1 was not compared with larger batches: ",
                     picker.status().message()));
    return absl::OkStatus();
  }
  if (!picker.ok()) return picker.status();
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<const Interpreter> interpreter,
                           Interpreter::Create(graph, weights));
  if (!picker->CanPick({0})) {
    notes.push_back(
        "a batch of 1 was not compared with larger batches: the bags of the "
        "sample's first row have different numbers of ids, which fit into no "
        "matrix");
    return absl::OkStatus();
  }
  InterpreterRun two;
  InterpreterRun three;
  absl::Status tried = RunRows(*interpreter, *picker, {0, 0}, two);
  if (tried.ok()) tried = RunRows(*interpreter, *picker, {0, 0, 0}, three);
  if (!tried.ok() &&
      (graph.source == SourceFormat::kTorchExport || graph.min_batch > 2)) {
    // The exporter has proved its sizes: rows were not separated correctly. Or
    // the model needs more than two rows.
    notes.push_back(
        absl::StrCat("a batch of 1 was not compared with larger batches: ",
                     tried.message()));
    return absl::OkStatus();
  }
  if (!tried.ok()) return tried;
  // A sum over the batch grows with it: then one row rightly differs from two.
  bool mixes = !SameFirstRows(two, 2, three, 3);
  // Row 0 beside three other rows of the sample: enough to notice a mean or
  // softmax over the batch, few enough for an import.
  for (int64_t row = 1; row < std::min<int64_t>(picker->rows(), 4); ++row) {
    if (!picker->CanPick({0, row})) continue;
    InterpreterRun run;
    REFRACT_RETURN_IF_ERROR(RunRows(*interpreter, *picker, {0, row}, run));
    mixes |= !SameFirstRows(two, 2, run, 2);
  }
  if (mixes) {
    graph.rows = {.use = RowUse::kTogether,
                  .why =
                      "the sample's rows get other results beside other rows, "
                      "so rows depend on each other"};
  }
  if (graph.min_batch > 2) return absl::OkStatus();
  InterpreterRun one;
  std::vector<base::Tensor> single;
  const absl::Status status = RunRows(*interpreter, *picker, {0}, one, &single);
  std::string problem;
  if (!status.ok()) {
    problem = std::string(status.message());
  } else if (!SameFirstRows(one, 1, two, 2) && !mixes) {
    problem =
        "a row alone gets another result than in a batch of two equal rows";
  }
  if (problem.empty()) picker->LowerLimits(single, graph);
  if (!problem.empty()) {
    graph.min_batch = 2;
    notes.push_back(absl::StrCat("requests need 2 rows or more: ", problem));
  } else if (graph.min_batch == 2) {
    graph.min_batch = 1;
    notes.push_back(
        "the export requires a batch of 2 or more, but the graph gives the "
        "same results at a batch of 1, so it is served");
  }
  return absl::OkStatus();
}

}  // namespace refract::models
