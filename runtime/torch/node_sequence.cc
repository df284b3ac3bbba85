#include "runtime/torch/node_sequence.h"

#include <utility>

#include "base/status_macros.h"
#include "runtime/torch/size_ops.h"

namespace refract::runtime::aten {

bool LiesIn(const Operand& view, const Operand& base) {
  return view.kind == Operand::Kind::kTensor &&
         base.kind == Operand::Kind::kTensor &&
         view.tensor.data >= base.tensor.data &&
         view.tensor.data < base.tensor.data + base.tensor.bytes;
}

absl::StatusOr<NodeSequence> NodeSequence::Create(const models::Graph& graph) {
  NodeSequence sequence;
  sequence.graph_ = &graph;
  std::vector<models::NodeId> last_reader(graph.values.size(), models::kNoNode);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const models::Node& node = graph.nodes[n];
    std::unique_ptr<const Caller> caller;
    if (!IsSizeOp(node.op)) {
      REFRACT_ASSIGN_OR_RETURN(caller, Caller::Create(node));
    }
    sequence.callers_.push_back(std::move(caller));
    for (models::ValueId id : models::InputsOf(node))
      last_reader[id] = static_cast<models::NodeId>(n);
  }
  // Outputs live until the caller has read them.
  for (models::ValueId id : graph.outputs) last_reader[id] = models::kNoNode;
  sequence.dies_.resize(graph.nodes.size());
  for (size_t id = 0; id < last_reader.size(); ++id) {
    if (last_reader[id] == models::kNoNode) continue;
    sequence.dies_[last_reader[id]].push_back(static_cast<models::ValueId>(id));
  }
  return sequence;
}

absl::Status NodeSequence::Run(
    std::vector<HeldValue>& slots,
    absl::FunctionRef<void(models::ValueId, const Operand&)> seen,
    models::NodeId& failed) const {
  for (size_t n = 0; n < graph_->nodes.size(); ++n) {
    const models::Node& node = graph_->nodes[n];
    const std::vector<models::ValueId> reads = models::InputsOf(node);
    std::vector<Operand> operands;
    for (models::ValueId id : reads) operands.push_back(slots[id].operand);
    auto results = std::make_shared<std::vector<Result>>();
    absl::Status status;
    if (callers_[n] != nullptr) {
      status = callers_[n]->Call(operands, *results);
    } else {
      const absl::StatusOr<Operand> size = EvaluateSizeOp(node, operands);
      status = size.status();
      if (size.ok()) {
        results->emplace_back();
        results->back().operand = *size;
      }
    }
    if (!status.ok()) {
      failed = static_cast<models::NodeId>(n);
      return status;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const models::ValueId id = node.outputs[i];
      if (id == models::kNoValue) continue;
      HeldValue& slot = slots[id];
      slot.operand = (*results)[i].operand;
      slot.keep = {results};
      // A result that begins in an operand's memory is a view: it keeps the
      // operand's owners alive beyond the operand's last reader.
      for (models::ValueId read : reads) {
        if (!LiesIn(slot.operand, slots[read].operand)) continue;
        slot.keep.insert(slot.keep.end(), slots[read].keep.begin(),
                         slots[read].keep.end());
      }
      seen(id, slot.operand);
    }
    for (models::ValueId id : dies_[n]) slots[id] = {};
  }
  return absl::OkStatus();
}

}  // namespace refract::runtime::aten
