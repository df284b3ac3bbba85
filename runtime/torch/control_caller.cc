#include "runtime/torch/control_caller.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/control_region.h"
#include "runtime/torch/loop_limits.h"
#include "runtime/torch/node_sequence.h"
#include "runtime/torch/size_ops.h"

namespace refract::runtime::aten {
namespace {

using HeldValues = std::vector<HeldValue>;

// An operator on its own; the values it reads are its operands, in order.
absl::StatusOr<std::unique_ptr<const Caller>> OneOperator(
    absl::string_view op, std::vector<models::NamedArgument> args) {
  models::Node node;
  node.name = std::string(op);
  node.op = std::string(op);
  node.args = std::move(args);
  node.outputs = {0};
  return Caller::Create(node);
}

// One result of `caller`, which keeps its own memory.
absl::StatusOr<HeldValue> CallOne(const Caller& caller,
                                  absl::Span<const Operand> operands) {
  auto results = std::make_shared<std::vector<Result>>();
  REFRACT_RETURN_IF_ERROR(caller.Call(operands, *results));
  HeldValue slot;
  slot.operand = results->front().operand;
  slot.keep = {std::move(results)};
  return slot;
}

class ControlCaller final : public Caller {
 public:
  static absl::StatusOr<std::unique_ptr<const Caller>> Create(
      const models::Node& node) {
    auto caller = std::unique_ptr<ControlCaller>(new ControlCaller());
    caller->name_ = node.name;
    REFRACT_ASSIGN_OR_RETURN(caller->region_, models::ReadControlRegion(node));
    for (const models::Graph& graph : caller->region_.graphs) {
      auto sequence = NodeSequence::Create(graph);
      if (!sequence.ok()) return base::Annotate(sequence.status(), node.name);
      caller->sequences_.push_back(*std::move(sequence));
    }
    // Inputs are values, which become operands of a call, or literals, which
    // Inputs() sets.
    Operand literal;
    for (const models::Argument& input : caller->region_.inputs) {
      if (std::holds_alternative<models::ValueRef>(input)) {
        ++caller->num_operands_;
      } else if (!IsLiteralNumber(input, literal)) {
        return absl::InvalidArgumentError(
            absl::StrCat(node.name,
                         ": an input of the branch or loop is neither a value "
                         "nor a number"));
      }
    }
    REFRACT_ASSIGN_OR_RETURN(caller->is_true_,
                             OneOperator("aten.is_nonzero.default",
                                         {{"self", models::ValueRef{0}}}));
    REFRACT_ASSIGN_OR_RETURN(
        caller->copy_,
        OneOperator("aten.clone.default", {{"self", models::ValueRef{0}}}));
    REFRACT_ASSIGN_OR_RETURN(
        caller->size_,
        OneOperator("aten.size.int",
                    {{"self", models::ValueRef{0}}, {"dim", int64_t{0}}}));
    REFRACT_ASSIGN_OR_RETURN(
        caller->select_,
        OneOperator("aten.select.int", {{"self", models::ValueRef{0}},
                                        {"dim", int64_t{0}},
                                        {"index", models::ValueRef{1}}}));
    return caller;
  }

  absl::Status Call(absl::Span<const Operand> operands,
                    std::vector<Result>& results) const override {
    if (operands.size() != num_operands_) {
      return absl::InternalError(absl::StrCat(
          name_, ": ", operands.size(), " operands, not ", num_operands_));
    }
    const size_t first = results.size();
    const absl::Status status = Run(Inputs(operands), results);
    if (status.ok()) return status;
    results.resize(first);
    return base::Annotate(status, name_);
  }

 private:
  HeldValues Inputs(absl::Span<const Operand> operands) const {
    HeldValues inputs;
    size_t next = 0;
    for (const models::Argument& input : region_.inputs) {
      Operand& operand = inputs.emplace_back().operand;
      if (!IsLiteralNumber(input, operand)) operand = operands[next++];
    }
    return inputs;
  }

