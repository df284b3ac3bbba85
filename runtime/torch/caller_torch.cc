#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/graph/script_region.h"
#include "models/passes/complex_numbers.h"
#include "runtime/torch/bind_torch.h"
#include "runtime/torch/caller.h"
#include "runtime/torch/control_caller.h"
#include "runtime/torch/convert_torch.h"
#include "runtime/torch/guards/guards_torch.h"
#include "runtime/torch/region_caller_torch.h"

namespace refract::runtime::aten {

namespace {

class BoxedCaller final : public Caller {
 public:
  BoxedCaller(const models::Node& node, c10::OperatorHandle op, Bound bound,
              std::optional<ComplexArguments> complex)
      : name_(absl::StrCat(node.name, " (", node.op, ")")),
        op_(std::move(op)),
        guard_(RuleOf(op_.operator_name()).guard),
        bound_(std::move(bound)),
        num_results_(node.outputs.size()),
        complex_(std::move(complex)) {}

  absl::Status Call(absl::Span<const Operand> operands,
                    std::vector<Result>& results) const override {
    if (operands.size() != bound_.num_operands) {
      return absl::InternalError(absl::StrCat(name_, ": ", operands.size(),
                                              " operands, not ",
                                              bound_.num_operands));
    }
    UseOneThreadHere();
    // An error may come after some results were appended; they are dropped
    // again.
    const size_t first = results.size();
    absl::Status status =
        Guarded(name_, [&] { return CallOrThrow(operands, results); });
    if (status.ok() && results.size() - first != num_results_) {
      status = absl::InvalidArgumentError(
          absl::StrCat(name_, ": gives ", results.size() - first,
                       " results, but the graph's node has ", num_results_));
    }
    if (!status.ok()) results.resize(first);
    return status;
  }

 private:
  absl::Status CallOrThrow(absl::Span<const Operand> operands,
                           std::vector<Result>& results) const {
    const c10::InferenceMode no_gradient;
    torch::jit::Stack stack;
    stack.reserve(bound_.slots.size());
    for (const Slot& slot : bound_.slots) {
      absl::StatusOr<c10::IValue> value = Fill(slot, operands);
      if (!value.ok()) return base::Annotate(value.status(), name_);
      if (complex_) JoinPairs(slot, complex_->operands, *value);
      stack.push_back(*std::move(value));
    }
    // The guard sees arguments as the operator will, and may cut off ids that
    // no bag reads.
    if (guard_ != nullptr) guard_(stack);
    op_.callBoxed(stack);
    if (complex_) {
      const absl::Status status = SplitPairs(*complex_, stack);
      if (!status.ok()) return base::Annotate(status, name_);
    }
    for (const c10::IValue& value : stack) {
      const absl::Status status = AppendResult(value, results);
      if (!status.ok()) return base::Annotate(status, name_);
    }
    return absl::OkStatus();
  }

  const std::string name_;
  const c10::OperatorHandle op_;
  const Guard guard_;  // null for most
  const Bound bound_;
  const size_t num_results_;
  const std::optional<ComplexArguments> complex_;  // of complex numbers only
};

// "aten.linear.default" → {"aten::linear", ""}.
std::optional<c10::OperatorName> ToOperatorName(absl::string_view op) {
  const std::vector<std::string> parts = absl::StrSplit(op, '.');
  if (parts.size() != 3) return std::nullopt;
  return c10::OperatorName(absl::StrCat(parts[0], "::", parts[1]),
                           parts[2] == "default" ? "" : parts[2]);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Caller>> Caller::Create(
    const models::Node& node) {
  if (models::IsScriptRegion(node)) return CreateRegionCaller(node);
  if (models::IsControlRegion(node)) return CreateControlCaller(node);
  const std::optional<c10::OperatorName> name = ToOperatorName(
      models::IsComplexOp(node.op)
          ? absl::StrCat("aten.", node.op.substr(models::kComplexSpace.size()))
          : node.op);
  std::optional<c10::OperatorHandle> op;
  if (name) op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op) {
    return absl::NotFoundError(
        absl::StrCat(node.name, ": LibTorch has no operator ", node.op,
                     " (an operator library may be missing: --op-library)"));
  }
  const std::string why_not = RuleOf(op->operator_name()).why_not;
  if (!why_not.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.name, ": ", node.op, " is not run: ", why_not));
  }
  const c10::FunctionSchema& schema = op->schema();
  // Operands lie in memory of requests, weights or other results, which must
  // not change.
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.name, ": ", node.op, " writes into its argument \"",
                       argument.name(), "\""));
    }
  }
  Bound bound;
  std::optional<ComplexArguments> complex;
  if (models::IsComplexOp(node.op)) complex.emplace();
  REFRACT_RETURN_IF_ERROR(Guarded(node.name, [&]() -> absl::Status {
    const c10::InferenceMode no_gradient;
    absl::StatusOr<Bound> result =
        complex ? BindComplexArguments(schema, node, *complex)
                : BindArguments(schema, node);
    if (!result.ok()) return base::Annotate(result.status(), node.name);
    bound = *std::move(result);
    return absl::OkStatus();
  }));
  return std::make_unique<BoxedCaller>(node, *std::move(op), std::move(bound),
                                       std::move(complex));
}

void UseOneThread() {
  at::set_num_threads(1);
  try {
    at::set_num_interop_threads(1);
  } catch (const c10::Error&) {
    // Already set, or inter-op work has begun. Nothing here starts such work.
  }
}

}  // namespace refract::runtime::aten
