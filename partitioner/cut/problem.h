#ifndef REFRACT_PARTITIONER_CUT_PROBLEM_H_
#define REFRACT_PARTITIONER_CUT_PROBLEM_H_

// What there is to cut, in integers: operators that run before, on or after the
// HN, the tensors between them, and what a choice costs. Knows neither models
// nor hardware; partitioner/split/optimal.h makes such problems from graphs.
//
// Plain values. Nothing here keeps references; functions are pure.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace refract::partitioner::cut {

// Whatever a measure counts: picoseconds, bytes, fractions of a price.
using Cost = int64_t;

// No measure may exceed this in total, whatever is chosen. Leaves room for sums
// and multipliers in the 64 bits of a flow, and a double holds it exactly.
inline constexpr Cost kMaxTotal = Cost{1} << 52;

enum Stage : uint8_t { kPre = 0, kHn = 1, kPost = 2 };
inline constexpr int kNumStages = 3;

// One per node.
using Stages = std::vector<Stage>;

// A set of stages: bit s is stage s. Domains has one per node.
using StageSet = uint8_t;
using Domains = std::vector<StageSet>;
inline constexpr StageSet kOnPre = 1 << kPre;
inline constexpr StageSet kOnHn = 1 << kHn;
inline constexpr StageSet kOnPost = 1 << kPost;
inline constexpr StageSet kOnCn = kOnPre | kOnPost;
inline constexpr StageSet kAnyStage = kOnCn | kOnHn;

// What one node makes and others read. Every reader runs in the producer's
// stage or a later one.
struct Tensor {
  int producer = kRequest;
  std::vector<int> readers;  // nodes, each after the producer
  bool is_result = false;    // the CN needs it at the end
  // Whether it has a form on the wire.
  bool may_go_up = true;      // CN → HN
  bool may_come_down = true;  // HN → CN

  // The producer of what a request brings: it is on the CN from the start.
  static constexpr int kRequest = -1;
};

// Something that every node that reads it must have beside it, once per side
// however many read it there: a weight.
struct Shared {
  std::vector<int> readers;
};

struct Problem {
  // Where each node may run. Nodes are in topological order.
  Domains allowed;
  std::vector<Tensor> tensors;
  std::vector<Shared> shared;

  int num_nodes() const { return static_cast<int>(allowed.size()); }
};

// One way to count what a choice of stages costs. All numbers are ≥ 0.
struct Measure {
  Measure() = default;
  explicit Measure(const Problem& problem)
      : stage(problem.allowed.size()),
        up(problem.tensors.size()),
        down(problem.tensors.size()),
        shared_on_cn(problem.shared.size()),
        shared_on_hn(problem.shared.size()) {}

  std::vector<std::array<Cost, kNumStages>> stage;  // per node
  // Per tensor: charged once when it goes up (it is on the CN and some reader
  // is on the HN), once when it comes down (it is made on the HN and some
  // reader is on the CN, or it is a result). What passes the HN by is free.
  std::vector<Cost> up;
  std::vector<Cost> down;
  // Per shared: charged once for a side with at least one reader.
  std::vector<Cost> shared_on_cn;
  std::vector<Cost> shared_on_hn;
  Cost hn_used = 0;  // charged once when any node is on the HN
};

// Sizes agree, indices are in range, readers come after producers, every node
// has some stage. InvalidArgument names what is wrong by its index.
absl::Status ValidateProblem(const Problem& problem);
// One entry for everything in `problem`, none negative, total ≤ kMaxTotal.
// `name` appears in errors.
absl::Status ValidateMeasure(const Problem& problem, const Measure& measure,
                             const std::string& name);

// What `stages` cost. For legal stages this is the price; for others it is what
// they would cost if the CN could be used before, beside and after the HN at
// will, which no legal choice with the same nodes on the HN can beat.
Cost Price(const Problem& problem, const Measure& measure,
           const Stages& stages);

// Every node in an allowed stage, no stage falls along a tensor, no tensor
// crosses that may not.
bool IsLegal(const Problem& problem, const Stages& stages);

// Removes from `domains` every stage that no assignment can use because of the
// producers' and readers' domains. False when some node is left with none. What
// remains is assignable: each node's lowest stage is one legal choice, as far
// as the order of stages goes, and each node's highest another.
bool Propagate(const Problem& problem, Domains& domains);

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_PROBLEM_H_
