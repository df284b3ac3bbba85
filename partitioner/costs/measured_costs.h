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

// What a request is made of.
struct RequestSize {
  int64_t batch = 1;
  models::SymbolBindings sizes;  // of that batch (SizesForBatch)
};

// One side of OperatorCosts.
struct MeasuredCosts {
  std::vector<double> node_s;  // per node of the graph
  double run_s = 0;            // of a run besides its operators
  // Per value: OperatorCosts::cn_cut_s. All 0 where the profile has no pieces.
  std::vector<double> cut_s;
  // Operators that the profile does not know: by `hardware`.
  std::vector<models::NodeId> estimated;
  // Of `estimated`, those whose work is not known either.
  std::vector<models::NodeId> unknown;
  // The request has other sizes per item than the profile was measured with;
  // what grows with the batch was scaled by the operators' work.
  bool rescaled = false;
};

// Seconds of every operator at `request`, from the profile of the same model.
//
// Operators that are computed as one are told apart by the pieces that the
// profile has of them, within a piece and without pieces by `hardware`, in
// proportion to what it would have each of them take: the shares add up to
// what was measured, so a part with all of them takes what it takes. What the
// pieces take more than the whole is shared among the values that are written
// out between them, by their bytes; values that are views of one another are
// one, and each of them costs what that one does.
//
// `profiled` are the sizes, at the same batch, that the profile was measured
// with (SizesForBatch of Profile::sizes). Where `request` has others, the time
// beyond that of an empty batch is scaled by the work of either.
MeasuredCosts MeasuredSeconds(const models::Graph& graph,
                              const Profile& profile,
                              const RequestSize& request,
                              const models::SymbolBindings& profiled,
                              const Hardware& hardware);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_MEASURED_COSTS_H_
