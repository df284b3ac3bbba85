#ifndef REFRACT_RUNTIME_FUSION_USES_H_
#define REFRACT_RUNTIME_FUSION_USES_H_

// What passes over a plan's steps share. Internal to runtime/fusion/.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "runtime/compile/plan.h"

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

// What `step` computes as a chain; null when it is none.
const ElementChainOp* ChainOf(const Step& step);

// Elements of a constant int64 tensor of rank 1; nullopt for anything else.
std::optional<std::vector<int64_t>> ConstantInts(const Plan& plan, int local);

// Whether the graph says that both have the same shape.
bool SameShape(const models::Graph& graph, const Plan& plan, int a, int b);

// A step that is `op`, computed by a kernel of its own: nodes[0] is such a
// node, and the others, if any, ask for the same.
bool IsKernelOf(const Step& step, absl::string_view op);

// `reader`'s chain, with `result` given to it instead of read, for a step that
// makes `result` itself: operands of the chain's own are appended to
// `operands`. `given` becomes the input that `result` is.
ElementChainOp ChainAfter(const Step& reader, int result,
                          std::vector<int>& operands, int& given);

// Makes `into` stand for the nodes of `from` as well.
void TakeNodes(const Step& from, Step& into);

// Removes the steps that are marked.
void DropSteps(const std::vector<bool>& dropped, Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_USES_H_
