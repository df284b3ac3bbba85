#include "runtime/cuda_plan/emitter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;
using cuda::Rows;

// TF32 is a mode of products: data stay float32.
DType ComputeType(Precision precision) {
  switch (precision) {
    case Precision::kFloat16:
      return DType::kFloat16;
    case Precision::kBFloat16:
      return DType::kBFloat16;
    case Precision::kFloat32:
    case Precision::kTf32:
      break;
  }
  return DType::kFloat32;
}

bool IsCast(const Step& step) {
  const models::Lowering lowering = models::LoweringOf(step.op);
  return lowering == models::Lowering::kCast ||
         lowering == models::Lowering::kCastLike;
}

// Per local, whether it holds floats that the part casts to integers later. A
// float16 holds integers exactly up to 2048 and a bfloat16 up to 256, so that
// an id among them would become another id (Emitter::KeptType()).
std::vector<bool> CountingFloats(const models::Graph& graph, const Plan& plan) {
  std::vector<bool> counts(plan.locals.size(), false);
  const auto is_floating = [&](int local) {
    const Local& known = plan.locals[local];
    const std::optional<DType> dtype = Emitter::TypeOf(known.dtype);
    return graph.value(known.id).kind == models::ValueKind::kTensor && dtype &&
           cuda::IsFloating(*dtype);
  };
  // From the outputs back: a step that feeds a cast to integers passes the
  // demand on to its operands.
  for (auto step = plan.steps.rbegin(); step != plan.steps.rend(); ++step) {
    bool counted = false;
    for (const int local : step->outputs) {
      if (local == kNoLocal) continue;
      counted |= counts[local] || (IsCast(*step) && !is_floating(local));
    }
    if (!counted) continue;
    // Products are of the type of computation, and their sums are no ids.
    if (step->fused && !std::holds_alternative<ElementChainOp>(*step->fused)) {
      for (const int local : step->outputs) {
        if (local != kNoLocal) counts[local] = false;
      }
      continue;
    }
    for (const int local : step->operands) {
      counts[local] = counts[local] || is_floating(local);
    }
  }
  return counts;
}

}  // namespace

Emitter::Emitter(const models::Graph& graph, const Plan& plan,
                 const TranslateOptions& options,
                 const models::SymbolBindings& sizes,
                 const std::vector<BagRoom>& rooms, ConstantPool& pool)
    : graph_(graph),
      plan_(plan),
      options_(options),
      sizes_(sizes),
      pool_(pool),
      compute_type_(ComputeType(options.precision)),
      counting_floats_(CountingFloats(graph, plan)),
      builder_(options.model, options.precision == Precision::kTf32),
      outputs_(plan.outputs.size(), -1),
      rooms_(rooms) {
  for (BagRoom& room : rooms_) {
    room.entry_inputs.assign(room.part.entries.size(), 0);
  }
}

