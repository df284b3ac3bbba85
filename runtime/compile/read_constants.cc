#include "runtime/compile/read_constants.h"

#include <algorithm>
#include <cstdint>

#include "base/memory/resident_pages.h"
#include "base/tensor.h"

namespace refract::runtime {
namespace {

// Whether the step's kernel holds its operand `i` packed.
bool IsPacked(const Plan& plan, const Step& step, size_t i) {
  const int local = step.operands[i];
  return step.fused && RearrangesConstant(*step.fused, static_cast<int>(i)) &&
         plan.locals[local].is_constant &&
         plan.constants[local].kind == Operand::Kind::kTensor;
}

}  // namespace

ReadConstants::ReadConstants(const Plan& plan, bool packs) {
  const auto add = [&](int local) {
    if (!plan.locals[local].is_constant) return;
    const Operand& operand = plan.constants[local];
    addresses_.push_back(operand.kind == Operand::Kind::kWeight
                             ? operand.weight->data
                             : operand.tensor.data);
  };
  for (const Step& step : plan.steps) {
    for (size_t i = 0; i < step.operands.size(); ++i) {
      if (!packs || !IsPacked(plan, step, i)) add(step.operands[i]);
    }
  }
  for (const PlanOutput& output : plan.outputs) add(output.local);
  std::sort(addresses_.begin(), addresses_.end());
}

bool ReadConstants::Reads(const std::byte* data, size_t bytes) const {
  if (data == nullptr) return false;
  const auto first =
      std::lower_bound(addresses_.begin(), addresses_.end(), data);
  return first != addresses_.end() &&
         *first < data + std::max<size_t>(bytes, 1);
}

void ReleaseUnreadWeights(const models::Graph& graph, const Plan& plan) {
  const ReadConstants read(plan, /*packs=*/true);
  for (const Local& local : plan.locals) {
    if (local.id == models::kNoValue) continue;
    const models::Value& value = graph.value(local.id);
    if (!value.is_weight()) continue;
    const auto view = plan.weights->GetAsStored(value.weight);
    // Memory that is no mapping would lose its contents.
    if (!view.ok() || view->rows || !plan.weights->IsMapped(*view)) continue;
    // The address range from the first to the last element, gaps included.
    int64_t last = view->data == nullptr ? -1 : 0;
    for (size_t d = 0; d < view->sizes.size() && last >= 0; ++d) {
      last = view->sizes[d] == 0
                 ? -1
                 : last + (view->sizes[d] - 1) * view->strides[d];
    }
    const size_t bytes =
        static_cast<size_t>(last + 1) * base::SizeOf(view->dtype);
    if (!read.Reads(view->data, bytes)) {
      base::DropResidentPages({view->data, bytes});
    }
  }
}

}  // namespace refract::runtime
