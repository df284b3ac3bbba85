#ifndef REFRACT_PARTITIONER_SPLIT_SPLIT_PROBLEM_H_
#define REFRACT_PARTITIONER_SPLIT_SPLIT_PROBLEM_H_

// From a graph to the problem that partitioner/cut solves, and back.

#include <vector>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/costs/prediction.h"
#include "partitioner/cut/problem.h"
#include "partitioner/split/crossing.h"

namespace refract::partitioner {

// Where every operator may run and what crosses, by the rules of
// models::ValidatePlan: nodes of the graph are nodes of the problem, its
// tensors are the values that some operator makes or a request brings, its
// shared things the weights. Keeps references to nothing.
class SplitProblem {
 public:
  // `hn_look_ups` as in Conditions: all other look-ups stay before the HN.
  explicit SplitProblem(const models::Graph& graph,
                        const std::vector<bool>& hn_look_ups = {});

  const cut::Problem& problem() const { return problem_; }
  // The problem's tensor that stands for `value`; -1 when none does.
  int TensorOf(models::ValueId value) const;

  // Whole bytes that cross, in the forms of Conditions::wire, and of weights
  // that a side holds.
  cut::Measure BytesCrossing(const Conditions& conditions,
                             const ValueSizes& sizes) const;
  cut::Measure CnMemory(const ValueSizes& sizes) const;
  cut::Measure HnMemory(const ValueSizes& sizes) const;

  // Measures in fractions of a second or of money, chosen fine enough that
  // rounding loses less than 10^-9 of the whole.
  struct Quantised {
    std::vector<cut::Measure> measures;
    double unit = 1;  // what 1 stands for
  };
  Quantised Latency(const Conditions& conditions,
                    const ValueSizes& sizes) const;
  // One measure per station: CN, link up, HN, link down. Their largest is the
  // time between two requests. `front_end_s`: what every request takes on its
  // CN beside the model (FrontEndSeconds).
  Quantised Stations(const Conditions& conditions, const ValueSizes& sizes,
                     double front_end_s) const;
  // `conditions` must have prices.
  Quantised Price(const Conditions& conditions, const ValueSizes& sizes,
                  double front_end_s) const;

  static cut::Stages StagesOf(const models::SplitPlan& plan);
  // Writes `stages` into `plan` and fills in its crossings.
  static void ToPlan(const models::Graph& graph, const cut::Stages& stages,
                     models::SplitPlan& plan);

 private:
  struct Real;  // a measure in seconds or money
  Real Zero() const;
  // Nothing for constants.
  Crossing Cross(size_t tensor, bool up, const Conditions& conditions,
                 const ValueSizes& sizes) const;
  Quantised Quantise(std::vector<Real> measures) const;

  cut::Problem problem_;
  std::vector<models::ValueId> tensors_;  // the value behind each tensor
  std::vector<bool> crosses_;             // per tensor: false for constants
  std::vector<models::ValueId> shared_;   // the weight behind each shared
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_SPLIT_PROBLEM_H_
