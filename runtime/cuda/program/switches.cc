#include "runtime/cuda/program/switches.h"

#include <algorithm>
#include <sstream>

namespace refract::runtime::cuda {

const char* Name(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::kTileProducts:
      return "tile_products";
    case Mechanism::kRowProducts:
      return "row_products";
    case Mechanism::kProductTrials:
      return "product_trials";
    case Mechanism::kEpilogues:
      return "epilogues";
    case Mechanism::kTensorInteraction:
      return "tensor_interaction";
    case Mechanism::kWideKernels:
      return "wide_kernels";
    case Mechanism::kMergedTables:
      return "merged_tables";
    case Mechanism::kRowCopies:
      return "row_copies";
    case Mechanism::kGraphs:
      return "graphs";
  }
  return "unknown";
}

Result<Switches> SwitchesWithout(const char* names) {
  Switches switches;
  std::istringstream list(names == nullptr ? "" : names);
  for (std::string name; std::getline(list, name, ',');) {
    if (name.empty()) continue;
    const auto* const found = std::find_if(
        kMechanisms.begin(), kMechanisms.end(),
        [&](Mechanism mechanism) { return name == Name(mechanism); });
    if (found == kMechanisms.end()) {
      std::string known;
      for (Mechanism mechanism : kMechanisms) {
        known += known.empty() ? "" : ", ";
        known += Name(mechanism);
      }
      std::string message = kWithoutVariable;
      message.append(" names ").append(name).append(", which is none of ");
      return InvalidArgument(message + known);
    }
    switches.Without(*found);
  }
  return switches;
}

}  // namespace refract::runtime::cuda
