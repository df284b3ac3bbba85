// The passes that every device runs. Chains are grouped backwards from their
// last reader, because a step may join a group only if all its readers are in
// it.

#include "runtime/fusion/passes.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/fusion/uses.h"

namespace refract::runtime {
namespace {

// Merges the chains of `members` (ascending) into one step at the position of
// the last member, where all operands are available.
class ChainMerger {
 public:
  explicit ChainMerger(Plan& plan) : plan_(plan) {}

  // False, without any change, if the merged chain would exceed the limits.
  bool Merge(const std::vector<int>& members, const Uses& uses) {
    for (int member : members) {
      for (int local : plan_.steps[member].outputs) made_[local] = -1;
    }
    for (int member : members) Append(plan_.steps[member]);
    // Checked after merging: common inputs of the members count once.
    if (chain_.inputs.size() > kMaxChainInputs ||
        chain_.code.size() > kMaxChainInstructions) {
      return false;
    }
    Renumber();
    Step& last = plan_.steps[members.back()];
    std::vector<int> outputs;
    for (int member : members) {
      const Step& step = plan_.steps[member];
      // A member's result that is read outside the group stays an output.
      const bool leaves = member == members.back() ||
                          uses.is_output(step.outputs[0]) ||
                          LeavesGroup(step.outputs[0], members, uses);
      if (!leaves) continue;
      outputs.push_back(step.outputs[0]);
      chain_.outputs.push_back(
          {made_[step.outputs[0]], ChainOf(step)->outputs[0].is_bool});
    }
    for (size_t i = 0; i + 1 < members.size(); ++i) {
      TakeNodes(plan_.steps[members[i]], last);
    }
    last.operands = std::move(operands_);
    last.outputs = std::move(outputs);
    last.fused = std::move(chain_);
    return true;
  }

 private:
  // Marks instruction indexes until the number of inputs is known (Renumber).
  static constexpr int kInstructions = 1 << 16;

  static bool LeavesGroup(int local, const std::vector<int>& members,
                          const Uses& uses) {
    for (int reader : uses.readers(local)) {
      if (!std::binary_search(members.begin(), members.end(), reader)) {
        return true;
      }
    }
    return false;
  }

  int OperandOf(int local) {
    const auto found = std::find(operands_.begin(), operands_.end(), local);
    if (found != operands_.end()) {
      return static_cast<int>(found - operands_.begin());
    }
    operands_.push_back(local);
    return static_cast<int>(operands_.size()) - 1;
  }

  int InputOf(const ElementInput& input) {
    for (size_t i = 0; i < chain_.inputs.size(); ++i) {
      const ElementInput& known = chain_.inputs[i];
      // Compared as bits, because 0 and −0 differ.
      if (known.operand == input.operand &&
          (input.operand != kNoOperand ||
           std::bit_cast<uint32_t>(known.number) ==
               std::bit_cast<uint32_t>(input.number))) {
        return static_cast<int>(i);
      }
    }
    chain_.inputs.push_back(input);
    return static_cast<int>(chain_.inputs.size()) - 1;
  }

  void Append(const Step& step) {
    const ElementChainOp& chain = *ChainOf(step);
    const int num_inputs = static_cast<int>(chain.inputs.size());
    const int first = static_cast<int>(chain_.code.size());
    std::vector<int> places;
    for (ElementInput input : chain.inputs) {
      if (input.operand == kNoOperand) {
        places.push_back(InputOf(input));
        continue;
      }
      const int local = step.operands[input.operand];
      const auto made = made_.find(local);
      if (made != made_.end()) {
        places.push_back(kInstructions + made->second);
      } else {
        places.push_back(InputOf({OperandOf(local), 0.0f}));
      }
    }
    for (ElementInstruction instruction : chain.code) {
      for (int* argument : {&instruction.a, &instruction.b, &instruction.c}) {
        if (*argument < 0) continue;
        *argument = *argument < num_inputs
                        ? places[*argument]
                        : kInstructions + first + *argument - num_inputs;
      }
      chain_.code.push_back(instruction);
    }
    // Later members that read this result read the instruction instead.
    made_[step.outputs[0]] = first + chain.outputs[0].instruction;
  }

