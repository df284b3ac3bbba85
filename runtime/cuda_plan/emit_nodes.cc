// Reductions, look-ups and attention.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/dims.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;
using cuda::ReduceKind;
using models::ElementCode;
using models::Lowering;

// Callers check this before they emit anything: LibTorch may still compute the
// node (OrForeign()). Sums along the batch would include the unused rows of a
// bucket.
absl::Status NotAlongBatch(const Tensor& tensor,
                           const std::vector<size_t>& dims) {
  for (const size_t d : dims) {
    if (!tensor.dims[d].constant())
      return absl::UnimplementedError("it computes along the batch dimension");
  }
  return absl::OkStatus();
}

// sum, mean, amax, amin.
absl::Status EmitSum(const NodeStep& node, ReduceKind kind, Emitter& emitter) {
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
  if (!cuda::IsFloating(self.dtype) && self.dtype != DType::kBool) {
    return absl::UnimplementedError(
        absl::StrCat("its operand is ", cuda::Name(self.dtype)));
  }
  if (emitter.plan().locals[local].dtype != base::DType::kFloat32) {
    return absl::UnimplementedError(absl::StrCat(
        "its result is ", base::Name(emitter.plan().locals[local].dtype)));
  }
  const auto listed = args.Ints("dim");
  // PyTorch's rule: no list and an empty list mean all dimensions.
  std::vector<bool> reduced(self.rank(), !listed || listed->empty());
  if (listed) {
    for (const IntSource& source : *listed) {
      if (!source.is_literal())
        return absl::UnimplementedError("its dimensions are not constants");
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
  // keepdim: the result has dimensions of one element in place of the reduced
  // ones.
  const bool keep = out_dims.size() == self.rank();
  REFRACT_ASSIGN_OR_RETURN(
      Tensor out, emitter.NewResult(local, out_dims, emitter.compute_type()));
  emitter.Set(local, out);
  if (dims.empty()) return emitter.Copy(self, out);
  if (keep) {
    // The kernel's result lacks the reduced dimensions; a view of `out` without
    // them is the same memory. From the last one on, so that earlier positions
    // stay valid.
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
  if (!dim || self.rank() == 0)
    return absl::UnimplementedError("its dimension is not a constant");
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
  // Mean and deviation are only for training.
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != kNoLocal)
      return absl::UnimplementedError("the model reads its mean or rstd");
  }
  if (node.outputs[0] == kNoLocal) return absl::OkStatus();
  REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
  REFRACT_RETURN_IF_ERROR(FloatingOnly(self));
  // LayerNorm normalises over the last dimensions, as many as normalized_shape
  // has.
  const auto shape = args.Ints("normalized_shape");
  const auto epsilon = NumberArgument(node.node, "eps", 1e-5);
  if (!shape || shape->empty() || shape->size() > self.rank() || !epsilon) {
    return absl::UnimplementedError(
        "its normalized_shape or eps is not a constant");
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
    if (operand == kNoOperand)
      return absl::UnimplementedError(
          "its weight or bias is not a plain tensor");
    REFRACT_ASSIGN_OR_RETURN(affine[i], emitter.Get(node.operands[operand]));
  }
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out,
      emitter.NewResult(node.outputs[0], self.dims, emitter.compute_type()));
  emitter.Set(node.outputs[0], out);
  return emitter.Reduce(ReduceKind::kLayerNorm, self, dims, out, affine[0],
                        affine[1], static_cast<float>(*epsilon));
}