std::optional<DType> Emitter::TypeOf(base::DType dtype) {
  switch (dtype) {
    case base::DType::kFloat32:
      return DType::kFloat32;
    case base::DType::kFloat16:
      return DType::kFloat16;
    case base::DType::kBFloat16:
      return DType::kBFloat16;
    case base::DType::kInt32:
      return DType::kInt32;
    case base::DType::kInt64:
      return DType::kInt64;
    case base::DType::kBool:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

absl::StatusOr<Size> Emitter::SizeOf(const models::SymExpr& expr,
                                     const std::string& of) const {
  if (expr.is_unknown()) {
    return absl::UnimplementedError(
        absl::StrCat("a size of ", of, " is known only during a run"));
  }
  for (const std::string& symbol : expr.Symbols()) {
    if (symbol == graph_.batch_symbol || sizes_.contains(symbol)) continue;
    return absl::UnimplementedError(
        absl::StrCat("a size of ", of, " is ", expr.ToString(), ", and ",
                     symbol, " differs from request to request"));
  }
  if (const auto constant = expr.constant()) return Size(*constant);
  // The expression is evaluated at three batches (kProbes). A size that fits no
  // line through the values does not grow evenly with the batch.
  Size size;
  models::SymbolBindings bindings = sizes_;
  for (size_t p = 0; p < kProbes.size(); ++p) {
    if (!sizes_.contains(graph_.batch_symbol)) {
      bindings[graph_.batch_symbol] = kProbes[p];
    }
    const auto value = expr.Evaluate(bindings);
    if (!value.ok()) {
      return absl::UnimplementedError(absl::StrCat("a size of ", of, " is ",
                                                   expr.ToString(), ": ",
                                                   value.status().message()));
    }
    size.at[p] = *value;
  }
  if (!size.rows()) {
    return absl::UnimplementedError(
        absl::StrCat("a size of ", of, " is ", expr.ToString(),
                     ", which is not a multiple of the batch plus a constant"));
  }
  return size;
}

absl::StatusOr<Sizes> Emitter::DimsOf(models::ValueId id) const {
  const models::Value& value = graph_.value(id);
  if (!value.has_shape) {
    return absl::UnimplementedError(
        absl::StrCat("the shape of ", value.name, " is not known"));
  }
  Sizes dims;
  for (const models::SymExpr& expr : value.shape) {
    REFRACT_ASSIGN_OR_RETURN(const Size size, SizeOf(expr, value.name));
    dims.push_back(size);
  }
  if (dims.size() > cuda::kMaxRank) {
    return absl::UnimplementedError(
        absl::StrCat(value.name, " has ", dims.size(), " dimensions"));
  }
  return dims;
}

absl::StatusOr<Size> Emitter::SizeOf(const IntSource& source,
                                     const std::vector<int>& operands) const {
  if (source.is_literal()) return Size(source.literal);
  const int local = operands[source.operand];
  if (IsConstant(local) && plan_.constants[local].kind == Operand::Kind::kInt) {
    return Size(plan_.constants[local].i);
  }
  const auto number = numbers_.find(local);
  if (number != numbers_.end() &&
      number->second[0].kind == Operand::Kind::kInt) {
    Size size;
    for (size_t p = 0; p < kProbes.size(); ++p) {
      size.at[p] = number->second[p].i;
    }
    if (size.rows()) return size;
  }
  const models::Value& value = graph_.value(plan_.locals[local].id);
  return SizeOf(value.sym_value, value.name);
}

// Numbers that the model computes from sizes are evaluated at the probe
// batches, by the CPU's own code for sizes. A reader then sees whether the
// number is constant, grows with the batch, or does neither.
void Emitter::AddNumber(const Step& step) {
  if (step.outputs.size() != 1 || step.outputs[0] == kNoLocal) return;
  std::array<Operand, 3> results;
  for (size_t p = 0; p < kProbes.size(); ++p) {
    std::vector<Operand> operands(step.operands.size());
    for (size_t i = 0; i < operands.size(); ++i) {
      const int local = step.operands[i];
      const models::Value& value = graph_.value(plan_.locals[local].id);
      const auto number = numbers_.find(local);
      if (IsConstant(local)) {
        operands[i] = plan_.constants[local];
      } else if (number != numbers_.end()) {
        operands[i] = number->second[p];
      } else if (value.kind == models::ValueKind::kTensor) {
        const absl::StatusOr<Sizes> dims = DimsOfLocal(local);
        if (!dims.ok()) return;
        operands[i].kind = Operand::Kind::kTensor;
        for (const Size& dim : *dims) {
          operands[i].tensor.dims.push_back(dim.at[p]);
        }
      } else {
        const absl::StatusOr<Size> size = SizeOf(value.sym_value, value.name);
        if (!size.ok()) return;
        operands[i].kind = Operand::Kind::kInt;
        operands[i].i = size->at[p];
      }
    }
    std::vector<const Operand*> pointers;
    for (const Operand& operand : operands) pointers.push_back(&operand);
    absl::StatusOr<Operand> result = step.size->Evaluate(Operands(pointers));
    // Not an error yet: a reader of the number reports that it is missing.
    if (!result.ok()) return;
    results[p] = *std::move(result);
  }
  numbers_[step.outputs[0]] = std::move(results);
}

const BagRoom* Emitter::RoomOf(int offsets_local) const {
  const auto found =
      std::find_if(rooms_.begin(), rooms_.end(), [&](const BagRoom& room) {
        return plan_.inputs[room.part.offsets] == offsets_local;
      });
  return found == rooms_.end() ? nullptr : &*found;
}

std::optional<Tensor> Emitter::AddBagInput(size_t i, const models::Value& value,
                                           DType dtype) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.strides = {1};
  const size_t place = inputs_.size();
  for (BagRoom& room : rooms_) {
    if (room.part.offsets == i) {
      tensor.value = builder_.Input(value.name, dtype, {1, 1}, 1);
      tensor.dims = {Size(1)};
      for (size_t p = 0; p < kProbes.size(); ++p) {
        // One offset per row and the end of the last bag, which FillBags() adds
        // where the request has none.
        tensor.dims[0].at[p] = kProbes[p] + 1;
      }
      room.offsets_input = place;
      return tensor;
    }
    for (size_t e = 0; e < room.part.entries.size(); ++e) {
      if (room.part.entries[e] != i) continue;
      // For the translation the entries have the size of their room. Each
      // request uploads only its own number (Instance::SetCount()).
      tensor.value = builder_.CountedInput(value.name, dtype, room.capacity);
      tensor.dims = {Size(room.capacity)};
      room.entry_inputs[e] = place;
      return tensor;
    }
  }
  return std::nullopt;
}

// Products with weights take their left operand in the compute type and would
// convert it themselves (AsMatrix()); steps with a group copy it into a root of
// that type.
bool Emitter::ReadInComputeType(int local) const {
  for (const PlanOutput& output : plan_.outputs) {
    if (output.local == local) return false;
  }
  return std::all_of(
      plan_.steps.begin(), plan_.steps.end(), [&](const Step& step) {
        const auto reads =
            std::count(step.operands.begin(), step.operands.end(), local);
        // A step of sizes reads no elements.
        if (reads == 0 || step.size != nullptr || GroupOf(step)) return true;
        const auto* const product =
            step.fused ? std::get_if<MatMulOp>(&*step.fused) : nullptr;
        return product != nullptr && !product->batched && reads == 1 &&
               step.operands[product->a] == local &&
               IsConstant(step.operands[product->b]) &&
               (product->bias < 0 || IsConstant(step.operands[product->bias]));
      });
}

absl::Status Emitter::AddInputs() {
  for (size_t i = 0; i < plan_.inputs.size(); ++i) {
    const int local = plan_.inputs[i];
    const models::Value& value = graph_.value(plan_.locals[local].id);
    if (value.kind != models::ValueKind::kTensor) continue;  // a size
    const auto why = [&](const absl::Status& status) {
      return absl::UnimplementedError(
          absl::StrCat("input ", value.name, ": ", status.message()));
    };
    const std::optional<DType> dtype = TypeOf(value.dtype);
    if (!dtype) {
      return why(absl::UnimplementedError(
          absl::StrCat("its element type is ", base::Name(value.dtype))));
    }
    if (std::optional<Tensor> bags = AddBagInput(i, value, *dtype)) {
      inputs_.push_back(static_cast<int>(i));
      tensors_[local] = *std::move(bags);
      continue;
    }
    const absl::StatusOr<Sizes> dims = DimsOf(plan_.locals[local].id);
    if (!dims.ok()) return why(dims.status());
    const absl::Status lies = CheckDownloads(local, *dims);
    if (!lies.ok()) return why(lies);
    // A dimension of the batch becomes the rows of a matrix, all others its
    // columns.
    const bool has_rows = !dims->empty() && !(*dims)[0].constant();
    const Size rows = has_rows ? (*dims)[0] : Size(1);
    const Size cols = Product(*dims, has_rows ? 1 : 0, dims->size());
    if (*cols.constant() < 1)
      return why(absl::UnimplementedError("it has no elements"));
    Tensor tensor;
    tensor.dtype = *dtype;
    tensor.dims = *dims;
    // An input that a concatenation or interaction reads is uploaded into its
    // columns there. The upload converts inputs of which no reader needs more
    // than the compute type; any other reader gets all digits of the request.
    const auto place = places_.find(local);
    const bool converts = cuda::IsFloating(*dtype) && *dtype != compute_type_ &&
                          KeptType(local) == compute_type_ &&
                          *rows.rows() == Rows{1, 0} && dims->size() == 2 &&
                          ReadInComputeType(local);
    if (place != places_.end() && (converts || *dtype == compute_type_)) {
      REFRACT_ASSIGN_OR_RETURN(const cuda::ValueId root,
                               GroupRoot(place->second.group));
      tensor.value = builder_.InputView(root, value.name, place->second.first,
                                        *cols.constant(), *dtype);
      tensor.dtype = compute_type_;
      placed_[local] = true;
    } else {
      if (converts) tensor.dtype = compute_type_;
      tensor.value = builder_.Input(value.name, tensor.dtype, *rows.rows(),
                                    *cols.constant(), *dtype);
    }
    inputs_.push_back(static_cast<int>(i));
    // Columns are dense in their row; rows are `ld` apart, which counts the
    // padding, or the other columns of the group's root.
    tensor.strides.assign(dims->size(), 0);
    Size stride = 1;
    for (size_t d = dims->size(); d-- > (has_rows ? 1 : 0);) {
      tensor.strides[d] = stride;
      stride = stride * (*dims)[d];
    }
    if (has_rows) tensor.strides[0] = builder_.value(tensor.value).ld;
    tensors_[local] = std::move(tensor);
  }
  return absl::OkStatus();
}

absl::Status Emitter::CheckDownloads(int local, const Sizes& dims) const {
  const std::optional<int> batch = BatchDimOf(dims);
  if (!batch)
    return absl::UnimplementedError(
        "several of its dimensions depend on the batch");
  if (*batch > 0) {
    return absl::UnimplementedError(
        absl::StrCat("its batch dimension is ", *batch, ", not the first"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Emitter::Get(int local) {
  const auto found = tensors_.find(local);
  if (found != tensors_.end()) return found->second;
  if (IsConstant(local)) return AddConstant(local);
  return absl::InternalError(
      absl::StrCat(plan_.locals[local].name, " is read before it is computed"));
}

std::optional<float> Emitter::NumberOf(int local) const {
  const Operand& operand = plan_.constants[local];
  if (IsConstant(local)) {
    switch (operand.kind) {
      case Operand::Kind::kInt:
        return static_cast<float>(operand.i);
      case Operand::Kind::kFloat:
        return static_cast<float>(operand.f);
      case Operand::Kind::kBool:
        return operand.b ? 1.0f : 0.0f;
      default:
        return std::nullopt;
    }
  }
  const auto found = numbers_.find(local);
  if (found != numbers_.end()) {
    // The number is known only if it is the same at every probe batch.
    std::optional<double> number;
    for (const Operand& at : found->second) {
      const double value = at.kind == Operand::Kind::kInt     ? at.i
                           : at.kind == Operand::Kind::kFloat ? at.f
                                                              : at.b;
      if (number && *number != value) return std::nullopt;
      number = value;
    }
    return static_cast<float>(*number);
  }
  const models::Value& value = graph_.value(plan_.locals[local].id);
  if (value.kind != models::ValueKind::kSymInt) return std::nullopt;
  const absl::StatusOr<Size> size = SizeOf(value.sym_value, value.name);
  if (!size.ok() || !size->constant()) return std::nullopt;
  return static_cast<float>(*size->constant());
}

std::optional<std::vector<int64_t>> Emitter::IntegersOf(int local) const {
  if (!IsConstant(local)) return std::nullopt;
  const Operand& operand = plan_.constants[local];
  if (operand.kind != Operand::Kind::kTensor) return std::nullopt;
  std::vector<int64_t> values;
  for (int64_t i = 0; i < operand.tensor.num_elements(); ++i) {
    if (operand.tensor.dtype == base::DType::kInt64) {
      values.push_back(operand.tensor.as<int64_t>()[i]);
    } else if (operand.tensor.dtype == base::DType::kInt32) {
      values.push_back(operand.tensor.as<int32_t>()[i]);
    } else {
      return std::nullopt;
    }
  }
  return values;
}

}  // namespace refract::runtime::cuda_plan
