#ifndef REFRACT_PARTITIONER_MEASURE_REQUEST_SOURCE_H_
#define REFRACT_PARTITIONER_MEASURE_REQUEST_SOURCE_H_

// Sources of requests for measurements. A request is fresh where the source can
// make it so, since rows that were just read are in the caches and several
// times faster to read again.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/graph/graph.h"

namespace refract::partitioner {

// Not thread-safe.
class RequestSource {
 public:
  virtual ~RequestSource() = default;

  // The inputs of a graph, in its order, for `batch` items, with other values
  // at every call. InvalidArgument names the input that cannot be made.
  virtual absl::StatusOr<std::vector<base::Tensor>> Make(int64_t batch) = 0;

  // The batches that Make() takes, ascending. Empty: any.
  virtual std::vector<int64_t> batches() const { return {}; }
  // Numbers per item of the symbols that are not the batch, rounded; −N for N
  // in every request.
  virtual const std::map<std::string, int64_t>& sizes() const = 0;
  // For people: "random ids, spread over whole tables".
  virtual const std::string& description() const = 0;
};

// Random requests: ids uniform over their whole tables, sizes as
// SizesForBatch with `per_item`. `graph` must outlive the source.
// InvalidArgument names an input that cannot be filled without samples.
absl::StatusOr<std::unique_ptr<RequestSource>> RandomRequests(
    const models::Graph& graph,
    const absl::flat_hash_map<std::string, int64_t>& per_item, uint64_t seed);

// Items drawn at random, with replacement, from one of `samples` at a time:
// tensors per input, in the graph's order, one sample per request file. `graph`
// must outlive the source. InvalidArgument names an input whose number of
// rows differs from that of other inputs; so does Make() where the bags of a
// matrix of ids no longer fill a matrix. Unimplemented names an input that has
// neither a row per item nor bags of ids per item (by offsets or lengths), and
// depends on the batch.
absl::StatusOr<std::unique_ptr<RequestSource>> SampledRequests(
    const models::Graph& graph, std::vector<std::vector<base::Tensor>> samples,
    uint64_t seed);

// The requests of `samples` as they are; requests of one batch take turns. For
// models whose items cannot be drawn one by one, such as candidates of several
// users with a history each. Rows of few samples stay in the caches.
// InvalidArgument names the sample, counted from 1, whose shapes contradict the
// model.
absl::StatusOr<std::unique_ptr<RequestSource>> WholeRequests(
    const models::Graph& graph, std::vector<std::vector<base::Tensor>> samples);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MEASURE_REQUEST_SOURCE_H_