// softmax(q · kᵀ · scale + mask) · v as four operators: a product [queries,
// keys], an element-wise program for scale and mask, a softmax and a product.
// Leading dimensions are batched and broadcast.
absl::Status EmitAttention(const NodeStep& node, Emitter& emitter) {
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  const std::string& name = emitter.plan().locals[local].name;
  const auto dropout = NumberArgument(node.node, "dropout_p", 0);
  if (!dropout || *dropout != 0)
    return absl::UnimplementedError("its dropout_p is not 0");
  if (args.BoolLiteral("enable_gqa") == true)
    return absl::UnimplementedError("its enable_gqa is set");
  Tensor factors[3];
  const char* const names[3] = {"query", "key", "value"};
  for (int i = 0; i < 3; ++i) {
    const int operand = args.OperandOf(names[i]);
    if (operand == kNoOperand)
      return absl::UnimplementedError("its operands are unclear");
    REFRACT_ASSIGN_OR_RETURN(factors[i], emitter.Get(node.operands[operand]));
    REFRACT_RETURN_IF_ERROR(FloatingOnly(factors[i]));
    if (factors[i].rank() < 2)
      return absl::UnimplementedError(
          "its query, key or value has fewer than two dimensions");
  }
  const auto& [query, key, value] = factors;
  REFRACT_ASSIGN_OR_RETURN(const Sizes out_dims, emitter.DimsOfLocal(local));
  const size_t rank = out_dims.size();
  const std::optional<int64_t> width = query.dims.back().constant();
  const std::optional<int64_t> keys = key.dims[key.rank() - 2].constant();
  const std::optional<int64_t> queries =
      query.dims[query.rank() - 2].constant();
  if (!width || !keys || !queries || *width < 1) {
    return absl::UnimplementedError(
        "its query, key or value has a sequence length that depends on the "
        "batch");
  }
  const auto scale = NumberArgument(
      node.node, "scale", 1.0 / std::sqrt(static_cast<double>(*width)));
  if (!scale) return absl::UnimplementedError("its scale is not a constant");
  // The result is [batch…, queries, width of the values]; scores have a column
  // per key.
  Sizes score_dims = out_dims;
  score_dims[rank - 1] = *keys;
  // In float32: 16 bits would lose small differences before the exponential.
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor scores,
      emitter.New(absl::StrCat(name, ".scores"), score_dims, DType::kFloat32));
  // kᵀ is a view with its last two dimensions exchanged: no copy.
  std::vector<size_t> turn(key.rank());
  for (size_t d = 0; d < turn.size(); ++d) turn[d] = d;
  std::swap(turn[turn.size() - 1], turn[turn.size() - 2]);
  REFRACT_RETURN_IF_ERROR(
      emitter.MatMul(query, Permuted(key, turn), std::nullopt, false, scores));
  std::vector<Emitter::Input> inputs = {{scores}};
  // Arguments of an instruction number the inputs first and then the results of
  // earlier instructions; the last instruction gives the result.
  std::vector<cuda::MapInstruction> code = {
      {ElementCode::kScale, 0, 0, 0, static_cast<float>(*scale)}};
  if (args.BoolLiteral("is_causal") == true) {
    inputs.push_back({emitter.CausalMask(*queries, *keys)});
    code = {{ElementCode::kScale, 0, 0, 0, static_cast<float>(*scale)},
            {ElementCode::kAdd, 2, 1}};
  } else if (args.Has("attn_mask")) {
    const int operand = args.OperandOf("attn_mask");
    if (operand == kNoOperand)
      return absl::UnimplementedError("its attn_mask is not a plain tensor");
    REFRACT_ASSIGN_OR_RETURN(const Tensor mask,
                             emitter.Get(node.operands[operand]));
    inputs.push_back({mask});
    if (emitter.plan().locals[node.operands[operand]].dtype ==
        base::DType::kBool) {
      // A mask of truth values becomes 0 or −∞ and is added, not selected: a
      // NaN score must stay NaN behind the mask, as in PyTorch.
      inputs.push_back({std::nullopt, -INFINITY});
      inputs.push_back({std::nullopt, 0.0f});
      code = {{ElementCode::kScale, 0, 0, 0, static_cast<float>(*scale)},
              {ElementCode::kSelect, 1, 3, 2},
              {ElementCode::kAdd, 4, 5}};
    } else {
      code = {{ElementCode::kScale, 0, 0, 0, static_cast<float>(*scale)},
              {ElementCode::kAdd, 2, 1}};
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

// Id policies apply to tables: if an index counts from the end (`from_end`), an
// index out of range is an error.
absl::Status EmitEmbedding(const NodeStep& node, int table_operand,
                           int index_operand, size_t dim, bool from_end,
                           const CompileOptions& options, Emitter& emitter) {
  const int local = node.outputs[0];
  const int table_local = node.operands[table_operand];
  const int index_local = node.operands[index_operand];
  REFRACT_ASSIGN_OR_RETURN(const Tensor table, emitter.Get(table_local));
  REFRACT_RETURN_IF_ERROR(FloatingOnly(table));
  const std::optional<int64_t> rows = table.dims[dim].constant();
  if (!rows) return absl::UnimplementedError("it indexes the batch dimension");
  Tensor index;
  // Constant indices that count from the end are resolved now; those of a
  // request by an operator on the device.
  if (auto values = emitter.IntegersOf(index_local)) {
    for (int64_t& value : *values) {
      if (from_end && value < 0) value += *rows;
    }
    REFRACT_ASSIGN_OR_RETURN(
        index,
        emitter.Indices(emitter.plan().locals[index_local].name, *values));
    REFRACT_ASSIGN_OR_RETURN(const Sizes dims,
                             emitter.DimsOfLocal(index_local));
    const std::optional<Tensor> shaped = Reshaped(index, dims);
    if (!shaped)
      return absl::InternalError("constant indices are not contiguous");
    index = *shaped;
  } else {
    REFRACT_ASSIGN_OR_RETURN(index, emitter.Get(index_local));
  }
  if (index.dtype != DType::kInt32 && index.dtype != DType::kInt64) {
    return absl::UnimplementedError(
        absl::StrCat("its indices are ", cuda::Name(index.dtype)));
  }
  if (from_end && !emitter.IsConstant(index_local)) {
    REFRACT_ASSIGN_OR_RETURN(
        const Tensor counted,
        emitter.New(
            absl::StrCat(emitter.plan().locals[index_local].name, ".place"),
            index.dims, index.dtype));
    REFRACT_RETURN_IF_ERROR(emitter.Integers(cuda::IntegerCode::kFromEnd,
                                             {{index}, {std::nullopt, *rows}},
                                             counted));
    index = counted;
  }
  // The look-up reads its index by the dimensions of the result; dimensions of
  // the table before `dim` repeat it.
  const size_t index_rank = index.rank();
  for (size_t d = 0; d < dim; ++d) index = Unsqueezed(index, 0);
  const cuda::Outside outside = from_end
                                    ? cuda::Outside::kFault
                                    : OutsideOf(emitter, table_local, options);
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out, emitter.NewResult(local, dims, emitter.compute_type()));
  emitter.Set(local, out);
  return emitter.LookUp(table, dim, *rows, index, index_rank, outside, out);
}

absl::Status EmitGather(const NodeStep& node, Emitter& emitter) {
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  const int operands[2] = {args.OperandOf("self"), args.OperandOf("index")};
  const std::optional<int64_t> literal = args.IntLiteral("dim");
  if (operands[0] == kNoOperand || operands[1] == kNoOperand || !literal) {
    return absl::UnimplementedError("its operands are unclear");
  }
  REFRACT_ASSIGN_OR_RETURN(const Tensor self,
                           emitter.Get(node.operands[operands[0]]));
  REFRACT_RETURN_IF_ERROR(FloatingOnly(self));
  REFRACT_ASSIGN_OR_RETURN(const Tensor index,
                           emitter.Get(node.operands[operands[1]]));
  if (index.dtype != DType::kInt32 && index.dtype != DType::kInt64) {
    return absl::UnimplementedError(
        absl::StrCat("its indices are ", cuda::Name(index.dtype)));
  }
  if (self.rank() == 0 || index.rank() != self.rank()) {
    return absl::UnimplementedError(
        "its index does not have as many dimensions as its input");
  }
  REFRACT_ASSIGN_OR_RETURN(const size_t dim, WrapDim(*literal, self.rank()));
  const std::optional<int64_t> rows = self.dims[dim].constant();
  if (!rows) return absl::UnimplementedError("it indexes the batch dimension");
  // gather() may take fewer entries than there are in the other dimensions. In
  // the batch dimension that would drop requests of others.
  for (size_t d = 0; d < self.rank(); ++d) {
    const auto from = self.dims[d].constant();
    const auto taken = index.dims[d].constant();
    const bool lies =
        from && taken ? *taken <= *from : self.dims[d] == index.dims[d];
    if (d != dim && !lies)
      return absl::UnimplementedError("it takes only some rows of the batch");
  }
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out,
      emitter.NewResult(local, index.dims, emitter.compute_type()));
  emitter.Set(local, out);
  return emitter.Gather(self, dim, *rows, index, cuda::Outside::kFault, out);
}

}  // namespace

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

