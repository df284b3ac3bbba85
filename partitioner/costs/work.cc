#include "partitioner/costs/work.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/graph/op_traits.h"

namespace refract::partitioner {
namespace {

using models::Argument;
using models::CostRule;
using models::Graph;
using models::kNoValue;
using models::Node;
using models::OpClass;
using models::SymbolBindings;
using models::SymExpr;
using models::Value;
using models::ValueId;
using models::ValueKind;

using Dims = std::vector<double>;

// Sizes of the dimensions of a value; none for a number. Doubles, because a
// product of sizes may exceed an int64.
std::optional<Dims> DimsOf(const Value& value, const SymbolBindings& sizes) {
  if (value.kind != ValueKind::kTensor) return Dims{};
  if (!value.has_shape) return std::nullopt;
  Dims dims;
  for (const SymExpr& extent : value.shape) {
    const absl::StatusOr<int64_t> size = extent.Evaluate(sizes);
    if (!size.ok()) return std::nullopt;
    dims.push_back(static_cast<double>(*size));
  }
  return dims;
}

double Product(const Dims& dims) {
  double product = 1;
  for (const double dim : dims) product *= dim;
  return product;
}

std::optional<double> ElementsOf(const Graph& graph, ValueId id,
                                 const SymbolBindings& sizes) {
  const std::optional<Dims> dims = DimsOf(graph.value(id), sizes);
  if (!dims) return std::nullopt;
  return Product(*dims);
}

// The first result that the graph uses; kNoValue if it uses none.
ValueId MainOutput(const Node& node) {
  for (const ValueId id : node.outputs) {
    if (id != kNoValue) return id;
  }
  return kNoValue;
}

const Value* ArgValue(const Graph& graph, const Node& node,
                      absl::string_view name) {
  const models::ValueId id = node.ValueArg(name);
  return id == kNoValue ? nullptr : &graph.value(id);
}

// A weight, or a weight seen through views: decomposed exports transpose the
// weights of their linear layers.
bool IsWeight(const Graph& graph, ValueId id) {
  while (!graph.value(id).is_weight()) {
    const models::NodeId producer = graph.value(id).producer;
    if (producer == models::kNoNode) return false;
    const Node& node = graph.nodes[producer];
    const std::vector<ValueId> inputs = models::InputsOf(node);
    if (models::ClassOf(node.op) != OpClass::kView || inputs.empty()) {
      return false;
    }
    id = inputs.front();
  }
  return true;
}

// 2 · product of all extents in the equation: one multiply-add per combination.
// Exact for two operands.
std::optional<double> EinsumFlops(const Graph& graph, const Node& node,
                                  const SymbolBindings& sizes) {
  const Argument* equation = node.FindArg("equation");
  const Argument* tensors = node.FindArg("tensors");
  if (equation == nullptr || tensors == nullptr) return std::nullopt;
  const auto* text = std::get_if<std::string>(equation);
  const auto* ids = std::get_if<models::ValueList>(tensors);
  // An ellipsis stands for dimensions that the equation does not name: unknown
  // work.
  if (text == nullptr || ids == nullptr || absl::StrContains(*text, ".")) {
    return std::nullopt;
  }
  std::string left = text->substr(0, text->find("->"));
  left.erase(std::remove(left.begin(), left.end(), ' '), left.end());
  const std::vector<std::string> terms = absl::StrSplit(left, ',');
  if (terms.size() != ids->size()) return std::nullopt;
  std::map<char, double> extents;
  for (size_t i = 0; i < terms.size(); ++i) {
    if ((*ids)[i] == kNoValue) return std::nullopt;
    const std::optional<Dims> dims = DimsOf(graph.value((*ids)[i]), sizes);
    if (!dims || dims->size() != terms[i].size()) return std::nullopt;
    for (size_t d = 0; d < dims->size(); ++d) {
      double& extent = extents[terms[i][d]];
      extent = std::max(extent, (*dims)[d]);  // an extent of 1 is broadcast
    }
  }
  double product = 2;
  for (const auto& [label, extent] : extents) product *= extent;
  return product;
}

// softmax(q·kᵀ)·v: two products over query × key positions. The softmax itself
// is two orders of magnitude smaller and not counted.
std::optional<double> AttentionFlops(const Graph& graph, const Node& node,
                                     const SymbolBindings& sizes) {
  const Value* query = ArgValue(graph, node, "query");
  const Value* key = ArgValue(graph, node, "key");
  const Value* value = ArgValue(graph, node, "value");
  if (query == nullptr || key == nullptr || value == nullptr) {
    return std::nullopt;
  }
  const std::optional<Dims> q = DimsOf(*query, sizes);
  const std::optional<Dims> k = DimsOf(*key, sizes);
  const std::optional<Dims> v = DimsOf(*value, sizes);
  if (!q || !k || !v || q->size() < 2 || k->size() != q->size() ||
      v->size() != q->size()) {
    return std::nullopt;
  }
  const size_t rank = q->size();
  // Shapes are [..., positions, width]. `rows` counts query positions over all
  // batch entries and heads.
  const double keys = (*k)[rank - 2];
  const double rows = Product(*q) / std::max(1.0, (*q)[rank - 1]);
  return 2 * Product(*q) * keys + 2 * rows * keys * (*v)[rank - 1];
}

// 2 · results · product of the summed dimensions.
std::optional<double> TensordotFlops(const Graph& graph, const Node& node,
                                     double results,
                                     const SymbolBindings& sizes) {
  const Value* operand = ArgValue(graph, node, "self");
  const Argument* summed = node.FindArg("dims_self");
  if (operand == nullptr || summed == nullptr) return std::nullopt;
  const auto* list = std::get_if<models::IntList>(summed);
  const std::optional<Dims> dims = DimsOf(*operand, sizes);
  if (list == nullptr || !dims) return std::nullopt;
  double flops = 2 * results;
  const int64_t rank = static_cast<int64_t>(dims->size());
  // A summed dimension that the graph computes leaves the work unknown.
  for (const models::IntOrValue& item : *list) {
    const int64_t dim = item.literal < 0 ? item.literal + rank : item.literal;
    if (item.value != kNoValue || dim < 0 || dim >= rank) return std::nullopt;
    flops *= (*dims)[dim];
  }
  return flops;
}

// Every weight of a recurrent layer meets every row at every step once.
std::optional<double> RecurrentFlops(const Graph& graph, const Node& node,
                                     const SymbolBindings& sizes) {
  const Value* input = ArgValue(graph, node, "input");
  if (input == nullptr) return std::nullopt;
  const std::optional<Dims> dims = DimsOf(*input, sizes);
  if (!dims || dims->empty()) return std::nullopt;
  double weights = 0;
  for (const ValueId id : models::InputsOf(node)) {
    if (!graph.value(id).is_weight()) continue;
    const std::optional<double> elements = ElementsOf(graph, id, sizes);
    if (!elements) return std::nullopt;
    weights += *elements;
  }
  if (weights == 0) return std::nullopt;
  // The input is [..., features]: the other dimensions count rows and steps.
  return 2 * weights * Product(*dims) / std::max(1.0, dims->back());
}

// 2 · results · length of the dot product behind each result.
std::optional<double> DotProductFlops(const Graph& graph, const Node& node,
                                      double results,
                                      const SymbolBindings& sizes) {
  const Value* operand =
      ArgValue(graph, node, models::OperatorOf(node.op).factors[0]);
  if (operand == nullptr) return std::nullopt;
  const std::optional<Dims> dims = DimsOf(*operand, sizes);
  if (!dims || dims->empty()) return std::nullopt;
  return 2 * results * dims->back();
}

// Every result of a convolution meets the weights of its output channel, every
// input of a transposed convolution the weights of its input channel.
std::optional<double> ConvolutionFlops(const Graph& graph, const Node& node,
                                       double results,
                                       const SymbolBindings& sizes) {
  const Value* weight = ArgValue(graph, node, "weight");
  if (weight == nullptr) return std::nullopt;
  const std::optional<Dims> dims = DimsOf(*weight, sizes);
  if (!dims || dims->empty()) return std::nullopt;
  double elements = results;
  const Argument* flag = node.FindArg("transposed");
  if (absl::StrContains(node.op, "conv_transpose") ||
      (flag != nullptr && *flag == Argument(true))) {
    const Value* input = ArgValue(graph, node, "input");
    const std::optional<Dims> of_input =
        input == nullptr ? std::nullopt : DimsOf(*input, sizes);
    if (!of_input) return std::nullopt;
    elements = Product(*of_input);
  }
  // Weights are [output channels, input channels of a group, window],
  // transposed [input channels, output channels of a group, window], and of
  // conv_tbc [window, input channels, output channels].
  const double channels =
      absl::StrContains(node.op, "conv_tbc") ? dims->back() : dims->front();
  if (channels <= 0) return std::nullopt;
  return 2 * elements * Product(*dims) / channels;
}

std::optional<double> DenseFlops(const Graph& graph, const Node& node,
                                 const SymbolBindings& sizes) {
  const CostRule rule = models::OperatorOf(node.op).cost;
  const ValueId output = MainOutput(node);
  const std::optional<double> results =
      output == kNoValue ? std::nullopt : ElementsOf(graph, output, sizes);
  switch (rule) {
    case CostRule::kEinsum:
      return EinsumFlops(graph, node, sizes);
    case CostRule::kAttention:
      return AttentionFlops(graph, node, sizes);
    case CostRule::kTensordot:
      if (!results) return std::nullopt;
      return TensordotFlops(graph, node, *results, sizes);
    case CostRule::kRecurrent:
      if (!results) return std::nullopt;
      return RecurrentFlops(graph, node, sizes);
    case CostRule::kConvolution:
      if (!results) return std::nullopt;
      return ConvolutionFlops(graph, node, *results, sizes);
    case CostRule::kDotProducts:
      if (!results) return std::nullopt;
      return DotProductFlops(graph, node, *results, sizes);
    case CostRule::kOfClass:
    case CostRule::kUnknown:
      return std::nullopt;
  }
  return std::nullopt;
}

// A look-up reads one table row per id, reads the ids and writes its result. A
// bag adds each element of each row once; a plain look-up computes nothing.
std::optional<Work> LookUpWork(const Graph& graph, const Node& node,
                               const SymbolBindings& sizes) {
  const models::EmbeddingArgs args = models::EmbeddingArgsOf(node.op);
  const bool is_gather = args.weight.empty();
  const Value* table = ArgValue(graph, node, is_gather ? "self" : args.weight);
  const Value* ids = ArgValue(graph, node, is_gather ? "index" : args.indices);
  const ValueId output = MainOutput(node);
  if (table == nullptr || ids == nullptr || output == kNoValue) {
    return std::nullopt;
  }
  const std::optional<Dims> rows = DimsOf(*table, sizes);
  const std::optional<Dims> count = DimsOf(*ids, sizes);
  const std::optional<double> id_bytes = BytesOf(*ids, sizes);
  const std::optional<double> written = BytesOf(graph.value(output), sizes);
  if (!rows || rows->empty() || !count || !id_bytes || !written) {
    return std::nullopt;
  }
  // The table is [rows, elements of a row]. Only rows that ids select are read,
  // so the size of the table does not count.
  const double row_elements = Product(*rows) / std::max(1.0, (*rows)[0]);
  const double elements = Product(*count) * row_elements;
  Work work;
  work.flops =
      models::OperatorOf(node.op).rows == models::RowRule::kEmbeddingBag
          ? elements
          : 0;
  work.rows = Product(*count);
  // Tables in a row format have their own bytes per row.
  const double row_bytes =
      table->row_bytes != 0
          ? static_cast<double>(table->row_bytes)
          : row_elements * static_cast<double>(base::SizeOf(table->dtype));
  work.bytes = work.rows * row_bytes + *id_bytes + *written;
  return work;
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  flops += other.flops;
  bytes += other.bytes;
  weight_bytes += other.weight_bytes;
  rows += other.rows;
  return *this;
}

std::optional<double> BytesOf(const Value& value, const SymbolBindings& sizes) {
  if (value.kind != ValueKind::kTensor) return 8.0;
  if (value.dtype == base::DType::kUnknown) return std::nullopt;
  const std::optional<Dims> dims = DimsOf(value, sizes);
  if (!dims) return std::nullopt;
  if (value.row_bytes != 0 && !dims->empty()) {
    return (*dims)[0] * static_cast<double>(value.row_bytes);
  }
  return Product(*dims) * static_cast<double>(base::SizeOf(value.dtype));
}

std::optional<Work> WorkOf(const Graph& graph, const Node& node,
                           const SymbolBindings& sizes) {
  const OpClass op_class = models::ClassOf(graph, node);
  Work work;
  // First the arithmetic of the classes that have a formula; then, for all
  // classes left, the bytes: every operand and every result once.
  switch (op_class) {
    case OpClass::kView:
    case OpClass::kSize:
      return work;
    case OpClass::kEmbedding:
      return LookUpWork(graph, node, sizes);
    case OpClass::kDense: {
      const std::optional<double> flops = DenseFlops(graph, node, sizes);
      if (!flops) return std::nullopt;
      work.flops = *flops;
      break;
    }
    case OpClass::kUnknown:
    case OpClass::kRandom:
      return std::nullopt;
    case OpClass::kElementwise:
    case OpClass::kReduction:
    case OpClass::kNormalization:
    case OpClass::kRowMixing:
    case OpClass::kCpuOnly:
    case OpClass::kDataMovement:
      break;
  }
  double largest = 0;  // elements
  // An operand that an operator has twice (x · x) is read once.
  std::vector<ValueId> moved = models::InputsOf(node);
  std::sort(moved.begin(), moved.end());
  moved.erase(std::unique(moved.begin(), moved.end()), moved.end());
  for (const ValueId id : moved) {
    const Value& value = graph.value(id);
    if (value.kind != ValueKind::kTensor) continue;
    const std::optional<double> bytes = BytesOf(value, sizes);
    const std::optional<double> elements = ElementsOf(graph, id, sizes);
    if (!bytes || !elements) return std::nullopt;
    work.bytes += *bytes;
    if (IsWeight(graph, id)) work.weight_bytes += *bytes;
    largest = std::max(largest, *elements);
  }
  for (const ValueId id : node.outputs) {
    if (id == kNoValue || graph.value(id).kind != ValueKind::kTensor) continue;
    const std::optional<double> bytes = BytesOf(graph.value(id), sizes);
    const std::optional<double> elements = ElementsOf(graph, id, sizes);
    if (!bytes || !elements) return std::nullopt;
    work.bytes += *bytes;
    largest = std::max(largest, *elements);
  }
  // One operation per element of the largest operand or result: right for
  // element-wise operators and sums, too few for the others.
  const bool computes =
      op_class == OpClass::kElementwise || op_class == OpClass::kReduction ||
      op_class == OpClass::kNormalization || op_class == OpClass::kRowMixing;
  if (computes) work.flops = largest;
  return work;
}

absl::Status CheckSizes(const Graph& graph, const SymbolBindings& sizes) {
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kTensor || !value.has_shape) continue;
    for (size_t d = 0; d < value.shape.size(); ++d) {
      const absl::StatusOr<int64_t> size = value.shape[d].Evaluate(sizes);
      if (!size.ok() || *size >= 0) continue;
      std::string at;
      for (const std::string& symbol : value.shape[d].Symbols()) {
        absl::StrAppend(&at, at.empty() ? "" : ", ", symbol, " = ",
                        sizes.at(symbol));
      }
      const models::NodeId producer = value.producer;
      return absl::InvalidArgumentError(
          absl::StrCat(producer == models::kNoNode
                           ? absl::StrCat("input ", value.name)
                           : absl::StrCat(graph.nodes[producer].name, " (",
                                          graph.nodes[producer].op, ")"),
                       ": size ", *size, " in dimension ", d, " at ", at,
                       " (--size changes it)"));
    }
  }
  return absl::OkStatus();
}

