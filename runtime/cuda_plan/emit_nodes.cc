// Reductions, look-ups, attention, and element-wise operators that the graph
// compiler leaves to LibTorch on the CPU.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"
#include "runtime/dims.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;
using cuda::MapCode;
using cuda::ReduceKind;

absl::Status No(const std::string& why) {
  return absl::UnimplementedError(why);
}

std::optional<double> NumberArgument(const models::Node& node,
                                     absl::string_view name, double missing) {
  const models::Argument* argument = node.FindArg(name);
  if (argument == nullptr || std::holds_alternative<models::None>(*argument)) {
    return missing;
  }
  if (const auto* i = std::get_if<int64_t>(argument)) return *i;
  if (const auto* f = std::get_if<double>(argument)) return *f;
  return std::nullopt;
}

absl::Status FloatingOnly(const Tensor& tensor) {
  if (cuda::IsFloating(tensor.dtype)) return absl::OkStatus();
  return No(absl::StrCat("its operand is ", cuda::Name(tensor.dtype)));
}

// Before anything is emitted: others may still do it.
absl::Status NotAlongBatch(const Tensor& tensor,
                           const std::vector<size_t>& dims) {
  for (const size_t d : dims) {
    if (!tensor.dims[d].constant()) return No("it works along the batch");
  }
  return absl::OkStatus();
}

// sum, mean, amax, amin.
absl::Status EmitSum(const NodeStep& node, ReduceKind kind, Emitter& emitter) {
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
  if (!cuda::IsFloating(self.dtype) && self.dtype != DType::kBool) {
    return No(absl::StrCat("its operand is ", cuda::Name(self.dtype)));
  }
  if (emitter.plan().locals[local].dtype != base::DType::kFloat32) {
    return No(absl::StrCat("it gives ",
                           base::Name(emitter.plan().locals[local].dtype)));
  }
  const auto listed = args.Ints("dim");
  std::vector<bool> reduced(self.rank(), !listed || listed->empty());
  if (listed) {
    for (const IntSource& source : *listed) {
      if (!source.is_literal()) return No("its dimensions are no literals");
      REFRACT_ASSIGN_OR_RETURN(const size_t dim,
                               WrapDim(source.literal, self.rank()));
      if (dim < reduced.size()) reduced[dim] = true;
    }
  }
  std::vector<size_t> dims;
  for (size_t d = 0; d < self.rank(); ++d) {
    if (reduced[d]) dims.push_back(d);
  }
  REFRACT_RETURN_IF_ERROR(NotAlongBatch(self, dims));
  REFRACT_ASSIGN_OR_RETURN(const Sizes out_dims, emitter.DimsOfLocal(local));
  const bool keep = out_dims.size() == self.rank();
  REFRACT_ASSIGN_OR_RETURN(
      Tensor out, emitter.NewResult(local, out_dims, emitter.compute_type()));
  emitter.Set(local, out);
  if (dims.empty()) return emitter.Copy(self, out);
  if (keep) {
    // Without the dimensions of one element.
    for (size_t i = dims.size(); i-- > 0;) out = Selected(out, dims[i], 0);
  }
  return emitter.Reduce(kind, self, dims, out);
}

absl::Status EmitSoftmax(const NodeStep& node, ReduceKind kind,
                         Emitter& emitter) {
  const NodeArgs args(node.node);
  REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
  REFRACT_RETURN_IF_ERROR(FloatingOnly(self));
  const auto dim = args.IntLiteral("dim");
  if (!dim || self.rank() == 0) return No("its dimension is no literal");
  REFRACT_ASSIGN_OR_RETURN(const size_t d, WrapDim(*dim, self.rank()));
  REFRACT_RETURN_IF_ERROR(NotAlongBatch(self, {d}));
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out,
      emitter.NewResult(node.outputs[0], self.dims, emitter.compute_type()));
  emitter.Set(node.outputs[0], out);
  return emitter.Reduce(kind, self, {d}, out);
}