bool GivesIntegers(const NodeStep& node, const Emitter& emitter) {
  if (node.outputs[0] == kNoLocal) return false;
  const std::optional<DType> dtype =
      Emitter::TypeOf(emitter.plan().locals[node.outputs[0]].dtype);
  return dtype && !cuda::IsFloating(*dtype);
}

absl::Status FloatingOnly(const Tensor& tensor) {
  if (cuda::IsFloating(tensor.dtype)) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("its operand is ", cuda::Name(tensor.dtype)));
}

models::IdPolicy PolicyOf(const Emitter& emitter, int table_local,
                          const CompileOptions& options) {
  // Only weights have a policy; a table that the part computes reports every
  // wrong id.
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
  if (node.operands.empty() || NodeArgs(node.node).Has("dtype") ||
      GivesIntegers(node, emitter)) {
    return std::nullopt;
  }
  switch (models::LoweringOf(node.node.op)) {
    // Sums over all dimensions include the batch.
    case Lowering::kSum:
      if (node.node.FindArg("dim") == nullptr) return std::nullopt;
      return EmitSum(node, ReduceKind::kSum, emitter);
    case Lowering::kMean:
      if (node.node.FindArg("dim") == nullptr) return std::nullopt;
      return EmitSum(node, ReduceKind::kMean, emitter);
    case Lowering::kAmax:
      return EmitSum(node, ReduceKind::kMaximum, emitter);
    case Lowering::kAmin:
      return EmitSum(node, ReduceKind::kMinimum, emitter);
    case Lowering::kSoftmax:
      return EmitSoftmax(node, ReduceKind::kSoftmax, emitter);
    case Lowering::kLogSoftmax:
      return EmitSoftmax(node, ReduceKind::kLogSoftmax, emitter);
    case Lowering::kLayerNorm:
      return EmitLayerNorm(node, emitter);
    default:
      return std::nullopt;
  }
}

