#ifndef REFRACT_MODELS_REPOSITORY_SPLIT_PLAN_H_
#define REFRACT_MODELS_REPOSITORY_SPLIT_PLAN_H_

// The partitioner's result, and the check that a node runs before it believes
// one. Lives here because nodes do not depend on the partitioner.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "models/repository/wire_form.h"

namespace refract::models {

// In the version's folder. The former plan is the way back.
inline constexpr char kSplitPlanFile[] = "split_plan.pb";
inline constexpr char kFormerPlanFile[] = "split_plan.previous.pb";

// DESIGN section 4: for every edge u→v stage(u) ≤ stage(v), hence one crossing
// each way.
enum class Stage : uint8_t { kCnPre = 0, kHn = 1, kCnPost = 2 };

// How far the scores of a plan are from those of the unsplit model in fp32, as
// measured when it was made.
struct WireError {
  std::string output;        // name of the graph's output
  double max_abs = 0;        // largest |difference| of two elements
  double largest_value = 0;  // largest |element| without the split
};

// What the forms of a plan were chosen on.
struct WireMeasurement {
  std::string sample;  // the files, or "drawn, seed 1": for people
  int64_t requests = 0;
  // Limit on every WireError::max_abs; absent: none was asked for.
  std::optional<double> bound;
  std::vector<WireError> errors;  // one per output
};

struct SplitPlan {
  base::Digest model;         // ModelDigest() of the model it was made for
  std::string method;         // "heuristic", "all-cn", …
  std::vector<Stage> stages;  // one per node of the graph
  // Values that cross, in wire order. `up`: CN → HN; `down`: HN → CN. Sizes
  // (kSymInt) cross as int64 scalars. Weights never cross, nor do values that
  // depend on weights alone (models/graph/constants.h).
  std::vector<ValueId> up;
  std::vector<ValueId> down;
  // In which form each does; empty: all as they are. Only what goes up may have
  // unique rows: a CN knows them before it sends, scores have none to speak of.
  std::vector<WireForm> up_forms;
  std::vector<WireForm> down_forms;
  std::optional<WireMeasurement> measured;
  // May requests be put together, or cut, by rows: the whole model, and the HN
  // part alone (MarkRows() fills them). Default: neither.
  RowDependence rows;
  RowDependence hn_rows;

  bool uses_hn() const;
  WireForm up_form(size_t i) const {
    return up_forms.empty() ? WireForm() : up_forms[i];
  }
  WireForm down_form(size_t i) const {
    return down_forms.empty() ? WireForm() : down_forms[i];
  }
  // Whether some value crosses other than as it is.
  bool has_wire_forms() const;
};

// Tensors that a message may have (transport::kMaxTensors). A value with unique
// rows takes two.
inline constexpr size_t kMaxMessageTensors = 256;

// Has `value` a form on the wire? Tensors of known dtype and integer sizes do.
bool MayCross(const Value& value);

// Fills `up` and `down` from `stages`, in order of value id; all in the form
// they have.
void ComputeCrossings(const Graph& graph, SplitPlan& plan);

// Every rule a legal plan obeys: one stage per node; stages never fall along an
// edge; operators that must not be on the HN are not; look-ups are before or,
// of one table each, on it; `up`/`down` are exactly what must cross, each with
// a known dtype, in a form that it can have; digest equals `model`; rows may be
// put together or cut only where the graph shows that they are scored alone.
// InvalidArgument names node or value.
absl::Status ValidatePlan(const Graph& graph, const base::Digest& model,
                          const SplitPlan& plan);

// Agreed on in the handshake: names, dtypes and symbolic shapes of what crosses
// in both directions, in order, and the forms where there are any.
base::Digest SchemaDigest(const Graph& graph, const SplitPlan& plan);

// Stored form (proto/split_plan.proto, binary). `path` appears in errors.
absl::Status SavePlan(const Graph& graph, const SplitPlan& plan,
                      absl::string_view path);
absl::StatusOr<SplitPlan> LoadPlan(const Graph& graph, absl::string_view path);

// The plan of the version in `folder` (split_plan.pb). Nodes read it when they
// load the version: running nodes keep theirs.
bool HasPlan(absl::string_view folder);
// Makes `plan` the version's, after ValidatePlan(); the plan before is kept as
// split_plan.previous.pb.
absl::Status ActivatePlan(const Graph& graph, const base::Digest& model,
                          const SplitPlan& plan, const std::string& folder);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_SPLIT_PLAN_H_