absl::Status EmitLayerNorm(const NodeStep& node, Emitter& emitter) {
  const NodeArgs args(node.node);
  // Mean and deviation are for training.
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != kNoLocal) return No("its statistics are read");
  }
  if (node.outputs[0] == kNoLocal) return absl::OkStatus();
  REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
  REFRACT_RETURN_IF_ERROR(FloatingOnly(self));
  const auto shape = args.Ints("normalized_shape");
  const auto epsilon = NumberArgument(node.node, "eps", 1e-5);
  if (!shape || shape->empty() || shape->size() > self.rank() || !epsilon) {
    return No("its arguments are no literals");
  }
  std::vector<size_t> dims;
  for (size_t d = self.rank() - shape->size(); d < self.rank(); ++d) {
    dims.push_back(d);
  }
  std::optional<Tensor> affine[2];
  const char* const names[2] = {"weight", "bias"};
  for (int i = 0; i < 2; ++i) {
    if (!args.Has(names[i])) continue;
    const int operand = args.OperandOf(names[i]);
    if (operand == kNoOperand) return No("its weights are unclear");
    REFRACT_ASSIGN_OR_RETURN(affine[i], emitter.Get(node.operands[operand]));
  }
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out,
      emitter.NewResult(node.outputs[0], self.dims, emitter.compute_type()));
  emitter.Set(node.outputs[0], out);
  return emitter.Reduce(ReduceKind::kLayerNorm, self, dims, out, affine[0],
                        affine[1], static_cast<float>(*epsilon));
}

// softmax(q · kᵀ · scale + mask) · v.
absl::Status EmitAttentionOf(const NodeStep& node, Emitter& emitter) {
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  const std::string& name = emitter.plan().locals[local].name;
  const auto dropout = NumberArgument(node.node, "dropout_p", 0);
  if (!dropout || *dropout != 0) return No("it drops out");
  if (args.BoolLiteral("enable_gqa") == true) return No("it groups queries");
  Tensor factors[3];
  const char* const names[3] = {"query", "key", "value"};
  for (int i = 0; i < 3; ++i) {
    const int operand = args.OperandOf(names[i]);
    if (operand == kNoOperand) return No("its operands are unclear");
    REFRACT_ASSIGN_OR_RETURN(factors[i], emitter.Get(node.operands[operand]));
    REFRACT_RETURN_IF_ERROR(FloatingOnly(factors[i]));
    if (factors[i].rank() < 2) return No("its operands are no matrices");
  }
  const auto& [query, key, value] = factors;
  REFRACT_ASSIGN_OR_RETURN(const Sizes out_dims, emitter.DimsOfLocal(local));
  const size_t rank = out_dims.size();
  const std::optional<int64_t> width = query.dims.back().constant();
  const std::optional<int64_t> keys = key.dims[key.rank() - 2].constant();
  const std::optional<int64_t> queries =
      query.dims[query.rank() - 2].constant();
  if (!width || !keys || !queries || *width < 1) {
    return No("it attends to other rows of the batch");
  }
  const auto scale = NumberArgument(
      node.node, "scale", 1.0 / std::sqrt(static_cast<double>(*width)));
  if (!scale) return No("its scale is no literal");
  Sizes score_dims = out_dims;
  score_dims[rank - 1] = *keys;
  // In float32: 16 bits would lose small differences before the exponential.
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor scores,
      emitter.New(absl::StrCat(name, ".scores"), score_dims, DType::kFloat32));
  std::vector<size_t> turn(key.rank());
  for (size_t d = 0; d < turn.size(); ++d) turn[d] = d;
  std::swap(turn[turn.size() - 1], turn[turn.size() - 2]);
  REFRACT_RETURN_IF_ERROR(
      emitter.MatMul(query, Permuted(key, turn), std::nullopt, false, scores));
  std::vector<Emitter::Input> inputs = {{scores}};
  std::vector<cuda::MapInstruction> code = {
      {MapCode::kScale, 0, 0, 0, static_cast<float>(*scale)}};
  if (args.BoolLiteral("is_causal") == true) {
    inputs.push_back({emitter.CausalMask(*queries, *keys)});
    code = {{MapCode::kScale, 0, 0, 0, static_cast<float>(*scale)},
            {MapCode::kAdd, 2, 1}};
  } else if (args.Has("attn_mask")) {
    const int operand = args.OperandOf("attn_mask");
    if (operand == kNoOperand) return No("its mask is unclear");
    REFRACT_ASSIGN_OR_RETURN(const Tensor mask,
                             emitter.Get(node.operands[operand]));
    inputs.push_back({mask});
    if (emitter.plan().locals[node.operands[operand]].dtype ==
        base::DType::kBool) {
      // Added rather than chosen: NaN stays what it is behind a mask, too.
      inputs.push_back({std::nullopt, -INFINITY});
      inputs.push_back({std::nullopt, 0.0f});
      code = {{MapCode::kScale, 0, 0, 0, static_cast<float>(*scale)},
              {MapCode::kSelect, 1, 3, 2},
              {MapCode::kAdd, 4, 5}};
    } else {
      code = {{MapCode::kScale, 0, 0, 0, static_cast<float>(*scale)},
              {MapCode::kAdd, 2, 1}};
    }
  }
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor masked,
      emitter.New(absl::StrCat(name, ".masked"), score_dims, DType::kFloat32));
  REFRACT_RETURN_IF_ERROR(emitter.Map(inputs, std::move(code), masked));
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor weights,
      emitter.New(absl::StrCat(name, ".weights"), score_dims, DType::kFloat32));
  REFRACT_RETURN_IF_ERROR(
      emitter.Reduce(ReduceKind::kMaskedSoftmax, masked, {rank - 1}, weights));
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out,
      emitter.NewResult(local, out_dims, emitter.compute_type()));
  emitter.Set(local, out);
  return emitter.MatMul(weights, value, std::nullopt, false, out);
}

