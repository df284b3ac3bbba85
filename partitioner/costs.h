#ifndef REFRACT_PARTITIONER_COSTS_H_
#define REFRACT_PARTITIONER_COSTS_H_

// What operators take on either kind of node: what every provider of costs,
// estimated or measured, gives to the cut.

#include <vector>

#include "models/graph.h"
#include "models/sym_expr.h"
#include "partitioner/hardware.h"
#include "partitioner/work.h"

namespace refract::partitioner {

// Per node of a graph, at one batch size: seconds that a request spends in it.
// A part of a plan takes the sum of its operators and what a run takes besides
// them: a CN runs one thread per request, an HN one stream per request.
struct OperatorCosts {
  std::vector<double> cn_s;
  std::vector<double> hn_s;
  // Of each run of a part, beside its operators: a split plan has two on the
  // CN (CN-pre, CN-post) and one on the HN, any other one on the CN.
  double cn_run_s = 0;
  double hn_run_s = 0;
  // Operators whose work is not known; they stand at the least an operator
  // takes.
  std::vector<models::NodeId> unknown;
};

// Time of `work` on one unit of `hardware`: the larger of arithmetic and
// traffic, on top of what any operator and each looked-up row take.
double RooflineSeconds(const Hardware& hardware, const Work& work);

// Costs without a profile, from shapes and hardware descriptions. Views and
// sizes take nothing, nor do operators on weights alone, which both kinds of
// node compute once, at load. `cn` must have row_s.
OperatorCosts RooflineCosts(const models::Graph& graph,
                            const models::SymbolBindings& sizes,
                            const Hardware& cn, const Hardware& hn);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_H_
