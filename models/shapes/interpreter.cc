#include "models/shapes/interpreter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/aten/size_ops.h"

namespace refract::models {
namespace {

using aten::Operand;

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

bool LiesIn(const Operand& view, const Operand& base) {
  return view.kind == Operand::Kind::kTensor &&
         base.kind == Operand::Kind::kTensor &&
         view.tensor.data >= base.tensor.data &&
         view.tensor.data < base.tensor.data + base.tensor.bytes;
}

// Copies a weight that is itself an output, whatever its strides.
absl::StatusOr<base::Tensor> CopyWeight(const WeightView& weight) {
  Node node;
  node.name = "output";
  node.op = "aten.clone.default";
  node.args = {{"self", ValueRef{0}}};
  node.outputs = {1};
  REFRACT_ASSIGN_OR_RETURN(const auto caller, aten::Caller::Create(node));
  Operand operand;
  operand.kind = Operand::Kind::kWeight;
  operand.weight = &weight;
  std::vector<aten::Result> results;
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
                             weights.Get(graph.values[id].weight));
  }
  std::vector<NodeId> last_reader(graph.values.size(), kNoNode);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    std::unique_ptr<const aten::Caller> caller;
    if (!aten::IsSizeOp(node.op)) {
      REFRACT_ASSIGN_OR_RETURN(caller, aten::Caller::Create(node));
    }
    interpreter->callers_.push_back(std::move(caller));
    for (ValueId id : InputsOf(node)) last_reader[id] = static_cast<NodeId>(n);
  }
  for (ValueId id : graph.outputs) last_reader[id] = kNoNode;
  interpreter->dies_.resize(graph.nodes.size());
  for (size_t id = 0; id < last_reader.size(); ++id) {
    if (last_reader[id] == kNoNode) continue;
    interpreter->dies_[last_reader[id]].push_back(static_cast<ValueId>(id));
  }
  return interpreter;
}

absl::Status Interpreter::Run(absl::Span<const base::TensorView> inputs,
                              InterpreterRun& run) const {
  run = {};
  const Graph& graph = *graph_;
  if (inputs.size() != graph.inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        inputs.size(), " inputs where the model has ", graph.inputs.size()));
  }
  run.values.resize(graph.values.size());
  struct Slot {
    Operand operand;
    // What keeps the operand's memory: the call that made it, and for a view
    // also those that made what it is a view of.
    std::vector<std::shared_ptr<const std::vector<aten::Result>>> keep;
  };
  std::vector<Slot> slots(graph.values.size());
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (!graph.values[id].is_weight()) continue;
    slots[id].operand.kind = Operand::Kind::kWeight;
    slots[id].operand.weight = &weights_[id];
    run.values[id] = Observe(slots[id].operand);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    Slot& slot = slots[graph.inputs[i]];
    slot.operand.kind = Operand::Kind::kTensor;
    slot.operand.tensor = inputs[i];
    run.values[graph.inputs[i]] = Observe(slot.operand);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const std::vector<ValueId> reads = InputsOf(node);
    std::vector<Operand> operands;
    for (ValueId id : reads) operands.push_back(slots[id].operand);
    auto results = std::make_shared<std::vector<aten::Result>>();
    absl::Status status;
    if (callers_[n] != nullptr) {
      status = callers_[n]->Call(operands, *results);
    } else {
      const absl::StatusOr<Operand> size = aten::EvaluateSizeOp(node, operands);
      status = size.status();
      if (size.ok()) {
        results->emplace_back();
        results->back().operand = *size;
      }
    }
    if (!status.ok()) {
      run.failed = static_cast<NodeId>(n);
      return status;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id == kNoValue) continue;
      Slot& slot = slots[id];
      slot.operand = (*results)[i].operand;
      slot.keep = {results};
      for (ValueId read : reads) {
        if (!LiesIn(slot.operand, slots[read].operand)) continue;
        slot.keep.insert(slot.keep.end(), slots[read].keep.begin(),
                         slots[read].keep.end());
      }
      run.values[id] = Observe(slots[id].operand);
    }
    for (ValueId id : dies_[n]) slots[id] = {};
  }
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