absl::Status EmitEmbedding(const NodeStep& node, int table_operand,
                           int index_operand, size_t dim,
                           const CompileOptions& options, Emitter& emitter) {
  const int local = node.outputs[0];
  const int table_local = node.operands[table_operand];
  const int index_local = node.operands[index_operand];
  REFRACT_ASSIGN_OR_RETURN(const Tensor table, emitter.Get(table_local));
  REFRACT_RETURN_IF_ERROR(FloatingOnly(table));
  const std::optional<int64_t> rows = table.dims[dim].constant();
  if (!rows) return No("it looks up rows of the batch");
  Tensor index;
  if (const auto values = emitter.IntegersOf(index_local)) {
    REFRACT_ASSIGN_OR_RETURN(
        index,
        emitter.Indices(emitter.plan().locals[index_local].name, *values));
    REFRACT_ASSIGN_OR_RETURN(const Sizes dims,
                             emitter.DimsOfLocal(index_local));
    const std::optional<Tensor> shaped = Reshaped(index, dims);
    if (!shaped) return absl::InternalError("indices do not lie in a row");
    index = *shaped;
  } else {
    REFRACT_ASSIGN_OR_RETURN(index, emitter.Get(index_local));
  }
  if (index.dtype != DType::kInt32 && index.dtype != DType::kInt64) {
    return No(absl::StrCat("its indices are ", cuda::Name(index.dtype)));
  }
  const size_t index_rank = index.rank();
  for (size_t d = 0; d < dim; ++d) index = Unsqueezed(index, 0);
  const cuda::Outside outside = OutsideOf(emitter, table_local, options);
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out, emitter.NewResult(local, dims, emitter.compute_type()));
  emitter.Set(local, out);
  return emitter.LookUp(table, dim, *rows, index, index_rank, outside, out);
}

struct BinaryName {
  absl::string_view op;
  MapCode code;
};
constexpr BinaryName kBinary[] = {
    {"aten.add.Tensor", MapCode::kAdd},
    {"aten.sub.Tensor", MapCode::kSubtract},
    {"aten.mul.Tensor", MapCode::kMultiply},
    {"aten.div.Tensor", MapCode::kDivide},
    {"aten.minimum.default", MapCode::kMinimum},
    {"aten.maximum.default", MapCode::kMaximum},
    {"aten.pow.Tensor_Tensor", MapCode::kPower},
};

// Of two tensors that are not both float32, as exporters write numbers: one is
// a constant of another type without dimensions.
std::optional<absl::Status> EmitBinary(const NodeStep& node, Emitter& emitter) {
  const auto* const known =
      std::find_if(std::begin(kBinary), std::end(kBinary),
                   [&](const BinaryName& b) { return b.op == node.node.op; });
  if (known == std::end(kBinary)) return std::nullopt;
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  if (args.Has("rounding_mode") ||
      NumberArgument(node.node, "alpha", 1) != 1.0 ||
      emitter.plan().locals[local].dtype != base::DType::kFloat32) {
    return std::nullopt;
  }
  return [&]() -> absl::Status {
    std::vector<Emitter::Input> inputs(2);
    const char* const names[2] = {"self", "other"};
    bool floating = false;
    for (int i = 0; i < 2; ++i) {
      const int operand =
          args.OperandOf(i == 1 && !args.Has(names[1]) ? "exponent" : names[i]);
      if (operand == kNoOperand) return No("an operand is no tensor");
      REFRACT_ASSIGN_OR_RETURN(inputs[i].tensor,
                               emitter.Get(node.operands[operand]));
      floating |= emitter.plan().locals[node.operands[operand]].dtype ==
                  base::DType::kFloat32;
    }
    if (!floating) return No("none of its operands is float32");
    REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
    REFRACT_ASSIGN_OR_RETURN(
        const Tensor out,
        emitter.NewResult(local, dims, emitter.compute_type()));
    emitter.Set(local, out);
    return emitter.Map(inputs, {{known->code, 0, 1}}, out);
  }();
}

