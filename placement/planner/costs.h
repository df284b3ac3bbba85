#ifndef REFRACT_PLACEMENT_PLANNER_COSTS_H_
#define REFRACT_PLACEMENT_PLANNER_COSTS_H_

// Costs of one request of a model as a function of its rows (items): the input
// of sizing and simulation. Units: seconds and bytes.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "placement/cluster/random.h"
#include "placement/planner/recording.h"

namespace refract::placement {

// Median costs of one request of `rows` rows on idle nodes.
struct RequestCost {
  double rows = 1;
  // On one core of a CN: everything until the GPU node has the request (front
  // end, decoding, CN-pre), and everything after its answer has come.
  double cn_pre_s = 0;
  double cn_post_s = 0;
  // One execution of an HN instance, on a whole GPU.
  double hn_s = 0;
  double up_bytes = 0;    // CN → HN
  double down_bytes = 0;  // HN → CN
};

// Spread of times around their median. A measured time is the median times a
// factor; `factors` are equally likely. Empty: factors exp(sigma · N(0, 1)).
struct Variation {
  double sigma = 0;
  std::vector<double> factors;

  double Draw(Random& random) const;
  double Mean() const;
};

// Of one model. Plain values: Check() before use.
struct ModelCosts {
  std::vector<RequestCost> points;  // ascending rows, ≥ 1 point
  // Time of a split request that no CN core, HN or NIC is busy with: latency of
  // the network both ways, hand-overs between threads.
  double round_trip_s = 0;
  Variation cn;
  Variation hn;
  Variation round_trip;  // of `round_trip_s`
  // Replayed by the simulation in place of the three variations, which are for
  // formulas then; null: not recorded.
  std::shared_ptr<const Recording> recording;
  double cn_memory_bytes = 0;  // of an instance
  double hn_memory_bytes = 0;
  // Why requests cannot share an execution on the HN; empty: they can.
  std::string never_merged;
  std::string source;  // for people: where the figures come from

  // Linear between points; beyond them along the nearest two, at least 0. One
  // point: every request costs the same.
  RequestCost At(double rows) const;
};

// InvalidArgument names the field: no points, rows that do not ascend, a figure
// that is negative or not a number, a factor that is not positive.
absl::Status Check(const ModelCosts& costs);

// Means over equally likely `rows`, with the means of both variations.
RequestCost MeanOf(const ModelCosts& costs, const std::vector<double>& rows);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_COSTS_H_