  void Renumber() {
    const int num_inputs = static_cast<int>(chain_.inputs.size());
    for (ElementInstruction& instruction : chain_.code) {
      for (int* argument : {&instruction.a, &instruction.b, &instruction.c}) {
        if (*argument >= kInstructions) {
          *argument += num_inputs - kInstructions;
        }
      }
    }
  }

  Plan& plan_;
  ElementChainOp chain_;
  std::vector<int> operands_;
  absl::flat_hash_map<int, int> made_;  // local → instruction
};

}  // namespace

void FuseActivations(Plan& plan) {
  const Uses uses(plan);
  std::vector<bool> dropped(plan.steps.size(), false);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Step& step = plan.steps[i];
    auto* const matmul =
        step.fused ? std::get_if<MatMulOp>(&*step.fused) : nullptr;
    if (matmul == nullptr || step.outputs[0] == kNoLocal) continue;
    const int reader = uses.OnlyReader(step.outputs[0]);
    if (reader < 0) continue;
    const ElementChainOp* const chain = ChainOf(plan.steps[reader]);
    if (chain == nullptr || chain->code.size() != 1 ||
        // Only a lone relu fits into a product's epilogue.
        chain->code[0].code != ElementCode::kRelu ||
        plan.steps[reader].outputs[0] == kNoLocal) {
      continue;
    }
    // The product writes the relu's result; the relu step goes.
    matmul->relu = true;
    step.outputs = plan.steps[reader].outputs;
    TakeNodes(plan.steps[reader], step);
    dropped[reader] = true;
  }
  DropSteps(dropped, plan);
}

void FuseElementChains(const models::Graph& graph, Plan& plan) {
  const Uses uses(plan);
  const int count = static_cast<int>(plan.steps.size());
  // The last member of each step's group; initially the step itself. Steps are
  // visited from the back, so that the groups of all readers are known.
  std::vector<int> group(count);
  std::vector<std::vector<int>> members(count);
  for (int i = count - 1; i >= 0; --i) {
    group[i] = i;
    members[i] = {i};
    const Step& step = plan.steps[i];
    if (ChainOf(step) == nullptr || step.outputs[0] == kNoLocal ||
        uses.is_output(step.outputs[0]) ||
        uses.readers(step.outputs[0]).empty()) {
      continue;
    }
    // A step joins the group of its readers if all of them are in one group:
    // only then is its result read nowhere else.
    const int target = group[uses.readers(step.outputs[0]).front()];
    bool joins =
        ChainOf(plan.steps[target]) != nullptr &&
        plan.steps[target].outputs[0] != kNoLocal &&
        SameShape(graph, plan, step.outputs[0], plan.steps[target].outputs[0]);
    for (int reader : uses.readers(step.outputs[0])) {
      joins &= group[reader] == target;
    }
    // Half of the limit, because a node may have several instructions. A group
    // that still does not fit stays unmerged.
    if (!joins || members[target].size() >= kMaxChainInstructions / 2) continue;
    group[i] = target;
    members[target].insert(members[target].begin(), i);
    members[i].clear();
  }
  std::vector<bool> dropped(count, false);
  for (int i = 0; i < count; ++i) {
    if (members[i].size() < 2) continue;
    ChainMerger merger(plan);
    if (!merger.Merge(members[i], uses)) continue;
    for (int member : members[i]) dropped[member] = member != i;
  }
  DropSteps(dropped, plan);
}

void FuseSteps(const models::Graph& graph, Plan& plan, Target target) {
  FuseTransposes(graph, plan);
  FusePairs(graph, plan, target);
  FuseActivations(plan);
  FuseElementChains(graph, plan);
  FuseLookUps(plan);
  if (target != Target::kCpu) return;
  FuseAttention(graph, plan);
  FuseDense(graph, plan);
  FuseSums(graph, plan);
  FuseLookUpCats(graph, plan);
}

}  // namespace refract::runtime
