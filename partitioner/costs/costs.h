#ifndef REFRACT_PARTITIONER_COSTS_COSTS_H_
#define REFRACT_PARTITIONER_COSTS_COSTS_H_

// Costs of operators on either kind of node: the input of the cut from every
// source of costs, estimated or measured.

#include <vector>

#include "absl/types/span.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"
#include "partitioner/costs/work.h"
#include "partitioner/profile/hardware.h"

namespace refract::partitioner {

// Per node of a graph, at one batch size: seconds of a request in it. A part
// takes the sum of its operators and the time of a run besides them. A CN runs
// one thread per request, an HN one stream per request.
struct OperatorCosts {
  std::vector<double> cn_s;
  std::vector<double> hn_s;
  // Time of each run of a part besides its operators. A split plan has two runs
  // on the CN (CN-pre, CN-post) and one on the HN, any other plan one on the
  // CN.
  double cn_run_s = 0;
  double hn_run_s = 0;
  // Per value: extra seconds of its operators when it crosses, because its
  // producer and readers are then not fused. Half of it counts for the
  // producer, which writes the value, and half for the readers. Empty if it was
  // not measured.
  std::vector<double> cn_cut_s;
  std::vector<double> hn_cut_s;
  // Operators of unknown work; they are priced at the fixed time of an
  // operator.
  std::vector<models::NodeId> unknown;
  // Opaque nodes without measurement (RegionSeconds).
  std::vector<models::NodeId> regions;
};

// Time of `work` on one unit of `hardware`: the larger of arithmetic and
// traffic, plus the fixed time of an operator and of each looked-up row.
// `cached_share` (0 to 1) of the traffic is served by the cache, if the
// hardware has a cache; look-ups read memory.
double RooflineSeconds(const Hardware& hardware, const Work& work,
                       double cached_share = 0);

// Share (0 to 1) of the memory touched by every request that the cache of
// `hardware` keeps between requests: weights that are read in full and values
// between operators, `touched_bytes` together. Table rows differ from request
// to request. 0 if the description has no cache.
double CachedShare(const Hardware& hardware, double touched_bytes);

// Assumed time of an opaque node (models/graph/script_region.h), whose loops
// and branches shapes do not show: each of its operators runs once, takes
// kRegionLaunches times the fixed time of a native operator, and reads or
// writes the largest value that enters or leaves the node. An assumption, not a
// measurement: loops take more, branches less. `node` must be an opaque node.
inline constexpr double kRegionLaunches = 3;
double RegionSeconds(const models::Graph& graph, const models::Node& node,
                     const models::SymbolBindings& sizes,
                     const Hardware& hardware);

// Costs without a profile, from shapes and hardware descriptions. Views, sizes,
// and operators on weights alone (computed once, at load) cost nothing. `cn`
// must have row_s.
//
// `steps`: operators that the engine fuses, each node in at most one step;
// other nodes stand alone. A step takes the fixed time of an operator once
// (look-ups each), and no traffic for the values between its operators. The
// operators share the step's time in proportion to their separate times; the
// difference to the sum of its pieces is the cost of cuts through the step
// (OperatorCosts::cn_cut_s, hn_cut_s).
OperatorCosts RooflineCosts(
    const models::Graph& graph, const models::SymbolBindings& sizes,
    const Hardware& cn, const Hardware& hn,
    absl::Span<const std::vector<models::NodeId>> steps = {});

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_COSTS_H_
