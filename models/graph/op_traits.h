#ifndef REFRACT_MODELS_GRAPH_OP_TRAITS_H_
#define REFRACT_MODELS_GRAPH_OP_TRAITS_H_

// What the operator table (models/operators) says of a node of a graph, for the
// partitioner, the plan validator, `refract inspect` and the importers.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "models/operators/operator.h"

namespace refract::models {

// By name alone: "aten.linear.default", "py.mul", "fbgemm.…". Overloads of one
// operator share a class but where they mean different things.
OpClass ClassOf(absl::string_view op);
// What the node is in its graph. Differs from the name's class for a gather
// from a weight by computed ids (`weight[ids]`, index_select): that is a
// look-up, and its table belongs where the other tables are (kEmbedding).
OpClass ClassOf(const Graph& graph, const Node& node);
absl::string_view Name(OpClass op_class);

// Gives other results on every call: the kRandom operators, and dropout or
// attention with dropout unless the arguments switch it off.
bool IsRandom(const Node& node);
// A row's result depends on the other rows of the batch whatever the shapes
// are: batch normalisation that uses the batch's own statistics.
bool MixesRows(const Node& node);

// Reads a table in a row format, which GPUs do not (Value::row_bytes).
bool ReadsRowFormat(const Graph& graph, const Node& node);

// May the HN run it? False for kEmbedding, kCpuOnly, kUnknown, kRandom.
bool MayRunOnHn(OpClass op_class);

// Argument name of the table that an embedding operator reads ("weight"), of
// its ids ("indices") and of its offsets ("offsets" or empty).
struct EmbeddingArgs {
  absl::string_view weight;
  absl::string_view indices;
  absl::string_view offsets;
};
// Empty names when `op` is no embedding operator, or one of several tables at
// once (fbgemm's).
EmbeddingArgs EmbeddingArgsOf(absl::string_view op);

// Where a graph's request inputs are used as ids of a table, found through
// views and casts (a column of an id matrix counts).
struct IdInput {
  ValueId input = kNoValue;
  std::string table;  // weight name
  int64_t rows = 0;
  bool is_offsets = false;  // the input holds bag offsets, not ids
  // The one column of a matrix input whose ids these are; -1: all of it.
  int64_t column = -1;
  // Offsets only: the input with the ids of the bags (kNoValue when they come
  // from several or are computed), and whether the last offset counts the ids
  // rather than opens a bag.
  ValueId ids = kNoValue;
  bool include_last_offset = false;
};
std::vector<IdInput> FindIdInputs(const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_OP_TRAITS_H_
