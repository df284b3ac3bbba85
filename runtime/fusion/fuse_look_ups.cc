// Grouping look-ups hides memory latency: rows of a table are on their way
// while the table before it is read.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/look_up_group.h"
#include "runtime/fusion/passes.h"
#include "runtime/fusion/uses.h"

namespace refract::runtime {
namespace {

// A group of look-ups at step `group` and a cat of some of its results.
struct Join {
  int cat = 0;
  cpu::LookUpCat parts;
  std::vector<int> extra;    // operands of the cat that are no such results
  std::vector<int> results;  // indexes of the group's outputs that go
};

// Whether a matrix of floats, by the graph.
bool IsMatrix(const Plan& plan, int local) {
  return plan.locals[local].dtype == base::DType::kFloat32 &&
         plan.locals[local].rank == 2;
}

// The group's result that `local` is, if only the cat reads it; -1 otherwise.
int ResultFor(const Step& group, const Uses& uses, int cat, int local) {
  const auto it = std::find(group.outputs.begin(), group.outputs.end(), local);
  if (it == group.outputs.end() || uses.OnlyReader(local) != cat) return -1;
  return static_cast<int>(it - group.outputs.begin());
}

// How step `cat` may join step `group`; nullopt: it may not.
std::optional<Join> JoinOf(const Plan& plan, const Uses& uses,
                           const models::Graph& graph, int group_index,
                           const cpu::LookUpGroup& group, int cat_index) {
  const Step& step = plan.steps[group_index];
  const Step& cat = plan.steps[cat_index];
  if (!IsKernelOf(cat, "aten.cat.default") || cat.outputs[0] == kNoLocal ||
      !IsMatrix(plan, cat.outputs[0])) {
    return std::nullopt;
  }
  const models::Node& node = graph.nodes[cat.nodes.front()];
  const auto dim = NodeArgs(node).IntLiteral("dim");
  if (!dim || (*dim != 1 && *dim != -1)) return std::nullopt;
  // Results in the order of outputs: one per member but for operators with
  // several results.
  std::vector<int> member_of;
  for (size_t m = 0; m < group.members().size(); ++m) {
    for (size_t i = 0; i < group.members()[m].num_outputs; ++i) {
      member_of.push_back(i == 0 ? static_cast<int>(m) : -1);
    }
  }
  Join join;
  join.cat = cat_index;
  join.parts.node = cat.node;
  for (const int local : cat.operands) {
    cpu::LookUpCat::Part part;
    const int result = ResultFor(step, uses, cat_index, local);
    // A result that is joined twice has two readers in one step.
    const bool twice =
        std::count(cat.operands.begin(), cat.operands.end(), local) > 1;
    if (result >= 0 && member_of[result] >= 0 && !twice &&
        IsMatrix(plan, local)) {
      part.member = member_of[result];
      join.results.push_back(result);
    } else {
      // A result of the group that others read as well stays a tensor, which
      // the group's kernel cannot read.
      const bool own = std::find(step.outputs.begin(), step.outputs.end(),
                                 local) != step.outputs.end();
      // Computed after the group, or of another shape.
      if (own || uses.producer(local) > group_index || !IsMatrix(plan, local)) {
        return std::nullopt;
      }
      part.operand = static_cast<int>(step.operands.size() + join.extra.size());
      join.extra.push_back(local);
    }
    join.parts.parts.push_back(part);
  }
  if (join.results.size() < 2) return std::nullopt;
  return join;
}

// Merges `members` (ascending) at the position of the last, where the ids of
// all are available.
void Merge(const std::vector<int>& members, Plan& plan,
           std::vector<bool>& dropped) {
  if (members.size() < 2) return;
  Step merged;
  std::vector<cpu::LookUpMember> look_ups;
  for (int member : members) {
    Step& step = plan.steps[member];
    TakeNodes(step, merged);
    look_ups.push_back({step.node, std::move(step.kernel), step.operands.size(),
                        step.outputs.size()});
    merged.operands.insert(merged.operands.end(), step.operands.begin(),
                           step.operands.end());
    merged.outputs.insert(merged.outputs.end(), step.outputs.begin(),
                          step.outputs.end());
    dropped[member] = true;
  }
  // For logs and errors, which name a node.
  merged.node = absl::StrCat(plan.steps[members.front()].node, " and ",
                             members.size() - 1, " more");
  merged.op = plan.steps[members.front()].op;
  merged.kernel = std::make_unique<cpu::LookUpGroup>(std::move(look_ups));
  dropped[members.back()] = false;
  plan.steps[members.back()] = std::move(merged);
}

}  // namespace

void FuseLookUps(Plan& plan) {
  std::vector<bool> dropped(plan.steps.size(), false);
  // The open group, and the locals that its members compute.
  std::vector<int> members;
  std::vector<bool> made(plan.locals.size(), false);
  const auto close = [&] {
    Merge(members, plan, dropped);
    members.clear();
    made.assign(made.size(), false);
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    for (int local : step.operands) {
      // A view of a member's result counts as that result.
      if (made[local] || made[plan.locals[local].root]) {
        close();
        break;
      }
    }
    // Other steps may lie between the members of a group.
    if (step.kernel == nullptr || step.kernel->look_up() == nullptr) continue;
    members.push_back(static_cast<int>(i));
    for (int local : step.outputs) {
      if (local != kNoLocal) made[local] = true;
    }
  }
  close();
  DropSteps(dropped, plan);
}

void FuseLookUpCats(const models::Graph& graph, Plan& plan) {
  const Uses uses(plan);
  std::vector<bool> dropped(plan.steps.size(), false);
  for (size_t g = 0; g < plan.steps.size(); ++g) {
    Step& step = plan.steps[g];
    const auto* const group =
        dynamic_cast<const cpu::LookUpGroup*>(step.kernel.get());
    if (group == nullptr) continue;
    // The cat moves up to the group's place, where its other operands must
    // exist (JoinOf()). A group takes one cat.
    for (size_t c = g + 1; c < plan.steps.size(); ++c) {
      const auto join = JoinOf(plan, uses, graph, static_cast<int>(g), *group,
                               static_cast<int>(c));
      if (!join) continue;
      for (const int result : join->results) step.outputs[result] = kNoLocal;
      step.operands.insert(step.operands.end(), join->extra.begin(),
                           join->extra.end());
      step.outputs.push_back(plan.steps[c].outputs[0]);
      TakeNodes(plan.steps[c], step);
      step.kernel = std::make_unique<cpu::LookUpGroup>(*group, join->parts);
      dropped[c] = true;
      break;
    }
  }
  DropSteps(dropped, plan);
}

}  // namespace refract::runtime
