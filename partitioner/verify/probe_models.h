#ifndef REFRACT_PARTITIONER_VERIFY_PROBE_MODELS_H_
#define REFRACT_PARTITIONER_VERIFY_PROBE_MODELS_H_

// Models that compute almost nothing, so that their requests show the time
// outside operators. They have no weights.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"

namespace refract::partitioner {

struct ProbeModel {
  std::string name;
  models::Graph graph;
  bool idle = false;  // no operator that takes any time
  // Stage of each node when it is split; empty: it is only served whole.
  std::vector<models::Stage> stages;
};

// Numbers per item in models with many bytes.
inline constexpr int64_t kProbeWidth = 256;
// Inputs of models with many tensors.
inline constexpr int64_t kProbeTensors = 32;

// in:      many bytes in, few out.
// echo:    many bytes in and out.
// up:      many bytes in, few out; split, many bytes go up.
// down:    few bytes in and out; split, many bytes come down.
// tensors: many inputs of few bytes; split, they all go up.
//
// A tensor that one node computes is read in full by the other node, as in real
// models, so that its bytes move between two processors' caches.
std::vector<ProbeModel> ProbeModels();

// A request of `batch` items: zeros.
absl::StatusOr<std::vector<base::Tensor>> ProbeRequest(
    const models::Graph& graph, int64_t batch);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_PROBE_MODELS_H_
