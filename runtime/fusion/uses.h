#ifndef REFRACT_RUNTIME_FUSION_USES_H_
#define REFRACT_RUNTIME_FUSION_USES_H_

// Tools of the passes over a plan's steps. Internal to runtime/fusion/.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "runtime/compile/plan.h"

namespace refract::runtime {

// Producer and readers of each local. Views count as readers of their operand.
class Uses {
 public:
  explicit Uses(const Plan& plan);

  int producer(int local) const { return producer_[local]; }
  const std::vector<int>& readers(int local) const { return readers_[local]; }
  bool is_output(int local) const { return is_output_[local]; }
  // The only step that reads `local`; -1 when there are several readers, or
  // `local` is an output.
  int OnlyReader(int local) const {
    if (is_output_[local] || readers_[local].size() != 1) return -1;
    return readers_[local].front();
  }
  // The step that computes `local` if `reader` is its only reader; -1
  // otherwise.
  int OwnProducer(int local, int reader) const {
    return producer_[local] >= 0 && OnlyReader(local) == reader
               ? producer_[local]
               : -1;
  }

 private:
  std::vector<int> producer_;
  std::vector<std::vector<int>> readers_;
  std::vector<bool> is_output_;
};

// The chain of `step`; null if it is none.
const ElementChainOp* ChainOf(const Step& step);

// Elements of a constant int64 tensor of rank 1; nullopt for anything else.
std::optional<std::vector<int64_t>> ConstantInts(const Plan& plan, int local);

// Whether the graph shows that both have the same shape.
bool SameShape(const models::Graph& graph, const Plan& plan, int a, int b);

// Whether `step` computes `op` by its own kernel. All nodes of the step are
// then equal to nodes[0].
bool IsKernelOf(const Step& step, absl::string_view op);

// `reader`'s chain for a step that computes `result` itself: the input `result`
// becomes `given`, and other operands of the chain are appended to `operands`.
ElementChainOp ChainAfter(const Step& reader, int result,
                          std::vector<int>& operands, int& given);

// Adds the nodes of `from` to `into`.
void TakeNodes(const Step& from, Step& into);

// Removes the marked steps.
void DropSteps(const std::vector<bool>& dropped, Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_USES_H_
