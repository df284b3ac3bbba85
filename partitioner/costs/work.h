#ifndef REFRACT_PARTITIONER_COSTS_WORK_H_
#define REFRACT_PARTITIONER_COSTS_WORK_H_

// How much an operator has to do, told from shapes alone. Counts, not times:
// what they cost depends on the machine.

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"

namespace refract::partitioner {

struct Work {
  double flops = 0;  // a multiply-add counts as two
  // Bytes of operands read and results written, each once. Look-ups count the
  // rows they read; views and sizes move nothing.
  double bytes = 0;
  double weight_bytes = 0;  // of `bytes`: weights that are read in full
  double rows = 0;          // of tables, each looked up by an id of its own

  Work& operator+=(const Work& other);
};

// nullopt when a shape that matters is unknown or has a symbol without a value,
// or for an operator whose arithmetic is not known (recurrent layers, operators
// outside the table).
std::optional<Work> WorkOf(const models::Graph& graph, const models::Node& node,
                           const models::SymbolBindings& sizes);

// Bytes of a value at these sizes; nullopt when unknown. 8 for a kSymInt.
std::optional<double> BytesOf(const models::Value& value,
                              const models::SymbolBindings& sizes);

// Values for the symbols of the request inputs of a batch of `batch` items.
// A symbol that counts rows of an input but is not the batch (look-ups of
// ragged ids) is `per_item` × batch, others (steps of a sequence) are
// `per_item` itself, both within the range the model declares. `per_item` of a
// symbol that is not listed: 1, or the least that leaves every tensor an
// element (a convolution needs as many steps as its kernel).
models::SymbolBindings SizesForBatch(
    const models::Graph& graph, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item);

// InvalidArgument where a tensor would have a negative size, naming the
// operator that makes it: the model does not run at these sizes.
absl::Status CheckSizes(const models::Graph& graph,
                        const models::SymbolBindings& sizes);

// A quantity that grows with the batch: what each further item adds, and what a
// request costs however many it has. Exact where the quantity is linear in the
// batch, as it is for models whose rows do not depend on each other.
struct PerItem {
  double per_item = 0;
  double per_request = 0;
};
PerItem Slope(double at_batch_1, double at_batch_2, int64_t batch_1,
              int64_t batch_2);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_WORK_H_
