#ifndef REFRACT_PARTITIONER_COSTS_WORK_H_
#define REFRACT_PARTITIONER_COSTS_WORK_H_

// The work of an operator, from shapes alone. Counts, not times: costs depend
// on the machine.

#include <map>
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
  double rows = 0;          // looked-up table rows, one per id

  Work& operator+=(const Work& other);
};

// nullopt when a relevant shape is unknown or has a symbol without a value, or
// for an operator of unknown arithmetic (recurrent layers, operators outside
// the table).
std::optional<Work> WorkOf(const models::Graph& graph, const models::Node& node,
                           const models::SymbolBindings& sizes);

// Bytes of a value at these sizes; nullopt when unknown. 8 for a kSymInt.
std::optional<double> BytesOf(const models::Value& value,
                              const models::SymbolBindings& sizes);

// The symbols of inputs, except the batch, that grow with the items of a
// request: sizes of a first dimension, and numbers of ids in bags. With each
// its default per item: the number of bags of an item, that is 1, or as many as
// the list of ids has pieces for tables.
std::map<std::string, int64_t> RowSymbols(const models::Graph& graph);

// Values of the symbols of a request with `batch` items. A symbol of
// RowSymbols() (look-ups of ragged ids) is `per_item` × batch; other symbols
// (steps of a sequence) are `per_item` itself; both within the declared range.
// A negative number −N stands for N in every request (one user with many
// candidates). Default of `per_item`: that of RowSymbols(); of other symbols 1,
// or the least value for which every tensor has an element (a convolution needs
// as many steps as its kernel).
models::SymbolBindings SizesForBatch(
    const models::Graph& graph, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item);

// InvalidArgument if a tensor would have a negative size, naming the operator
// that computes it: the model does not run at these sizes.
absl::Status CheckSizes(const models::Graph& graph,
                        const models::SymbolBindings& sizes);

// A quantity that grows with the batch: the increase per item, and the part
// that is independent of the batch. Exact if the quantity is linear in the
// batch, as it is for models whose rows are independent.
struct PerItem {
  double per_item = 0;
  double per_request = 0;
};
PerItem Slope(double at_batch_1, double at_batch_2, int64_t batch_1,
              int64_t batch_2);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_WORK_H_