std::optional<absl::Status> EmitLookUp(const NodeStep& node,
                                       const CompileOptions& options,
                                       Emitter& emitter) {
  const Lowering lowering = models::LoweringOf(node.node.op);
  const NodeArgs args(node.node);
  int table = kNoOperand;
  int index = kNoOperand;
  int64_t dim = 0;
  bool from_end = false;
  if (lowering == Lowering::kGather) return EmitGather(node, emitter);
  if (lowering == Lowering::kEmbedding) {
    table = args.OperandOf("weight");
    index = args.OperandOf("indices");
  } else if (lowering == Lowering::kIndexSelect) {
    table = args.OperandOf("self");
    index = args.OperandOf("index");
    const auto literal = args.IntLiteral("dim");
    if (!literal) return std::nullopt;
    dim = *literal;
  } else {  // kIndex: by one of the dimensions
    const auto indices = args.OperandsOf("indices");
    if (!indices) return std::nullopt;
    table = args.OperandOf("self");
    from_end = true;
    for (size_t d = 0; d < indices->size(); ++d) {
      // index(x, [None, i]) selects along dimension 1.
      if ((*indices)[d] == kNoOperand) continue;
      if (index != kNoOperand)
        return absl::UnimplementedError("it indexes several dimensions");
      index = (*indices)[d];
      dim = static_cast<int64_t>(d);
    }
  }
  if (table == kNoOperand || index == kNoOperand) return std::nullopt;
  const int rank = emitter.plan().locals[node.operands[table]].rank;
  if (rank < 1) return std::nullopt;
  const absl::StatusOr<size_t> d = WrapDim(dim, static_cast<size_t>(rank));
  if (!d.ok()) return d.status();
  return EmitEmbedding(node, table, index, *d, from_end, options, emitter);
}

