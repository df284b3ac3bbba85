#ifndef REFRACT_PARTITIONER_SPLIT_SPLIT_PROBLEM_H_
#define REFRACT_PARTITIONER_SPLIT_SPLIT_PROBLEM_H_

// Translation of a graph into the problem of partitioner/cut, and back.

#include <vector>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/costs/prediction.h"
#include "partitioner/cut/problem.h"
#include "partitioner/split/crossing.h"

namespace refract::partitioner {

// The allowed stages of operators and the values that may cross, by the rules
// of models::ValidatePlan. Nodes of the problem are nodes of the graph, its
// tensors are values computed by operators or brought by a request, its shared
// weights are the graph's weights. Keeps no references.
class SplitProblem {
 public:
  // `hn_look_ups` as in Conditions: all other look-ups stay before the HN.
  explicit SplitProblem(const models::Graph& graph,
                        const std::vector<bool>& hn_look_ups = {});

  const cut::Problem& problem() const { return problem_; }
  // The problem's tensor of `value`; -1 if it has none.
  int TensorOf(models::ValueId value) const;

  // Integer bytes of weights on a node.
  cut::Measure CnMemory(const ValueSizes& sizes) const;
  cut::Measure HnMemory(const ValueSizes& sizes) const;

  // Measures in fractions of a second, of money or of a byte, chosen fine
  // enough that rounding loses less than 10^-9 of the whole.
  struct Quantised {
    std::vector<cut::Measure> measures;
    double unit = 1;  // value of 1
  };
  // Bytes that cross, in the forms of Conditions::wire. Forms whose size
  // depends on the data have mean bytes, which are not integers. In both
  // directions, or in one of them.
  Quantised BytesCrossing(const Conditions& conditions, const ValueSizes& sizes,
                          bool up = true, bool down = true) const;
  // Tensors that cross up, or down.
  cut::Measure TensorsCrossing(bool up) const;
  Quantised Latency(const Conditions& conditions,
                    const ValueSizes& sizes) const;
  // One measure per station: CN, link up, HN, link down. Their largest is the
  // time between two requests. `front_end_s`: time of every request on its CN
  // besides the model (FrontEndSeconds).
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
  struct Real;  // a measure in seconds, money or bytes
  Real Zero() const;
  // Zero for constants.
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
