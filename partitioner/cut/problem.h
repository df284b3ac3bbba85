#ifndef REFRACT_PARTITIONER_CUT_PROBLEM_H_
#define REFRACT_PARTITIONER_CUT_PROBLEM_H_

// The cut problem in integers: operators that run before, on or after the HN,
// the tensors between them, and the cost of each choice. Knows neither models
// nor hardware; partitioner/split/optimal.h makes such problems from graphs.
//
// Plain values without references; all functions are pure.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace refract::partitioner::cut {

// Unit of a measure: picoseconds, bytes, or fractions of a price.
using Cost = int64_t;

// Upper limit of the total of a measure, over any choice of stages. Leaves room
// for sums and multipliers in the 64 bits of a flow, and a double holds it
// exactly.
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

// Result of one node, and its readers. Every reader runs in the producer's
// stage or a later one.
struct Tensor {
  int producer = kRequest;
  std::vector<int> readers;  // nodes, each after the producer
  bool is_result = false;    // the CN needs it at the end
  // Whether the tensor can cross (known type, integer sizes).
  bool may_go_up = true;      // CN → HN
  bool may_come_down = true;  // HN → CN

  // Producer of the inputs of a request: they are on the CN from the start.
  static constexpr int kRequest = -1;
};

// A weight, which must be on every side where a node reads it. Charged once per
// side, however many nodes there read it.
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

// One way to price a choice of stages. All numbers are ≥ 0.
struct Measure {
  Measure() = default;
  explicit Measure(const Problem& problem)
      : stage(problem.allowed.size()),
        up(problem.tensors.size()),
        down(problem.tensors.size()),
        shared_on_cn(problem.shared.size()),
        shared_on_hn(problem.shared.size()) {}

  std::vector<std::array<Cost, kNumStages>> stage;  // per node
  // Per tensor. `up` is charged once when the tensor is on the CN and some
  // reader is on the HN. `down` is charged once when it is made on the HN and
  // some reader is on the CN, or it is a result. A tensor from CN-pre to
  // CN-post is free.
  std::vector<Cost> up;
  std::vector<Cost> down;
  // Per shared: charged once for a side with at least one reader.
  std::vector<Cost> shared_on_cn;
  std::vector<Cost> shared_on_hn;
  Cost hn_used = 0;  // charged once when any node is on the HN
};

// Checks that sizes agree, indices are in range, readers come after producers,
// and every node has some stage. InvalidArgument names the offending index.
absl::Status ValidateProblem(const Problem& problem);
// Checks that `measure` has an entry for every part of `problem`, none
// negative, with a total ≤ kMaxTotal. `name` appears in errors.
absl::Status ValidateMeasure(const Problem& problem, const Measure& measure,
                             const std::string& name);

// Cost of `stages`. For legal stages this is the price. For illegal stages it
// is the price of a relaxation in which the CN may run before, beside and after
// the HN; no legal choice with the same nodes on the HN is cheaper.
Cost Price(const Problem& problem, const Measure& measure,
           const Stages& stages);

// True when every node is in an allowed stage, no stage falls along a tensor,
// and no tensor crosses that may not.
bool IsLegal(const Problem& problem, const Stages& stages);

// Removes from `domains` every stage that no assignment can use because of the
// producers' and readers' domains. False when a node is left without a stage.
// The remaining domains are assignable: the lowest stage of each node respects
// the order of stages, and so does the highest.
bool Propagate(const Problem& problem, Domains& domains);

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_PROBLEM_H_
