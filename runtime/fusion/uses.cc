#include "runtime/fusion/uses.h"

#include <algorithm>
#include <utility>

namespace refract::runtime {

Uses::Uses(const Plan& plan)
    : producer_(plan.locals.size(), -1),
      readers_(plan.locals.size()),
      is_output_(plan.locals.size(), false) {
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const int step = static_cast<int>(i);
    for (int local : plan.steps[i].operands) {
      std::vector<int>& readers = readers_[local];
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
