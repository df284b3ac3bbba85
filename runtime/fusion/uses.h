#ifndef REFRACT_RUNTIME_FUSION_USES_H_
#define REFRACT_RUNTIME_FUSION_USES_H_

// What passes over a plan's steps share. Internal to runtime/fusion/.

#include <vector>

#include "runtime/plan.h"

namespace refract::runtime {

// Who makes and who reads each local. Views count as readers of what they show.
class Uses {
 public:
  explicit Uses(const Plan& plan);

  int producer(int local) const { return producer_[local]; }
  const std::vector<int>& readers(int local) const { return readers_[local]; }
  bool is_output(int local) const { return is_output_[local]; }
  // The one step that reads `local`; -1 when there are others, or an output.
  int OnlyReader(int local) const {
    if (is_output_[local] || readers_[local].size() != 1) return -1;
    return readers_[local].front();
  }

 private:
  std::vector<int> producer_;
  std::vector<std::vector<int>> readers_;
  std::vector<bool> is_output_;
};

// Makes `into` stand for the nodes of `from` as well.
void TakeNodes(const Step& from, Step& into);

// Removes the steps that are marked.
void DropSteps(const std::vector<bool>& dropped, Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_USES_H_
