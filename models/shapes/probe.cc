#include "models/shapes/probe.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/integers.h"
#include "base/status_macros.h"
#include "models/graph/index_ranges.h"
#include "models/graph/op_traits.h"
#include "models/passes/complex_numbers.h"

namespace refract::models {
namespace {

using base::IntAt;
using base::IsInt32OrInt64;
using base::SetInt;

// Begin of bag `i` if `total` ids are spread over `bags` bags.
int64_t Begin(int64_t i, int64_t total, int64_t bags) {
  return bags == 0 ? 0 : i * total / bags;
}

// Copies with every index taken modulo the source's size, beginning at row
// `shift`.
void Tile(const base::TensorView& from, int64_t shift, base::Tensor& to) {
  const size_t element = base::SizeOf(from.dtype);
  const size_t rank = from.dims.size();
  if (to.bytes() == 0) return;
  if (from.bytes == 0) {
    std::memset(to.data(), 0, to.bytes());
    return;
  }
  const int64_t count = static_cast<int64_t>(to.bytes() / element);
  // `i` is an element's place in `to`, row-major; `rest` gives its index in
  // each dimension from the last to the first, and `source` collects the place
  // in `from`.
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t source = 0;
    int64_t step = 1;
    for (size_t d = rank; d-- > 0;) {
      const int64_t index = rest % to.dims()[d] + (d == 0 ? shift : 0);
      source += index % from.dims[d] * step;
      rest /= to.dims()[d];
      step *= from.dims[d];
    }
    std::memcpy(to.data() + i * element, from.data + source * element, element);
  }
}

void Change(ProbeContents contents, base::Tensor& tensor) {
  const size_t element = base::SizeOf(tensor.dtype());
  const bool floats = base::IsFloatingPoint(tensor.dtype());
  const bool flags = tensor.dtype() == base::DType::kBool;
  if (contents == ProbeContents::kOpposite) {
    for (size_t at = 0; at < tensor.bytes(); at += element) {
      std::byte* const value = tensor.data() + at;
      if (floats) {
        value[element - 1] ^= std::byte{0x80};  // the sign
      } else if (flags) {
        *value ^= std::byte{1};
      } else {
        std::memset(value, 0, element);
      }
    }
  } else if (contents == ProbeContents::kEqual && !floats && !flags) {
    for (size_t at = element; at < tensor.bytes(); at += element) {
      std::memcpy(tensor.data() + at, tensor.data(), element);
    }
  }
}

// Whether an operator reads ids in a way that FindIdInputs() does not see.
// In such a graph any vector of integers may hold the ids of bags.
bool HidesIds(const Graph& graph) {
  return std::any_of(
      graph.nodes.begin(), graph.nodes.end(), [&graph](const Node& node) {
        // Ids that a mask places in a padded matrix.
        if (node.op == "aten.masked_scatter.default" ||
            node.op == "aten.index_put.default") {
          return true;
        }
        // Ids that are computed, such as the remainders of hashes.
        const absl::string_view ids = EmbeddingArgsOf(node.op).indices;
        const ValueId id = ids.empty() ? kNoValue : node.ValueArg(ids);
        if (id != kNoValue && graph.value(id).producer != kNoNode) {
          const Operator& maker =
              OperatorOf(graph.nodes[graph.value(id).producer].op);
          if (maker.rows == RowRule::kPointwise && !maker.Has(kKeepsIds)) {
            return true;
          }
        }
        return !absl::StartsWith(node.op, "aten.") &&
               !absl::StartsWith(node.op, "py.") && !IsComplexOp(node.op);
      });
}

// Integers that add up to the length of one other input, and are not ids, count
// as the lengths of its bags; integers that rise from 0 to that length as their
// offsets: a model may pool the bags itself. The offsets of a single bag, 0 and
// its length, do both; a size n + 1 tells. `divided`: inputs whose bags an
// operator shows; the lengths of something else may add up to as many.
std::optional<RaggedInput> FindBags(size_t input, const Value& value,
                                    const std::vector<base::TensorView>& sample,
                                    const std::vector<bool>& is_id,
                                    const std::vector<bool>& divided,
                                    bool hides_ids) {
  const base::TensorView& bags = sample[input];
  if (!IsInt32OrInt64(bags.dtype) || is_id[input] || bags.dims.empty() ||
      bags.num_elements() == 0) {
    return std::nullopt;
  }
  int64_t sum = 0;
  bool rises = bags.dims.size() == 1 && IntAt(bags, 0) == 0;
  int64_t last = 0;
  for (int64_t i = 0; i < bags.num_elements(); ++i) {
    const int64_t length = IntAt(bags, i);
    if (length < 0 || length > (int64_t{1} << 40)) return std::nullopt;
    sum += length;
    rises &= length >= last;
    last = length;
  }
  if (sum == 0) return std::nullopt;
  // Whether an input is a vector of ids of this length.
  const auto holds = [&](size_t ids, int64_t length) {
    return ids != input && !divided[ids] && sample[ids].dims.size() == 1 &&
           sample[ids].dims[0] == length &&
           (is_id[ids] || (hides_ids && IsInt32OrInt64(sample[ids].dtype)));
  };
  const auto names = value.shape.empty() ? std::vector<std::string>()
                                         : value.shape[0].Symbols();
  const bool one_more =
      names.size() == 1 &&
      value.shape[0] == SymExpr::Symbol(names[0]) + SymExpr(1);
  for (size_t ids = 0; !(rises && one_more) && ids < sample.size(); ++ids) {
    if (holds(ids, sum)) return RaggedInput{.ids = ids};
  }
  for (size_t ids = 0; rises && ids < sample.size(); ++ids) {
    if (holds(ids, last)) {
      return RaggedInput{
          .ids = ids, .is_offsets = true, .include_last_offset = true};
    }
  }
  return std::nullopt;
}

// Spreads `total` ids evenly. Each row of a matrix of offsets has its own bags;
// lengths fill theirs one after the other.
void FillRagged(const RaggedInput& ragged, const InputDims& dims, int64_t count,
                base::Tensor& tensor) {
  // Offsets begin anew with each row of a matrix, `row` entries each; lengths
  // are one series. Bag k of `bags` begins at k · total / bags.
  const int64_t row = ragged.is_offsets ? tensor.dims().back() : count;
  const int64_t bags = ragged.include_last_offset ? row - 1 : row;
  for (int64_t k = 0; k < count; ++k) {
    const auto list = static_cast<size_t>(k / row);
    const size_t ids =
        list < ragged.lists.size() ? ragged.lists[list] : ragged.ids;
    const int64_t total = dims[ids].back();
    const int64_t begin = Begin(k % row, total, bags);
    SetInt(
        tensor, k,
        ragged.is_offsets ? begin : Begin(k % row + 1, total, bags) - begin);
  }
}

}  // namespace

