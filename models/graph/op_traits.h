#ifndef REFRACT_MODELS_GRAPH_OP_TRAITS_H_
#define REFRACT_MODELS_GRAPH_OP_TRAITS_H_

// Answers from the operator table (models/operators) about graph nodes, for the
// partitioner, the plan validator, `refract inspect` and the importers.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "models/operators/operator.h"

namespace refract::models {

// By name alone: "aten.linear.default", "py.mul", "fbgemm.…". Overloads of an
// operator share a class unless they mean different things.
OpClass ClassOf(absl::string_view op);
// The node's class in its graph. Differs from the name's class for a gather
// from a weight by computed ids (`weight[ids]`, index_select): that is a
// look-up, and its table belongs to the other tables (kEmbedding).
OpClass ClassOf(const Graph& graph, const Node& node);
absl::string_view Name(OpClass op_class);

// Whether results differ between equal calls: the kRandom operators, and
// dropout or attention with dropout unless the arguments switch it off.
bool IsRandom(const Node& node);
// Whether a row's result depends on the other rows of the batch for all shapes:
// batch normalisation by the batch's own statistics.
bool MixesRows(const Node& node);

// Whether `node` reads a table in a row format (Value::row_bytes); GPUs do not.
bool ReadsRowFormat(const Graph& graph, const Node& node);

// Whether the HN may run the class: not kEmbedding, kCpuOnly, kUnknown,
// kRandom.
bool MayRunOnHn(OpClass op_class);

// Argument name of the table that an embedding operator reads ("weight"), of
// its ids ("indices") and of its offsets ("offsets" or empty).
struct EmbeddingArgs {
  absl::string_view weight;
  absl::string_view indices;
  absl::string_view offsets;
};
// Empty names if `op` is no embedding operator, or reads several tables at once
// (fbgemm's).
EmbeddingArgs EmbeddingArgsOf(absl::string_view op);

// The column of dimension 1 that `node`, a select, slice or unbind, takes as
// its result `result`; nullopt for other nodes, several columns, and a column
// that is not known.
std::optional<int64_t> ColumnOf(const Graph& graph, const Node& node,
                                ValueId result);

// The same for dimension 0 of a matrix whose number of rows is constant. In a
// matrix with another number of rows each row is an item.
std::optional<int64_t> RowOf(const Graph& graph, const Node& node,
                             ValueId result);

// A request input used as ids of a table, found through views and casts (a
// column of an id matrix counts, and a row of a feature-major matrix, which has
// the features in dimension 0 and the items in dimension 1).
struct IdInput {
  ValueId input = kNoValue;
  std::string table;  // weight name
  int64_t rows = 0;
  bool is_offsets = false;  // the input holds bag offsets, not ids
  // The column or the row of a matrix input with these ids or offsets; -1: all
  // of it. No input has both.
  int64_t column = -1;
  int64_t row = -1;
  // Ids only: which of `pieces` pieces of a list input, that follow one
  // another, has these ids; -1: all of it. Data decides where a piece ends.
  int64_t piece = -1;
  int64_t pieces = 1;
  // Ids in bags only: the input with the lengths of the bags, of piece after
  // piece; kNoValue if the bags' offsets do not follow from such an input
  // alone.
  ValueId lengths = kNoValue;
  // Offsets only: the input with the ids of the bags, or with the numbers of
  // which these are computed one by one (kNoValue if several inputs are), how
  // many of its numbers these ids are, and whether the last offset is the
  // number of ids rather than the begin of a bag.
  ValueId ids = kNoValue;
  enum class Extent : uint8_t {
    kPart,  // fewer than a row of a matrix, or it is not known
    kRow,   // as many as a row of a matrix has
    kAll,
  };
  Extent ids_extent = Extent::kPart;
  bool include_last_offset = false;
};
std::vector<IdInput> FindIdInputs(const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_OP_TRAITS_H_
