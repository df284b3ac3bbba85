#ifndef REFRACT_PARTITIONER_VERIFY_CUT_CHOICE_H_
#define REFRACT_PARTITIONER_VERIFY_CUT_CHOICE_H_

// Chooses the plans of a model that are worth measuring.

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
  // Name for people: "optimal = all-hn", "without VALUE up", "from NODE".
  std::string name;
  bool forced = false;
  models::SplitPlan plan;
  Prediction prediction;
  // With lossy wire forms: the largest error of each output, measured in this
  // process on the requests that are served. Empty: outputs must be equal.
  std::vector<models::WireError> errors;
};

// The optimum, heuristic, all-cn and all-hn (plans with equal stages become one
// cut), then at most `count` forced cuts, each with other crossing values than
// all the others. Candidates are `forced`, and plans whose HN part begins at,
// or is, one of up to 32 operators (HnFrom, HnOnly). The predicted latencies of
// the chosen cuts lie as far apart as possible. Fewer cuts where the model has
// no more.
absl::StatusOr<std::vector<Cut>> ChooseCuts(
    const models::Graph& graph, const base::Digest& model,
    const Conditions& conditions, const OptimalSplit& split,
    const std::vector<ForcedCut>& forced, size_t count);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_CUT_CHOICE_H_