absl::StatusOr<ProbeMaker> ProbeMaker::Create(
    const Graph& graph, absl::Span<const NamedTensor> sample) {
  absl::flat_hash_map<absl::string_view, size_t> places;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    places[graph.value(graph.inputs[i]).name] = i;
  }
  ProbeMaker maker;
  maker.sample_.resize(graph.inputs.size());
  std::vector<bool> given(graph.inputs.size(), false);
  for (const NamedTensor& named : sample) {
    const auto it = places.find(named.name);
    if (it == places.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has no input ", named.name));
    }
    if (given[it->second]) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", named.name, " is given twice"));
    }
    const base::DType want = graph.value(graph.inputs[it->second]).dtype;
    if (want != base::DType::kUnknown && want != named.tensor.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input ", named.name, " is ", base::Name(named.tensor.dtype),
          ", not ", base::Name(want)));
    }
    REFRACT_ASSIGN_OR_RETURN(
        const size_t bytes,
        base::ByteSize(named.tensor.dtype, named.tensor.dims));
    if (bytes != named.tensor.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", named.name, " has ", named.tensor.bytes,
                       " bytes, its shape needs ", bytes));
    }
    given[it->second] = true;
    maker.sample_[it->second] = named.tensor;
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input ", graph.value(graph.inputs[i]).name, " is missing"));
    }
  }

  maker.ragged_.resize(graph.inputs.size());
  std::vector<bool> is_id(graph.inputs.size(), false);
  // A TorchScript graph has no shapes yet, which tell rows of a matrix from
  // items.
  Graph shaped = graph;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    Value& input = shaped.values[graph.inputs[i]];
    if (input.has_shape) continue;
    input.has_shape = true;
    for (const int64_t size : maker.sample_[i].dims) {
      input.shape.push_back(SymExpr(size));
    }
  }
  for (const IdInput& use : FindIdInputs(shaped)) {
    const auto input = places.find(graph.value(use.input).name);
    if (input == places.end()) continue;
    if (!use.is_offsets) {
      is_id[input->second] = true;
      const auto lengths = use.lengths == kNoValue
                               ? places.end()
                               : places.find(graph.value(use.lengths).name);
      if (lengths != places.end() &&
          IsInt32OrInt64(maker.sample_[lengths->second].dtype)) {
        maker.ragged_[lengths->second] = RaggedInput{.ids = input->second};
      }
      continue;
    }
    if (use.ids == kNoValue ||
        !IsInt32OrInt64(maker.sample_[input->second].dtype)) {
      continue;
    }
    const auto ids = places.find(graph.value(use.ids).name);
    const size_t rank = maker.sample_[input->second].dims.size();
    // Offsets of a matrix of ids are a matrix, row by row. Or each row has a
    // list of ids.
    if (ids == places.end() || rank == 0) continue;
    const size_t of_ids = maker.sample_[ids->second].dims.size();
    const bool lists = rank == 2 && of_ids == 1 && use.row >= 0 &&
                       use.row < maker.sample_[input->second].dims[0];
    if (of_ids != rank && !lists) continue;
    std::optional<RaggedInput>& ragged = maker.ragged_[input->second];
    if (!ragged) {
      ragged = RaggedInput{.ids = ids->second,
                           .is_offsets = true,
                           .include_last_offset = use.include_last_offset};
    }
    if (lists) {
      ragged->lists.resize(maker.sample_[input->second].dims[0], ragged->ids);
      ragged->lists[use.row] = ids->second;
    }
  }
  std::vector<bool> divided(graph.inputs.size(), false);
  for (const std::optional<RaggedInput>& ragged : maker.ragged_) {
    if (!ragged) continue;
    divided[ragged->ids] = true;
    for (const size_t list : ragged->lists) divided[list] = true;
  }
  const bool hides_ids = HidesIds(graph);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (!maker.ragged_[i]) {
      maker.ragged_[i] = FindBags(i, graph.value(graph.inputs[i]),
                                  maker.sample_, is_id, divided, hides_ids);
    }
  }
  maker.FindLimits(graph, is_id);
  return maker;
}

