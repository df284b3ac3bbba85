#ifndef REFRACT_PARTITIONER_COSTS_MEASURED_COSTS_H_
#define REFRACT_PARTITIONER_COSTS_MEASURED_COSTS_H_

// Costs from a profile, for one kind of node.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"
#include "partitioner/costs/costs.h"
#include "partitioner/profile/hardware.h"
#include "partitioner/profile/profile.h"

namespace refract::partitioner {

// The sizes of a request.
struct RequestSize {
  int64_t batch = 1;
  models::SymbolBindings sizes;  // of that batch (SizesForBatch)
};

// OperatorCosts of one kind of node.
struct MeasuredCosts {
  std::vector<double> node_s;  // per node of the graph
  double run_s = 0;            // of a run besides its operators
  // Per value: OperatorCosts::cn_cut_s. All 0 where the profile has no pieces.
  std::vector<double> cut_s;
  // Operators that the profile lacks, priced by `hardware`.
  std::vector<models::NodeId> estimated;
  // The operators of `estimated` with unknown work.
  std::vector<models::NodeId> unknown;
  // The request has other sizes per item than the profile; costs that grow with
  // the batch were scaled by the operators' work.
  bool rescaled = false;
};

// Seconds of every operator at `request`, from the profile of the same model.
//
// Fused operators are separated by the pieces that the profile has of them;
// within a piece, and without pieces, in proportion to the estimates of
// `hardware`. The shares add up to the measured time, so a part with all
// operators of the step takes the measured time. The difference between the
// pieces and the step is shared among the values written between them, by their
// bytes. Values that are views of one another count as one value, and each of
// them has that value's cost.
//
// `profiled` are the sizes of the profile's measurement at the same batch
// (SizesForBatch of Profile::sizes). If `request` has others, the time beyond
// that of an empty batch is scaled by the ratio of the work.
MeasuredCosts MeasuredSeconds(const models::Graph& graph,
                              const Profile& profile,
                              const RequestSize& request,
                              const models::SymbolBindings& profiled,
                              const Hardware& hardware);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_MEASURED_COSTS_H_
