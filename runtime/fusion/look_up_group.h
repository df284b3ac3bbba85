#ifndef REFRACT_RUNTIME_FUSION_LOOK_UP_GROUP_H_
#define REFRACT_RUNTIME_FUSION_LOOK_UP_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace refract::runtime {

// A member of a group of look-ups. Operands and results of members follow each
// other in the members' order.
struct LookUp {
  std::string node;  // for errors
  std::unique_ptr<const Kernel> kernel;
  size_t num_operands = 0;
  size_t num_outputs = 0;
};

// Independent look-ups as one kernel: prefetches for all members, then runs
// them one after the other. Errors name the member's node.
std::unique_ptr<const Kernel> CreateLookUpGroup(std::vector<LookUp> members);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_LOOK_UP_GROUP_H_
