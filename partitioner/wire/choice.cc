#include "partitioner/wire/choice.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"

namespace refract::partitioner {

using models::WireType;

absl::StatusOr<std::vector<WireType>> ChooseWireTypes(
    const std::vector<WireCandidate>& candidates, double bound,
    const MeasureError& measure) {
  // Per candidate the options that save bytes, smallest first.
  std::vector<std::vector<WireCandidate::Option>> options;
  std::vector<WireType> types(candidates.size(), WireType::kAsIs);
  std::vector<WireType> smallest = types;
  std::vector<double> saves(candidates.size(), 0);
  for (size_t i = 0; i < candidates.size(); ++i) {
    std::vector<WireCandidate::Option> useful;
    for (const WireCandidate::Option& option : candidates[i].options) {
      if (option.bytes < candidates[i].plain_bytes) useful.push_back(option);
    }
    std::stable_sort(
        useful.begin(), useful.end(),
        [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    if (!useful.empty()) {
      smallest[i] = useful.front().type;
      saves[i] = candidates[i].plain_bytes - useful.front().bytes;
    }
    options.push_back(std::move(useful));
  }
  if (smallest == types) return types;
  REFRACT_ASSIGN_OR_RETURN(const double error_of_all, measure(smallest));
  // All smallest forms together keep the bound: one measurement is enough.
  if (error_of_all <= bound) return smallest;

  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return saves[a] > saves[b]; });
  // Greedy, the tensor with the largest saving first. `types` always keeps the
  // bound: a type that breaks it is taken back before the next tensor.
  for (const size_t i : order) {
    for (const WireCandidate::Option& option : options[i]) {
      types[i] = option.type;
      REFRACT_ASSIGN_OR_RETURN(const double error, measure(types));
      if (error <= bound) break;
      types[i] = WireType::kAsIs;
    }
  }
  return types;
}

}  // namespace refract::partitioner
