#ifndef REFRACT_MODELS_SPLIT_PLAN_H_
#define REFRACT_MODELS_SPLIT_PLAN_H_

// The partitioner's result, and the check that a node runs before it believes
// one. Lives here because nodes do not depend on the partitioner.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "models/graph.h"

namespace refract::models {

// DESIGN section 4: for every edge u→v stage(u) ≤ stage(v), hence one crossing
// each way.
enum class Stage : uint8_t { kCnPre = 0, kHn = 1, kCnPost = 2 };

struct SplitPlan {
  base::Digest model;         // ModelDigest() of the model it was made for
  std::string method;         // "heuristic", "all-cn", …
  std::vector<Stage> stages;  // one per node of the graph
  // Values that cross, in wire order. `up`: CN → HN; `down`: HN → CN. Sizes
  // (kSymInt) cross as int64 scalars. Weights never cross.
  std::vector<ValueId> up;
  std::vector<ValueId> down;

  bool uses_hn() const;
};

// Has `value` a form on the wire? Tensors of known dtype and integer sizes do.
bool MayCross(const Value& value);

// Fills `up` and `down` from `stages`, in order of value id.
void ComputeCrossings(const Graph& graph, SplitPlan& plan);

// Every rule a legal plan obeys: one stage per node; stages never fall along an
// edge; operators that must not be on the HN are not; look-ups are before or,
// of one table each, on it; `up`/`down` are exactly what must cross, each with
// a known dtype; digest equals `model`. InvalidArgument names node or value.
absl::Status ValidatePlan(const Graph& graph, const base::Digest& model,
                          const SplitPlan& plan);

// Agreed on in the handshake: names, dtypes and symbolic shapes of what crosses
// in both directions, in order.
base::Digest SchemaDigest(const Graph& graph, const SplitPlan& plan);

// Stored form (proto/split_plan.proto, binary). `path` appears in errors.
absl::Status SavePlan(const Graph& graph, const SplitPlan& plan,
                      absl::string_view path);
absl::StatusOr<SplitPlan> LoadPlan(const Graph& graph, absl::string_view path);

}  // namespace refract::models

#endif  // REFRACT_MODELS_SPLIT_PLAN_H_
