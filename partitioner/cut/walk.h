#ifndef REFRACT_PARTITIONER_CUT_WALK_H_
#define REFRACT_PARTITIONER_CUT_WALK_H_

// Local search: legal choices of stages near given choices, one node at a time.
//
// Minimum cuts of weighted sums find only choices that are best for some
// weights. With several objectives or limits, the best choice mostly lies
// between two of these minimum cuts; the walks search there.

#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// Choices are compared first by the excess over the limits, each relative to
// its limit, then by the largest objective. Keeps references to all arguments
// of the constructor. Used by one thread.
class Walk {
 public:
  Walk(const Problem& problem, const std::vector<const Measure*>& objectives,
       const std::vector<const Measure*>& limits,
       const std::vector<Cost>& at_most);

  // Starts at `stages`, which must be legal.
  void Start(const Stages& stages);

  // Walks towards `goal`, which must be legal, by groups of connected nodes
  // that differ, the groups with the largest change first. Each group stops at
  // its best step, or does not move if no step is better.
  void GoTowards(const Stages& goal);

  // Moves single nodes while that improves the choice, in at most `passes`
  // passes through all nodes.
  void Descend(int passes);

  const Stages& stages() const { return stages_; }
  // Σ over measures, as Price() would say.
  const std::vector<Cost>& totals() const { return totals_; }

 private:
  struct Merit {
    double excess = 0;
    Cost cost = 0;
    bool operator<(const Merit& other) const {
      return excess != other.excess ? excess < other.excess : cost < other.cost;
    }
  };
  struct Counts {  // of readers; a repeated reader counts each time
    int on_hn = 0;
    int on_cn = 0;
  };
  // Tensors and weights whose cost depends on a node's stage.
  struct Neighbours {
    std::vector<int> read;    // tensors; twice if read twice
    std::vector<int> made;    // tensors
    std::vector<int> shared;  // Problem::shared
  };

  void Move(int node, Stage to);
  // Adds `sign` times the present cost of tensor `t`, or of shared `s`.
  void AddTensor(int t, int sign);
  void AddShared(int s, int sign);
  bool MayMove(int node, Stage to) const;
  Merit merit() const;
  bool legal() const { return forbidden_ == 0; }

  const Problem& problem_;
  std::vector<const Measure*> measures_;  // objectives, then limits
  const size_t num_objectives_;
  const std::vector<Cost>& at_most_;
  std::vector<Neighbours> neighbours_;

  Stages stages_;
  std::vector<Counts> readers_;  // per tensor
  std::vector<Counts> sharers_;  // per shared
  int num_on_hn_ = 0;
  int forbidden_ = 0;  // crossings of tensors that may not cross
  std::vector<Cost> totals_;
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_WALK_H_
