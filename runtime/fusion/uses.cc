// Bookkeeping of the passes; each pass builds Uses anew after the plan changed.

#include "runtime/fusion/uses.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace refract::runtime {

Uses::Uses(const Plan& plan)
    : producer_(plan.locals.size(), -1),
      readers_(plan.locals.size()),
      is_output_(plan.locals.size(), false) {
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const int step = static_cast<int>(i);
    for (int local : plan.steps[i].operands) {
      std::vector<int>& readers = readers_[local];
      // A step that reads a value twice is one reader.
      if (readers.empty() || readers.back() != step) readers.push_back(step);
    }
    for (int local : plan.steps[i].outputs) {
      if (local != kNoLocal) producer_[local] = step;
    }
  }
  for (const PlanOutput& output : plan.outputs) {
    is_output_[output.local] = true;
  }
}

const ElementChainOp* ChainOf(const Step& step) {
  return step.fused ? std::get_if<ElementChainOp>(&*step.fused) : nullptr;
}

std::optional<std::vector<int64_t>> ConstantInts(const Plan& plan, int local) {
  if (!plan.locals[local].is_constant) return std::nullopt;
  const Operand& operand = plan.constants[local];
  if (operand.kind != Operand::Kind::kTensor ||
      operand.tensor.dtype != base::DType::kInt64 ||
      operand.tensor.dims.size() != 1) {
    return std::nullopt;
  }
  const auto values = operand.tensor.as<int64_t>();
  return std::vector<int64_t>(values.begin(), values.end());
}

bool SameShape(const models::Graph& graph, const Plan& plan, int a, int b) {
  const models::ValueId x = plan.locals[a].id;
  const models::ValueId y = plan.locals[b].id;
  if (x == models::kNoValue || y == models::kNoValue) return false;
  return graph.value(x).has_shape && graph.value(y).has_shape &&
         graph.value(x).shape == graph.value(y).shape;
}

bool IsKernelOf(const Step& step, absl::string_view op) {
  return step.kernel != nullptr && !step.fused && step.op == op;
}

ElementChainOp ChainAfter(const Step& reader, int result,
                          std::vector<int>& operands, int& given) {
  // New index of each operand of the reader.
  std::vector<int> place(reader.operands.size(), kNoOperand);
  for (size_t i = 0; i < reader.operands.size(); ++i) {
    if (reader.operands[i] == result) continue;
    place[i] = static_cast<int>(operands.size());
    operands.push_back(reader.operands[i]);
  }
  ElementChainOp chain = *ChainOf(reader);
  given = -1;
  for (size_t i = 0; i < chain.inputs.size(); ++i) {
    ElementInput& input = chain.inputs[i];
    if (input.operand == kNoOperand) continue;
    const bool is_result = reader.operands[input.operand] == result;
    input.operand = place[input.operand];
    if (!is_result) continue;
    const int self = static_cast<int>(i);
    if (given < 0) {
      given = self;
      continue;
    }
    // A second input with the same value.
    for (ElementInstruction& instruction : chain.code) {
      for (int* argument : {&instruction.a, &instruction.b, &instruction.c}) {
        if (*argument == self) *argument = given;
      }
    }
  }
  if (chain.like != kNoOperand) chain.like = place[chain.like];
  return chain;
}

void TakeNodes(const Step& from, Step& into) {
  into.nodes.insert(into.nodes.end(), from.nodes.begin(), from.nodes.end());
  std::sort(into.nodes.begin(), into.nodes.end());
}

void DropSteps(const std::vector<bool>& dropped, Plan& plan) {
  std::vector<Step> kept;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (!dropped[i]) kept.push_back(std::move(plan.steps[i]));
  }
  plan.steps = std::move(kept);
}

}  // namespace refract::runtime