// One-operand functions that the fused forms lack.
std::optional<absl::Status> EmitElements(const NodeStep& node,
                                         Emitter& emitter) {
  const std::string& op = node.node.op;
  const NodeArgs args(node.node);
  std::vector<Emitter::Input> inputs(1);
  std::vector<cuda::MapInstruction> code;
  const auto number = [&](float value) {
    inputs.push_back({std::nullopt, value});
  };
  if (op == "aten.pow.Tensor_Scalar") {
    const auto exponent = NumberArgument(node.node, "exponent", NAN);
    if (!exponent) return std::nullopt;
    number(static_cast<float>(*exponent));
    code = {{MapCode::kPower, 0, 1}};
  } else if (op == "aten.hardsigmoid.default") {
    number(3.0f);
    code = {{MapCode::kAdd, 0, 1},
            {MapCode::kClamp, 2, 0, 0, 0.0f, 6.0f},
            {MapCode::kScale, 3, 0, 0, 1.0f / 6.0f}};
  } else if (op == "aten.softplus.default") {
    const auto beta = NumberArgument(node.node, "beta", 1);
    const auto threshold = NumberArgument(node.node, "threshold", 20);
    if (!beta || !threshold || *beta == 0) return std::nullopt;
    number(static_cast<float>(*threshold));
    // Beyond the threshold x itself: exp(x) would overflow.
    code = {{MapCode::kScale, 0, 0, 0, static_cast<float>(*beta)},
            {MapCode::kExp, 2},
            {MapCode::kLog1p, 3},
            {MapCode::kScale, 4, 0, 0, static_cast<float>(1 / *beta)},
            {MapCode::kGreater, 2, 1},
            {MapCode::kSelect, 6, 0, 5}};
  } else if (op == "aten.prelu.default") {
    const int weight = args.OperandOf("weight");
    if (weight == kNoOperand) return std::nullopt;
    inputs.resize(2);
    const absl::StatusOr<Tensor> slopes = emitter.Get(node.operands[weight]);
    if (!slopes.ok()) return slopes.status();
    // One per channel, which is dimension 1.
    inputs[1].tensor = *slopes;
    const absl::StatusOr<Sizes> dims = emitter.DimsOfLocal(node.outputs[0]);
    if (!dims.ok()) return dims.status();
    if (slopes->rank() == 1) {
      for (size_t d = 2; d < dims->size(); ++d) {
        inputs[1].tensor =
            Unsqueezed(*inputs[1].tensor, inputs[1].tensor->rank());
      }
    }
    code = {{MapCode::kMultiply, 0, 1},
            {MapCode::kScale, 0, 0, 0, 0.0f},
            {MapCode::kLess, 0, 3},
            {MapCode::kSelect, 4, 2, 0}};
  } else {
    return std::nullopt;
  }
  return [&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
    REFRACT_RETURN_IF_ERROR(FloatingOnly(self));
    inputs[0].tensor = self;
    REFRACT_ASSIGN_OR_RETURN(
        const Tensor out,
        emitter.NewResult(node.outputs[0], self.dims, emitter.compute_type()));
    emitter.Set(node.outputs[0], out);
    return emitter.Map(inputs, std::move(code), out);
  }();
}

}  // namespace

models::IdPolicy PolicyOf(const Emitter& emitter, int table_local,
                          const CompileOptions& options) {
  const std::string& table =
      emitter.graph().value(emitter.plan().locals[table_local].id).weight;
  if (table.empty()) return models::IdPolicy::kError;
  const auto found = options.config.id_policies.find(table);
  return found != options.config.id_policies.end()
             ? found->second
             : options.config.default_id_policy;
}

