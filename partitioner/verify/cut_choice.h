#ifndef REFRACT_PARTITIONER_VERIFY_CUT_CHOICE_H_
#define REFRACT_PARTITIONER_VERIFY_CUT_CHOICE_H_

// Which plans of a model are worth measuring.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/split/forced_cuts.h"
#include "partitioner/split/optimal.h"

namespace refract::partitioner {

struct Cut {
  // What people call it: "optimal = all-hn", "without VALUE up", "from NODE".
  std::string name;
  bool forced = false;
  models::SplitPlan plan;
  Prediction prediction;
  // With forms on the wire: how far each output may be off, as measured in this
  // process on the requests that are served. Empty: not at all.
  std::vector<models::WireError> errors;
};

// The optimum, heuristic, all-cn and all-hn (those with equal stages as one),
// then at most `count` forced cuts of which each differs from all others in
// what crosses: taken from `forced` and from plans whose HN part begins at ever
// later operators (HnFrom), so that the predicted latencies of all
// lie far apart. Fewer where the model has no more.
absl::StatusOr<std::vector<Cut>> ChooseCuts(
    const models::Graph& graph, const base::Digest& model,
    const Conditions& conditions, const OptimalSplit& split,
    const std::vector<ForcedCut>& forced, size_t count);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_CUT_CHOICE_H_
