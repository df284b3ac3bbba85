#ifndef REFRACT_PARTITIONER_MEASURE_SAMPLE_REQUESTS_H_
#define REFRACT_PARTITIONER_MEASURE_SAMPLE_REQUESTS_H_

// Requests of a model that no server has yet: from a file, or drawn.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/graph/sym_expr.h"
#include "models/repository/repository.h"

namespace refract::partitioner {

struct SampleRequests {
  std::vector<std::string> names;                   // of the model's inputs
  std::vector<std::vector<base::Tensor>> requests;  // in the order of `names`
  // What the sizes of the inputs are, the same for all.
  models::SymbolBindings sizes;
  int64_t batch = 0;  // items; 1 for a model without a batch
};

// One request, from a safetensors file. InvalidArgument names the file and the
// input that is missing, surplus, or of a shape that does not fit the model.
absl::StatusOr<SampleRequests> ReadSample(const std::string& path,
                                          const models::LoadedModel& model);

// `count` requests of `batch` items, each with fresh values, as `refract bench
// serving` draws them: ids uniformly from their whole tables, `per_item` ids
// per bag (SizesForBatch), sizes that do not grow with the batch
// at `per_item` too. Fewer when they would take more than 256 MiB, at least
// one. InvalidArgument names an input that cannot be drawn: give a sample.
absl::StatusOr<SampleRequests> DrawRequests(
    const models::LoadedModel& model, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item, int count);

// The symbols of the inputs' shapes, from tensors in the order of
// `graph.inputs`. InvalidArgument names the input whose shape contradicts the
// model or another input.
absl::StatusOr<models::SymbolBindings> BindSizes(
    const models::Graph& graph, absl::Span<const base::Tensor> inputs);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MEASURE_SAMPLE_REQUESTS_H_