void ProbeMaker::FindLimits(const Graph& graph,
                            const std::vector<bool>& is_id) {
  limits_.resize(sample_.size());
  const std::vector<ValueId> numbers = FindRowNumbers(graph);
  for (size_t i = 0; i < sample_.size(); ++i) {
    const base::TensorView& tensor = sample_[i];
    if (is_id[i] || ragged_[i] || !IsInt32OrInt64(tensor.dtype) ||
        std::find(numbers.begin(), numbers.end(), graph.inputs[i]) ==
            numbers.end()) {
      continue;
    }
    int64_t largest = 0;
    for (int64_t k = 0; k < tensor.num_elements(); ++k) {
      largest = std::max(largest, IntAt(tensor, k));
    }
    for (size_t input = 0; input < sample_.size(); ++input) {
      const base::Dims& dims = sample_[input].dims;
      for (size_t dim = 0; dim < dims.size(); ++dim) {
        if (dims[dim] > largest) limits_[i].push_back({input, dim});
      }
    }
  }
}

absl::StatusOr<std::vector<base::Tensor>> ZeroInputs(
    const Graph& graph, const SymbolBindings& sizes) {
  std::vector<base::Tensor> inputs;
  for (const ValueId id : graph.inputs) {
    base::Dims dims;
    for (const SymExpr& size : graph.value(id).shape) {
      REFRACT_ASSIGN_OR_RETURN(const int64_t value, size.Evaluate(sizes));
      dims.push_back(value);
    }
    REFRACT_ASSIGN_OR_RETURN(
        base::Tensor tensor,
        base::Tensor::Allocate(graph.value(id).dtype, dims));
    std::fill_n(tensor.data(), tensor.bytes(), std::byte{0});
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

InputDims ProbeMaker::sample_dims() const {
  InputDims dims;
  for (const base::TensorView& tensor : sample_) dims.push_back(tensor.dims);
  return dims;
}

absl::StatusOr<std::vector<base::Tensor>> ProbeMaker::Make(
    const InputDims& dims, int64_t shift, ProbeContents contents) const {
  std::vector<base::Tensor> tensors;
  for (size_t i = 0; i < sample_.size(); ++i) {
    REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                             base::Tensor::Allocate(sample_[i].dtype, dims[i]));
    const int64_t count =
        static_cast<int64_t>(tensor.bytes() / base::SizeOf(tensor.dtype()));
    if (!ragged_[i]) {
      Tile(sample_[i], shift, tensor);
      Change(contents, tensor);
    } else if (count > 0) {
      FillRagged(*ragged_[i], dims, count, tensor);
    }
    // The least of the sizes is right whichever counts the rows. Numbers never
    // grow, since they may index something of a fixed size as well.
    int64_t limit = INT64_MAX;
    for (const Place& place : limits_[i]) {
      limit = std::min(limit, dims[place.input][place.dim]);
    }
    for (int64_t k = 0; k < count && limit > 0 && limit < INT64_MAX; ++k) {
      SetInt(tensor, k, IntAt(tensor.view(), k) % limit);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::Status Prober::Run(const InputDims& dims, InterpreterRun& run,
                         int64_t shift, ProbeContents contents) const {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<base::Tensor> inputs,
                           maker_.Make(dims, shift, contents));
  std::vector<base::TensorView> views;
  for (const base::Tensor& input : inputs) views.push_back(input.view());
  return interpreter_.Run(views, run);
}

}  // namespace refract::models
