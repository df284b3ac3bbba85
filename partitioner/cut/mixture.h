#ifndef REFRACT_PARTITIONER_CUT_MIXTURE_H_
#define REFRACT_PARTITIONER_CUT_MIXTURE_H_

// The linear program that finds Lagrange multipliers.
//
// With several objectives, of which the largest counts, under limits, no single
// minimum cut finds the optimum; a cut minimises any weighted sum. The weights
// with the best lower bound are the dual solution of this program over the
// choices found so far (column generation, Dantzig and Wolfe 1960):
//
//   minimise  t + Σ_j penalty_j · excess_j   over shares w_k ≥ 0, Σ_k w_k = 1,
//   t ≥ Σ_k w_k · objective_ik               for each objective i
//   excess_j ≥ Σ_k w_k · usage_jk − limit_j  for each limit j, excess_j ≥ 0

#include <vector>

namespace refract::partitioner::cut {

// Cost of one choice of stages by every measure.
struct Point {
  std::vector<double> objectives;
  std::vector<double> usages;
};

struct Multipliers {
  std::vector<double> objectives;  // ≥ 0, sum 1
  std::vector<double> limits;      // ≥ 0, at most the penalty
};

struct Mixture {
  double value = 0;            // of the program
  bool exceeds = false;        // no mixture of the points keeps every limit
  std::vector<double> shares;  // per point
  Multipliers multipliers;
};

// `points` and objectives must not be empty; `penalties` has one entry per
// limit. Numbers of very different size are scaled inside. The multipliers have
// the precision of doubles: bounds must be computed from them, not taken from
// `value`.
Mixture BestMixture(const std::vector<Point>& points,
                    const std::vector<double>& limits,
                    const std::vector<double>& penalties);

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_MIXTURE_H_
