#include "models/shapes/interpreter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::models {
namespace {

using runtime::aten::Operand;

Observation Observe(const Operand& operand) {
  Observation seen;
  seen.seen = true;
  switch (operand.kind) {
    case Operand::Kind::kTensor:
      seen.spec = {operand.tensor.dtype, operand.tensor.dims};
      break;
    case Operand::Kind::kWeight:
      seen.spec.dtype = operand.weight->dtype;
      seen.spec.dims.assign(operand.weight->sizes.begin(),
                            operand.weight->sizes.end());
      break;
    case Operand::Kind::kInt:
      seen.number = operand.i;
      break;
    default:
      break;
  }
  return seen;
}

// Copies a weight that is itself an output, whatever its strides.
absl::StatusOr<base::Tensor> CopyWeight(const WeightView& weight) {
  Node node;
  node.name = "output";
  node.op = "aten.clone.default";
  node.args = {{"self", ValueRef{0}}};
  node.outputs = {1};
  REFRACT_ASSIGN_OR_RETURN(const auto caller,
                           runtime::aten::Caller::Create(node));
  Operand operand;
  operand.kind = Operand::Kind::kWeight;
  operand.weight = &weight;
  std::vector<runtime::aten::Result> results;
  REFRACT_RETURN_IF_ERROR(caller->Call({operand}, results));
  return base::Tensor::CopyOf(results[0].operand.tensor);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Interpreter>> Interpreter::Create(
    const Graph& graph, const WeightStore& weights) {
  std::unique_ptr<Interpreter> interpreter(new Interpreter());
  interpreter->graph_ = &graph;
  interpreter->weights_.resize(graph.values.size());
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (!graph.values[id].is_weight()) continue;
    REFRACT_ASSIGN_OR_RETURN(interpreter->weights_[id],
                             weights.GetAsStored(graph.values[id].weight));
  }
  REFRACT_RETURN_IF_ERROR(
      interpreter->tables_.Replace(graph, interpreter->weights_));
  REFRACT_ASSIGN_OR_RETURN(interpreter->nodes_,
                           runtime::aten::NodeSequence::Create(graph));
  return interpreter;
}

// Runs the nodes in order on LibTorch's CPU operators and notes dtype, sizes or
// number of every value. After a failure `run` has the values up to the failed
// node, whose id is in run.failed.
absl::Status Interpreter::Run(absl::Span<const base::TensorView> inputs,
                              InterpreterRun& run) const {
  run = {};
  const Graph& graph = *graph_;
  if (inputs.size() != graph.inputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(inputs.size(), " inputs given, but the model has ",
                     graph.inputs.size()));
  }
  run.values.resize(graph.values.size());
  // A slot per value; NodeSequence frees the tensor of a slot after its last
  // reader.
  std::vector<runtime::aten::HeldValue> slots(graph.values.size());
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (!graph.values[id].is_weight()) continue;
    slots[id].operand.kind = Operand::Kind::kWeight;
    slots[id].operand.weight = &weights_[id];
    run.values[id] = Observe(slots[id].operand);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    runtime::aten::HeldValue& slot = slots[graph.inputs[i]];
    slot.operand.kind = Operand::Kind::kTensor;
    slot.operand.tensor = inputs[i];
    run.values[graph.inputs[i]] = Observe(slot.operand);
    // Table rows in a row format are decoded when their ids are known: inputs
    // here, computed ids below.
    tables_.Read(graph.inputs[i], inputs[i]);
  }
  REFRACT_RETURN_IF_ERROR(nodes_.Run(
      slots,
      [this, &run](ValueId id, const Operand& operand) {
        run.values[id] = Observe(operand);
        if (operand.kind == Operand::Kind::kTensor) {
          tables_.Read(id, operand.tensor);
        }
      },
      run.failed));
  for (ValueId id : graph.outputs) {
    const Operand& operand = slots[id].operand;
    if (operand.kind == Operand::Kind::kTensor) {
      REFRACT_ASSIGN_OR_RETURN(base::Tensor copy,
                               base::Tensor::CopyOf(operand.tensor));
      run.outputs.push_back(std::move(copy));
    } else if (operand.kind == Operand::Kind::kWeight) {
      REFRACT_ASSIGN_OR_RETURN(base::Tensor copy, CopyWeight(*operand.weight));
      run.outputs.push_back(std::move(copy));
    } else {
      return absl::UnimplementedError(
          absl::StrCat("output ", graph.value(id).name, " is no tensor"));
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::models
