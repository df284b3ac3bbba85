#ifndef REFRACT_MODELS_REPOSITORY_SPLIT_PLAN_H_
#define REFRACT_MODELS_REPOSITORY_SPLIT_PLAN_H_

// The partitioner's result, and the check that a node runs before it uses it.
// In this folder because nodes do not depend on the partitioner.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "models/repository/table_shards.h"
#include "models/repository/wire_form.h"

namespace refract::models {

// File in the version's folder. The previous plan is kept for a rollback.
inline constexpr char kSplitPlanFile[] = "split_plan.pb";
inline constexpr char kFormerPlanFile[] = "split_plan.previous.pb";

// For every edge u→v stage(u) ≤ stage(v), hence one crossing each
// way.
enum class Stage : uint8_t { kCnPre = 0, kHn = 1, kCnPost = 2 };

// Differences of a plan's scores from the unsplit model's in fp32, measured
// when the plan was made.
struct WireError {
  std::string output;        // name of the graph's output
  double max_abs = 0;        // largest |difference| of two elements
  double largest_value = 0;  // largest |element| without the split
};

// Measurement by which the wire forms of a plan were chosen.
struct WireMeasurement {
  std::string sample;  // files, or "drawn, seed 1"; for people
  int64_t requests = 0;
  // Limit on every WireError::max_abs; absent: no limit was given.
  std::optional<double> bound;
  std::vector<WireError> errors;  // one per output
};

struct SplitPlan {
  base::Digest model;         // ModelDigest() of its model
  std::string method;         // "heuristic", "all-cn", …
  std::vector<Stage> stages;  // one per node of the graph
  // Values that cross, in wire order. `up`: CN → HN; `down`: HN → CN. Sizes
  // (kSymInt) cross as int64 scalars. Weights never cross, nor do values that
  // depend on weights alone (models/graph/constants.h).
  std::vector<ValueId> up;
  std::vector<ValueId> down;
  // Wire form of each value; empty: all plain. Only values that go up may have
  // unique rows: a CN knows them before it sends, scores have none to speak of.
  std::vector<WireForm> up_forms;
  std::vector<WireForm> down_forms;
  std::optional<WireMeasurement> measured;
  // Tables that are divided over a group of CPU nodes: none, or num_shards ≥ 2.
  size_t num_shards = 0;
  std::vector<TableShards> shards;
  // Whether requests may be merged, or cut, by rows: the whole model, and the
  // HN part alone (MarkRows() fills them). Default: neither.
  RowDependence rows;
  RowDependence hn_rows;

  bool uses_hn() const;
  WireForm up_form(size_t i) const {
    return up_forms.empty() ? WireForm() : up_forms[i];
  }
  WireForm down_form(size_t i) const {
    return down_forms.empty() ? WireForm() : down_forms[i];
  }
  // Whether some value crosses in a form that is not plain.
  bool has_wire_forms() const;
};

// Most tensors of a message (transport::kMaxTensors). A value with unique rows
// takes two.
inline constexpr size_t kMaxMessageTensors = 256;

// Whether `value` can be sent. Tensors of known dtype and integer sizes can.
bool MayCross(const Value& value);

// Fills `up` and `down` from `stages`, in order of value id; all forms are
// plain.
void ComputeCrossings(const Graph& graph, SplitPlan& plan);

// Checks every rule of a legal plan: one stage per graph node; stages never
// fall along an edge; operators that must not be on the HN are not there;
// look-ups are before the HN or, of one table each, on it; `up`/`down` are
// exactly the values that must cross, each with a known dtype, in a possible
// form; digest equals `model`; rows may be merged or cut only if the graph
// shows that they are scored alone; tables are divided as CheckShards() wants.
// InvalidArgument names graph node or value.
absl::Status ValidatePlan(const Graph& graph, const base::Digest& model,
                          const SplitPlan& plan);

// FailedPrecondition where more values cross in a direction than a message has
// room for. ValidatePlan() leaves this out: plans that are only compared with
// others may be too wide.
absl::Status CheckMessageRoom(const SplitPlan& plan);

// Compared in the handshake: names, dtypes and symbolic shapes of the values
// that cross in both directions, in order, and the forms if any is not plain.
base::Digest SchemaDigest(const Graph& graph, const SplitPlan& plan);

// Stored form (proto/split_plan.proto, binary). SavePlan() replaces the file by
// rename. Errors name `path`: as base::ReplaceText() and base::ReadText();
// InvalidArgument: no plan, or a plan for another graph.
absl::Status SavePlan(const Graph& graph, const SplitPlan& plan,
                      absl::string_view path);
absl::StatusOr<SplitPlan> LoadPlan(const Graph& graph, absl::string_view path);

// Whether the version in `folder` has a plan (split_plan.pb). Nodes read it
// when they load the version: running nodes keep their plan.
bool HasPlan(absl::string_view folder);
// Makes `plan` the version's plan, after ValidatePlan(); the previous plan is
// kept as split_plan.previous.pb.
absl::Status ActivatePlan(const Graph& graph, const base::Digest& model,
                          const SplitPlan& plan, const std::string& folder);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_SPLIT_PLAN_H_
