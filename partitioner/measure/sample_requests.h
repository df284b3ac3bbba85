#ifndef REFRACT_PARTITIONER_MEASURE_SAMPLE_REQUESTS_H_
#define REFRACT_PARTITIONER_MEASURE_SAMPLE_REQUESTS_H_

// Requests of a model by which wire forms are chosen and cuts are verified.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"

namespace refract::partitioner {

struct SampleRequest {
  std::string name;                  // a file, or "drawn request 3"
  std::vector<base::Tensor> inputs;  // in the graph's order
};

struct SampleRequests {
  std::string description;  // the files, or "drawn, 256 items each, seed 1"
  std::vector<SampleRequest> requests;
};

// One request per safetensors file. InvalidArgument names the file and the
// input that is missing, surplus or of another dtype or rank.
absl::StatusOr<SampleRequests> ReadSamples(
    const std::vector<std::string>& paths, const models::Graph& graph);

// `count` requests of `batch` items, each with fresh values, as `refract bench
// serving` draws them: ids uniform over their whole tables, `per_item` ids per
// bag (SizesForBatch). Fewer when the requests would take more than 256 MiB, at
// least one. InvalidArgument names an input that cannot be drawn.
absl::StatusOr<SampleRequests> DrawRequests(
    const models::Graph& graph, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item, int count,
    uint64_t seed);

// The symbols of the inputs' shapes. InvalidArgument names the input whose
// shape contradicts the model or another input.
absl::StatusOr<models::SymbolBindings> BindSizes(
    const models::Graph& graph, absl::Span<const base::Tensor> inputs);

// As BindSizes(); the sizes must be the same in all requests.
// InvalidArgument names the request that differs from the first, or whose
// shapes contradict the model or each other.
absl::StatusOr<models::SymbolBindings> CommonSizes(
    const models::Graph& graph, const SampleRequests& samples);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MEASURE_SAMPLE_REQUESTS_H_