  absl::Status Run(HeldValues inputs, std::vector<Result>& results) const {
    HeldValues outputs;
    // The condition of cond comes first among the inputs; the branches read the
    // others.
    switch (region_.kind) {
      case models::ControlKind::kCond: {
        REFRACT_ASSIGN_OR_RETURN(const bool taken, IsTrue(inputs[0].operand));
        inputs.erase(inputs.begin());
        REFRACT_ASSIGN_OR_RETURN(outputs,
                                 RunGraph(taken ? 0 : 1, std::move(inputs)));
        break;
      }
      case models::ControlKind::kWhileLoop: {
        REFRACT_ASSIGN_OR_RETURN(outputs, RunWhile(std::move(inputs)));
        break;
      }
      case models::ControlKind::kMap:
      case models::ControlKind::kScan: {
        REFRACT_ASSIGN_OR_RETURN(outputs, RunRounds(std::move(inputs)));
        break;
      }
    }
    // Copies: results may be views of an operand, or of memory of `outputs`.
    for (const HeldValue& output : outputs) {
      if (output.operand.kind == Operand::Kind::kTensor ||
          output.operand.kind == Operand::Kind::kWeight) {
        REFRACT_RETURN_IF_ERROR(copy_->Call({output.operand}, results));
      } else {
        results.emplace_back();
        results.back().operand = output.operand;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<HeldValues> RunGraph(size_t index, HeldValues inputs) const {
    const models::Graph& graph = region_.graphs[index];
    // A graph runs on values of its own, indexed by ValueId; NodeSequence frees
    // each after its last reader.
    HeldValues slots(graph.values.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      slots[graph.inputs[i]] = std::move(inputs[i]);
    }
    models::NodeId failed = models::kNoNode;
    REFRACT_RETURN_IF_ERROR(sequences_[index].Run(
        slots, [](models::ValueId, const Operand&) {}, failed));
    HeldValues outputs;
    for (models::ValueId id : graph.outputs) outputs.push_back(slots[id]);
    return outputs;
  }

  // Graph 0 is the condition, graph 1 the body; both read all inputs, and the
  // body returns the carried values, which come first.
  absl::StatusOr<HeldValues> RunWhile(HeldValues inputs) const {
    for (int64_t round = 0;; ++round) {
      REFRACT_RETURN_IF_ERROR(CheckLoopRound(round));
      REFRACT_ASSIGN_OR_RETURN(const HeldValues more, RunGraph(0, inputs));
      REFRACT_ASSIGN_OR_RETURN(const bool again, IsTrue(more[0].operand));
      if (!again) break;
      REFRACT_ASSIGN_OR_RETURN(HeldValues next, RunGraph(1, inputs));
      std::move(next.begin(), next.end(), inputs.begin());
    }
    inputs.resize(region_.carried);
    return inputs;
  }

  // map and scan: round i reads element i of each mapped tensor. Carried values
  // go from round to round (map has none); other results are stacked.
  absl::StatusOr<HeldValues> RunRounds(HeldValues inputs) const {
    const auto mapped = inputs.begin() + static_cast<int64_t>(region_.carried);
    const HeldValues sources(mapped,
                             mapped + static_cast<int64_t>(region_.mapped));
    int64_t rounds = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      std::vector<Result> size;
      REFRACT_RETURN_IF_ERROR(size_->Call({sources[i].operand}, size));
      if (i > 0 && size[0].operand.i != rounds) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the tensors that the loop maps over have ", rounds, " and ",
            size[0].operand.i, " elements, but must have equally many"));
      }
      rounds = size[0].operand.i;
    }
    if (rounds == 0) {
      return absl::InvalidArgumentError(
          "the tensors that the loop maps over are empty");
    }
    std::vector<HeldValues> stacked;
    for (int64_t round = 0; round < rounds; ++round) {
      REFRACT_RETURN_IF_ERROR(CheckLoopRound(round));
      for (size_t i = 0; i < sources.size(); ++i) {
        REFRACT_ASSIGN_OR_RETURN(
            HeldValue element,
            CallOne(*select_, {sources[i].operand, IntOperand(round)}));
        // The element is a view of the source unless alignment required a copy.
        // A view needs the owners of the source's memory.
        element.keep.insert(element.keep.end(), sources[i].keep.begin(),
                            sources[i].keep.end());
        inputs[region_.carried + i] = std::move(element);
      }
      REFRACT_ASSIGN_OR_RETURN(HeldValues outputs, RunGraph(0, inputs));
      // The body returns the carried values first, which the next round reads,
      // and then the results of this round.
      const auto rest = outputs.begin() + static_cast<int64_t>(region_.carried);
      std::move(outputs.begin(), rest, inputs.begin());
      outputs.erase(outputs.begin(), rest);
      // `stacked[i]` holds result i of every round.
      stacked.resize(outputs.size());
      for (size_t i = 0; i < outputs.size(); ++i) {
        stacked[i].push_back(std::move(outputs[i]));
      }
    }
    inputs.resize(region_.carried);
    for (const HeldValues& parts : stacked) {
      REFRACT_ASSIGN_OR_RETURN(HeldValue whole, Stack(parts));
      inputs.push_back(std::move(whole));
    }
    return inputs;
  }

  absl::StatusOr<HeldValue> Stack(const HeldValues& parts) const {
    models::ValueList list;
    std::vector<Operand> operands;
    for (const HeldValue& part : parts) {
      list.push_back(static_cast<models::ValueId>(list.size()));
      operands.push_back(part.operand);
    }
    REFRACT_ASSIGN_OR_RETURN(
        const auto stack,
        OneOperator("aten.stack.default", {{"tensors", std::move(list)}}));
    return CallOne(*stack, operands);
  }

  absl::StatusOr<bool> IsTrue(const Operand& predicate) const {
    switch (predicate.kind) {
      case Operand::Kind::kBool:
        return predicate.b;
      case Operand::Kind::kInt:
        return predicate.i != 0;
      case Operand::Kind::kFloat:
        return predicate.f != 0;
      default:
        break;
    }
    std::vector<Result> results;
    REFRACT_RETURN_IF_ERROR(is_true_->Call({predicate}, results));
    return results[0].operand.b;
  }

  std::string name_;
  models::ControlRegion
      region_;  // its graphs stay where they are: sequences_ refer
  std::vector<NodeSequence> sequences_;
  size_t num_operands_ = 0;
  std::unique_ptr<const Caller> is_true_;
  std::unique_ptr<const Caller> copy_;
  std::unique_ptr<const Caller> size_;
  std::unique_ptr<const Caller> select_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Caller>> CreateControlCaller(
    const models::Node& node) {
  return ControlCaller::Create(node);
}

}  // namespace refract::runtime::aten