cuda::Outside OutsideOf(const Emitter& emitter, int table_local,
                        const CompileOptions& options) {
  switch (PolicyOf(emitter, table_local, options)) {
    case models::IdPolicy::kZeroRow:
      return cuda::Outside::kZero;
    case models::IdPolicy::kDefaultRow:
      return cuda::Outside::kFirstRow;
    case models::IdPolicy::kError:
      break;
  }
  return cuda::Outside::kFault;
}

std::optional<absl::Status> EmitReduction(const NodeStep& node,
                                          Emitter& emitter) {
  const std::string& op = node.node.op;
  if (node.operands.empty() || NodeArgs(node.node).Has("dtype")) {
    return std::nullopt;
  }
  if (op == "aten.sum.dim_IntList") {
    return EmitSum(node, ReduceKind::kSum, emitter);
  }
  if (op == "aten.mean.dim") return EmitSum(node, ReduceKind::kMean, emitter);
  if (op == "aten.amax.default") {
    return EmitSum(node, ReduceKind::kMaximum, emitter);
  }
  if (op == "aten.amin.default") {
    return EmitSum(node, ReduceKind::kMinimum, emitter);
  }
  if (op == "aten.softmax.int" || op == "aten._softmax.default") {
    return EmitSoftmax(node, ReduceKind::kSoftmax, emitter);
  }
  if (op == "aten.log_softmax.int" || op == "aten._log_softmax.default") {
    return EmitSoftmax(node, ReduceKind::kLogSoftmax, emitter);
  }
  if (op == "aten.layer_norm.default" ||
      op == "aten.native_layer_norm.default") {
    return EmitLayerNorm(node, emitter);
  }
  return std::nullopt;
}

std::optional<absl::Status> EmitLookUp(const NodeStep& node,
                                       const CompileOptions& options,
                                       Emitter& emitter) {
  const std::string& op = node.node.op;
  const NodeArgs args(node.node);
  int table = kNoOperand;
  int index = kNoOperand;
  int64_t dim = 0;
  if (op == "aten.embedding.default") {
    table = args.OperandOf("weight");
    index = args.OperandOf("indices");
  } else if (op == "aten.index_select.default") {
    table = args.OperandOf("self");
    index = args.OperandOf("index");
    const auto literal = args.IntLiteral("dim");
    if (!literal) return std::nullopt;
    dim = *literal;
  }
  if (table == kNoOperand || index == kNoOperand) return std::nullopt;
  const int rank = emitter.plan().locals[node.operands[table]].rank;
  if (rank < 1) return std::nullopt;
  const absl::StatusOr<size_t> d = WrapDim(dim, static_cast<size_t>(rank));
  if (!d.ok()) return d.status();
  return EmitEmbedding(node, table, index, *d, options, emitter);
}

std::optional<absl::Status> EmitAttention(const NodeStep& node,
                                          Emitter& emitter) {
  if (node.node.op != "aten.scaled_dot_product_attention.default") {
    return std::nullopt;
  }
  return EmitAttentionOf(node, emitter);
}

namespace {

absl::Status EmitOwn(const NodeStep& node, const CompileOptions& options,
                     Emitter& emitter) {
  if (auto emitted = EmitView(node, emitter)) return *emitted;
  if (auto emitted = EmitCopy(node, emitter)) return *emitted;
  if (auto emitted = EmitReduction(node, emitter)) return *emitted;
  if (auto emitted = EmitLookUp(node, options, emitter)) return *emitted;
  if (auto emitted = EmitAttention(node, emitter)) return *emitted;
  if (auto emitted = EmitElements(node, emitter)) return *emitted;
  if (auto emitted = EmitBinary(node, emitter)) return *emitted;
  if (auto emitted = EmitIntegers(node, emitter)) return *emitted;
  return No("it has no form on the device");
}

}  // namespace

absl::Status EmitNode(const NodeStep& node, const CompileOptions& options,
                      Emitter& emitter) {
  if (std::all_of(node.outputs.begin(), node.outputs.end(),
                  [](int local) { return local == kNoLocal; })) {
    return absl::OkStatus();
  }
  if (IsBag(node.node)) return EmitBag(node, options, emitter);
  const size_t progress = emitter.progress();
  return OrForeign(EmitOwn(node, options, emitter), progress, node, emitter);
}

}  // namespace refract::runtime::cuda_plan