namespace {

absl::Status EmitOwn(const NodeStep& node, const CompileOptions& options,
                     Emitter& emitter) {
  // A view costs nothing, so it is tried before a copy. An empty `emitted`
  // means that the form does not take the node, and another form may.
  if (auto emitted = EmitView(node, emitter)) return *emitted;
  std::optional<absl::Status> emitted;
  switch (models::LoweringOf(node.node.op)) {
    case Lowering::kCat:
    case Lowering::kStack:
    case Lowering::kSlice:
    case Lowering::kSelectIndex:
    case Lowering::kUnbind:
    case Lowering::kNarrow:
    case Lowering::kSplit:
    case Lowering::kChunk:
    case Lowering::kPermute:
    case Lowering::kTranspose:
    case Lowering::kMatrixTranspose:
    case Lowering::kExpand:
    case Lowering::kExpandAs:
    case Lowering::kBroadcastTo:
    case Lowering::kRepeat:
    case Lowering::kCast:
    case Lowering::kCastLike:
      emitted = EmitCopy(node, emitter);
      break;
    case Lowering::kMean:
    case Lowering::kSoftmax:
    case Lowering::kLogSoftmax:
    case Lowering::kLayerNorm:
      emitted = EmitReduction(node, emitter);
      break;
    case Lowering::kSum:
    case Lowering::kAmax:
    case Lowering::kAmin:
      emitted = EmitReduction(node, emitter);
      if (!emitted) emitted = EmitIntegers(node, emitter);
      break;
    case Lowering::kEmbedding:
    case Lowering::kIndexSelect:
    case Lowering::kIndex:
    case Lowering::kGather:
      emitted = EmitLookUp(node, options, emitter);
      break;
    case Lowering::kAttention:
      emitted = EmitAttention(node, emitter);
      break;
    case Lowering::kZeros:
    case Lowering::kOnes:
    case Lowering::kFull:
    case Lowering::kZerosLike:
    case Lowering::kOnesLike:
    case Lowering::kFullLike:
    case Lowering::kHardsigmoid:
    case Lowering::kSoftplus:
    case Lowering::kPrelu:
      emitted = EmitElements(node, emitter);
      break;
    case Lowering::kBinary:
    case Lowering::kReverseSubtract:
    case Lowering::kPow:
    case Lowering::kWhere:
    case Lowering::kMaskedFill:
      emitted = EmitElements(node, emitter);
      if (!emitted) emitted = EmitIntegers(node, emitter);
      break;
    case Lowering::kUnary:
    case Lowering::kLogical:
    case Lowering::kClamp:
    case Lowering::kClampMin:
    case Lowering::kClampMax:
    case Lowering::kArange:
    case Lowering::kTril:
    case Lowering::kTriu:
    case Lowering::kAny:
    case Lowering::kAll:
      emitted = EmitIntegers(node, emitter);
      break;
    default:
      // Views, bags and fused steps have been tried; the others have no form on
      // the device: see operator_lowerings_test.cc.
      break;
  }
  return emitted ? *emitted
                 : absl::UnimplementedError(
                       "the CUDA runtime has no kernel for it");
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