namespace {

// The least size from `size` on at which no tensor that depends on `symbol` is
// empty; `size` if the search limit is reached without finding such a size.
int64_t LeastSize(const Graph& graph, const std::string& symbol, int64_t size,
                  SymbolBindings sizes) {
  // Longer than any kernel of a sequence model.
  constexpr int64_t kReach = 1024;
  // Only dimensions that are empty at `size` ask for a larger value of the
  // symbol, for example a sequence shorter than a convolution's window.
  std::vector<const SymExpr*> extents;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kTensor || !value.has_shape) continue;
    for (const SymExpr& extent : value.shape) {
      sizes[symbol] = size;
      const absl::StatusOr<int64_t> now = extent.Evaluate(sizes);
      if (!now.ok() || *now > 0) continue;
      const std::vector<std::string> symbols = extent.Symbols();
      if (std::find(symbols.begin(), symbols.end(), symbol) != symbols.end()) {
        extents.push_back(&extent);
      }
    }
  }
  for (int64_t least = size; least < size + kReach; ++least) {
    sizes[symbol] = least;
    if (std::all_of(extents.begin(), extents.end(), [&](const SymExpr* extent) {
          const absl::StatusOr<int64_t> now = extent->Evaluate(sizes);
          return now.ok() && *now > 0;
        })) {
      return least;
    }
  }
  return size;
}

}  // namespace

