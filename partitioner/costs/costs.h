#ifndef REFRACT_PARTITIONER_COSTS_COSTS_H_
#define REFRACT_PARTITIONER_COSTS_COSTS_H_

// What operators take on either kind of node: what every provider of costs,
// estimated or measured, gives to the cut.

#include <vector>

#include "absl/types/span.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"
#include "partitioner/costs/work.h"
#include "partitioner/profile/hardware.h"

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
  // Per value, seconds: what its operators take more when it crosses, because
  // its maker and its readers are then no longer computed as one. Half of it is
  // taken to be the maker's, who writes the value, and half the readers'. Empty
  // where nobody measured it.
  std::vector<double> cn_cut_s;
  std::vector<double> hn_cut_s;
  // Operators whose work is not known; they stand at the least an operator
  // takes.
  std::vector<models::NodeId> unknown;
  // Regions of LibTorch's interpreter that nobody measured (RegionSeconds).
  std::vector<models::NodeId> regions;
};

// Time of `work` on one unit of `hardware`: the larger of arithmetic and
// traffic, on top of what any operator and each looked-up row take. Of the
// traffic so much, 0 to 1, meets the cache, where the hardware tells of one;
// none of what looks up rows does.
double RooflineSeconds(const Hardware& hardware, const Work& work,
                       double cached_share = 0);

// How much of what one request after the other touches the cache of `hardware`
// holds from one to the next, 0 to 1: weights that are read in full and values
// between operators, `touched_bytes` together. Rows of tables are others each
// time. 0 where the hardware tells of no cache.
double CachedShare(const Hardware& hardware, double touched_bytes);

// A region of LibTorch's interpreter (models/graph/script_region.h), whose
// loops and branches shapes do not tell: assumed to run each of its operators
// once, each of which takes kRegionLaunches times what a native operator does
// at least and reads or writes the largest value that enters or leaves the
// region. An assumption, not a measurement: loops take more, branches less.
// `node` must be a region.
inline constexpr double kRegionLaunches = 3;
double RegionSeconds(const models::Graph& graph, const models::Node& node,
                     const models::SymbolBindings& sizes,
                     const Hardware& hardware);

// Costs without a profile, from shapes and hardware descriptions. Views and
// sizes take nothing, nor do operators on weights alone, which both kinds of
// node compute once, at load. `cn` must have row_s.
//
// `steps`: operators that the engine computes as one, each node in at most one
// of them; nodes that are in none stand alone. A step takes what an operator
// takes at least once (look-ups each), and no traffic for what lies between its
// operators. Its operators share its time in proportion to what they would take
// alone; what that is more together is what cuts through it cost
// (OperatorCosts::cn_cut_s, hn_cut_s).
OperatorCosts RooflineCosts(
    const models::Graph& graph, const models::SymbolBindings& sizes,
    const Hardware& cn, const Hardware& hn,
    absl::Span<const std::vector<models::NodeId>> steps = {});

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_COSTS_H_
