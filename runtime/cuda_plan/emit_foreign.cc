// Foreign operators: operators without a form of our own on the device.
// LibTorch computes them, between two captured pieces of the program.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"
#include "runtime/cuda_plan/foreign.h"

namespace refract::runtime::cuda_plan {
namespace {

// The local's number, if it is known before the program runs.
absl::StatusOr<cuda::ForeignArgument> LocalNumber(int local,
                                                  const Emitter& emitter) {
  cuda::ForeignArgument argument;
  const Local& known = emitter.plan().locals[local];
  if (known.is_constant) {
    const Operand& constant = emitter.plan().constants[local];
    switch (constant.kind) {
      case Operand::Kind::kInt:
        argument.kind = cuda::ForeignKind::kInteger;
        argument.integer = {0, constant.i};
        return argument;
      case Operand::Kind::kFloat:
        argument.kind = cuda::ForeignKind::kReal;
        argument.real = constant.f;
        return argument;
      case Operand::Kind::kBool:
        argument.kind = cuda::ForeignKind::kTruth;
        argument.integer = {0, constant.b ? 1 : 0};
        return argument;
      case Operand::Kind::kNone:
        return argument;
      default:
        return absl::UnimplementedError(
            absl::StrCat(known.name, " is not a number"));
    }
  }
  const IntSource source{.operand = 0};
  REFRACT_ASSIGN_OR_RETURN(const Size size, emitter.SizeOf(source, {local}));
  const std::optional<cuda::Rows> rows = size.rows();
  if (!rows) {
    return absl::UnimplementedError(absl::StrCat(
        known.name, " is not a multiple of the batch plus a constant"));
  }
  argument.kind = cuda::ForeignKind::kInteger;
  argument.integer = *rows;
  return argument;
}

// A tensor in the type of the graph: LibTorch's type promotion would give other
// results for values kept in fewer bits.
absl::StatusOr<Tensor> InGraphType(int local, Emitter& emitter) {
  const Local& known = emitter.plan().locals[local];
  if (known.is_constant) return emitter.ExactConstant(local);
  const std::optional<cuda::DType> wanted = Emitter::TypeOf(known.dtype);
  if (!wanted) {
    return absl::UnimplementedError(
        absl::StrCat(known.name, " is ", base::Name(known.dtype)));
  }
  REFRACT_ASSIGN_OR_RETURN(const Tensor tensor, emitter.Get(local));
  if (tensor.dtype == *wanted) return tensor;
  return emitter.Dense(tensor, absl::StrCat(known.name, ".exact"), *wanted);
}

}  // namespace

absl::Status EmitForeign(const NodeStep& node, ForeignOperators& operators,
                         Emitter& emitter) {
  std::vector<ForeignOperandFacts> facts;
  for (const int local : node.operands) {
    const Local& known = emitter.plan().locals[local];
    const bool is_constant = emitter.IsConstant(local);
    bool is_tensor =
        emitter.graph().value(known.id).kind == models::ValueKind::kTensor;
    if (is_constant) {
      const Operand::Kind kind = emitter.plan().constants[local].kind;
      is_tensor =
          kind == Operand::Kind::kTensor || kind == Operand::Kind::kWeight;
    }
    facts.push_back({is_tensor, is_constant, known.dtype});
  }
  // Results first: refusals must come before anything is emitted.
  struct Wanted {
    int local;
    Sizes dims;
    cuda::DType dtype;
  };
  std::vector<Wanted> wanted;
  for (const int local : node.outputs) {
    if (local == kNoLocal) {
      wanted.push_back({kNoLocal, {}, cuda::DType::kFloat32});
      continue;
    }
    const Local& known = emitter.plan().locals[local];
    const std::optional<cuda::DType> dtype = Emitter::TypeOf(known.dtype);
    if (!dtype) {
      return absl::UnimplementedError(
          absl::StrCat("its result is ", base::Name(known.dtype)));
    }
    REFRACT_ASSIGN_OR_RETURN(Sizes dims, emitter.DimsOfLocal(local));
    wanted.push_back({local, std::move(dims), *dtype});
  }
  REFRACT_ASSIGN_OR_RETURN(const ForeignOperators::Made made,
                           operators.Make(node.node, facts));
  cuda::ForeignOp op;
  op.kernel = made.kernel;
  op.counts_faults = made.counts_faults;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const int local = node.operands[i];
    if (!facts[i].is_tensor) {
      REFRACT_ASSIGN_OR_RETURN(cuda::ForeignArgument argument,
                               LocalNumber(local, emitter));
      op.arguments.push_back(std::move(argument));
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(const Tensor tensor, InGraphType(local, emitter));
    cuda::ForeignArgument argument;
    argument.kind = cuda::ForeignKind::kTensor;
    REFRACT_ASSIGN_OR_RETURN(argument.tensor, emitter.RefTo(tensor));
    REFRACT_ASSIGN_OR_RETURN(
        argument.dims,
        Emitter::RowsOf(tensor.dims, emitter.plan().locals[local].name));
    op.arguments.push_back(std::move(argument));
  }
  for (const Wanted& result : wanted) {
    op.results.emplace_back();
    if (result.local == kNoLocal) continue;
    REFRACT_ASSIGN_OR_RETURN(
        Tensor out, emitter.NewResult(result.local, result.dims, result.dtype));
    REFRACT_ASSIGN_OR_RETURN(op.results.back().tensor, emitter.RefTo(out));
    REFRACT_ASSIGN_OR_RETURN(
        op.results.back().dims,
        Emitter::RowsOf(out.dims, emitter.plan().locals[result.local].name));
    emitter.Set(result.local, std::move(out));
  }
  emitter.builder().Foreign(std::move(op));
  return absl::OkStatus();
}

absl::Status OrForeign(absl::Status own, size_t progress, const NodeStep& node,
                       Emitter& emitter) {
  // A form that has emitted something before it failed cannot be taken back, so
  // that its error is final.
  if (!absl::IsUnimplemented(own) || emitter.foreign() == nullptr ||
      emitter.progress() != progress) {
    return own;
  }
  const absl::Status foreign = EmitForeign(node, *emitter.foreign(), emitter);
  if (foreign.ok()) return foreign;
  return absl::Status(
      foreign.code(),
      absl::StrCat(own.message(), "; by LibTorch: ", foreign.message()));
}

}  // namespace refract::runtime::cuda_plan