std::map<std::string, int64_t> RowSymbols(const Graph& graph) {
  std::map<std::string, int64_t> found;
  const auto add = [&](const SymExpr& extent, int64_t bags) {
    for (const std::string& symbol : extent.Symbols()) {
      if (symbol == graph.batch_symbol) continue;
      int64_t& most = found[symbol];
      most = std::max(most, bags);
    }
  };
  for (const ValueId id : graph.inputs) {
    const std::vector<SymExpr>& shape = graph.value(id).shape;
    if (!shape.empty()) add(shape[0], 1);
  }
  for (const models::IdInput& use : models::FindIdInputs(graph)) {
    const ValueId ids = use.is_offsets ? use.ids : use.input;
    if (ids == models::kNoValue || graph.value(ids).shape.empty()) continue;
    if (use.is_offsets || use.lengths != models::kNoValue) {
      add(graph.value(ids).shape.back(), use.pieces);
    }
  }
  return found;
}

SymbolBindings SizesForBatch(
    const Graph& graph, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item) {
  SymbolBindings sizes;
  if (!graph.batch_symbol.empty()) sizes[graph.batch_symbol] = batch;
  const std::map<std::string, int64_t> of_rows = RowSymbols(graph);
  const auto bind = [&](const std::string& symbol) {
    if (sizes.contains(symbol)) return;
    const auto it = per_item.find(symbol);
    const auto rows = of_rows.find(symbol);
    // Order of the rules: the number per item, times the batch for symbols of
    // rows, then the range that the model declares.
    int64_t size = it != per_item.end()    ? it->second
                   : rows != of_rows.end() ? rows->second
                                           : 1;
    if (size < 0) {
      size = -size;
    } else if (rows != of_rows.end() && !graph.batch_symbol.empty()) {
      size *= batch;
    }
    for (const models::SymbolRange& range : graph.symbols) {
      if (range.symbol != symbol || range.min > range.max) continue;
      size = std::clamp(size, range.min, range.max);
    }
    sizes[symbol] = size;
  };
  // Symbols that count no rows and that `per_item` lacks.
  std::vector<std::string> steps;
  for (const ValueId id : graph.inputs) {
    for (const SymExpr& extent : graph.value(id).shape) {
      for (const std::string& symbol : extent.Symbols()) {
        if (!of_rows.contains(symbol) && !sizes.contains(symbol) &&
            !per_item.contains(symbol)) {
          steps.push_back(symbol);
        }
        bind(symbol);
      }
    }
  }
  // Other symbols are bound now, so LeastSize() can evaluate every dimension.
  for (const std::string& symbol : steps) {
    int64_t size = LeastSize(graph, symbol, sizes[symbol], sizes);
    for (const models::SymbolRange& range : graph.symbols) {
      if (range.symbol == symbol) size = std::min(size, range.max);
    }
    sizes[symbol] = size;
  }
  return sizes;
}

PerItem Slope(double at_batch_1, double at_batch_2, int64_t batch_1,
              int64_t batch_2) {
  PerItem result;
  result.per_item =
      (at_batch_2 - at_batch_1) / static_cast<double>(batch_2 - batch_1);
  result.per_request =
      at_batch_1 - result.per_item * static_cast<double>(batch_1);
  return result;
}

}  // namespace refract::partitioner
