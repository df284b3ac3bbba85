// Grouping look-ups hides memory latency: the first rows of all tables are on
// their way before the first table is read.

#include "runtime/fusion/look_up_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/fusion/passes.h"
#include "runtime/fusion/uses.h"

namespace refract::runtime {
namespace {

class LookUpGroup final : public Kernel {
 public:
  explicit LookUpGroup(std::vector<LookUp> members)
      : members_(std::move(members)),
        name_(absl::StrCat("look_ups/", members_.size())) {}

  absl::string_view name() const override { return name_; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    return ForEach(operands, outputs,
                   [](const Kernel& kernel, const Operands& own,
                      absl::Span<KernelOutput> results) {
                     return kernel.Infer(own, results);
                   });
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats& stats) const override {
    size_t first = 0;
    for (const LookUp& member : members_) {
      member.kernel->Prefetch(operands.Part(first, member.num_operands));
      first += member.num_operands;
    }
    first = 0;
    size_t result = 0;
    for (const LookUp& member : members_) {
      REFRACT_RETURN_IF_ERROR(member.kernel->Run(
          operands.Part(first, member.num_operands),
          outputs.subspan(result, member.num_outputs), stats));
      first += member.num_operands;
      result += member.num_outputs;
    }
    return absl::OkStatus();
  }

 private:
  template <typename F>
  absl::Status ForEach(const Operands& operands,
                       absl::Span<KernelOutput> outputs, F f) const {
    size_t first = 0;
    size_t result = 0;
    for (const LookUp& member : members_) {
      const absl::Status status =
          f(*member.kernel, operands.Part(first, member.num_operands),
            outputs.subspan(result, member.num_outputs));
      if (!status.ok()) return base::Annotate(status, member.node);
      first += member.num_operands;
      result += member.num_outputs;
    }
    return absl::OkStatus();
  }

  const std::vector<LookUp> members_;
  const std::string name_;
};

// Merges `members` (ascending) at the position of the last, where the ids of
// all are available.
void Merge(const std::vector<int>& members, Plan& plan,
           std::vector<bool>& dropped) {
  if (members.size() < 2) return;
  Step merged;
  std::vector<LookUp> look_ups;
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
  merged.kernel = CreateLookUpGroup(std::move(look_ups));
  dropped[members.back()] = false;
  plan.steps[members.back()] = std::move(merged);
}

}  // namespace

std::unique_ptr<const Kernel> CreateLookUpGroup(std::vector<LookUp> members) {
  return std::make_unique<LookUpGroup>(std::move(members));
}

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
    if (step.kernel == nullptr || !step.kernel->is_look_up()) continue;
    members.push_back(static_cast<int>(i));
    for (int local : step.outputs) {
      if (local != kNoLocal) made[local] = true;
    }
  }
  close();
  DropSteps(dropped, plan);
}

}  // namespace refract::runtime
