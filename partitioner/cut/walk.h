#ifndef REFRACT_PARTITIONER_CUT_WALK_H_
#define REFRACT_PARTITIONER_CUT_WALK_H_

// Legal choices of stages near given ones, one node at a time.
//
// Minimum cuts of weighted sums see only choices that are best for some
// weights. Where several objectives or limits count, the best choice mostly
// lies between two of those; the walks here look for it there.

#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// What counts is, first, by how much the limits are exceeded, each in shares of
// itself, then the largest objective. Keeps references to all arguments of the
// constructor. Used by one thread.
class Walk {
 public:
  Walk(const Problem& problem, const std::vector<const Measure*>& objectives,
       const std::vector<const Measure*>& limits,
       const std::vector<Cost>& at_most);

  // Starts at `stages`, which must be legal.
  void Start(const Stages& stages);

  // Goes towards `goal`, which must be legal: group by group of nodes that
  // differ and read each other, the groups that change most first, each as far
  // as that is best. Where all of a group makes nothing better, it stays.
  void GoTowards(const Stages& goal);

  // Moves single nodes while that makes it better, at most `passes` times
  // through all of them.
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
  struct Counts {  // of readers; one that reads twice counts twice
    int on_hn = 0;
    int on_cn = 0;
  };
  // Everything that a node's stage bears on.
  struct Neighbours {
    std::vector<int> read;    // tensors; twice if read twice
    std::vector<int> made;    // tensors
    std::vector<int> shared;  // Problem::shared
  };

  void Move(int node, Stage to);
  // Adds `sign` times what tensor `t` and shared `s` cost as they are now.
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
  int forbidden_ = 0;  // crossings of tensors that may not
  std::vector<Cost> totals_;
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_WALK_H_
