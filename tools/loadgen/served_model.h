#ifndef REFRACT_TOOLS_LOADGEN_SERVED_MODEL_H_
#define REFRACT_TOOLS_LOADGEN_SERVED_MODEL_H_

// A server's description of a model, and how to fill the model's inputs.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/tensor.h"
#include "models/graph/sym_expr.h"
#include "tools/loadgen/table_ids.h"

namespace refract::loadgen {

struct ServedInput {
  std::string name;
  base::DType dtype = base::DType::kUnknown;
  base::Dims dims;  // -1: any size
  // The server's name of the type if it is not one of Refract's types.
  std::string unknown_type = {};
};

struct ServedModel {
  std::string name;
  std::string version;  // as requests name it; empty: the newest
  std::vector<ServedInput> inputs;
  // ModelConfig's parameters. models/repository/model_config.h documents the
  // parameters that are read here. Empty for a server without parameters.
  std::map<std::string, std::string> parameters;
};

// The largest value of an integer type; of others more than any caller needs.
uint64_t LargestOf(base::DType dtype);

enum class InputKind : uint8_t {
  kDense,    // floating point features
  kIds,      // rows of tables
  kOffsets,  // where each bag of another input begins
  kLengths,  // how many ids each bag of another input has
  kCounts,   // other integers: flags, or integers of a meaning that the server
             // does not tell
};

struct InputPlan {
  ServedInput input;
  InputKind kind = InputKind::kDense;
  // One expression per dimension.
  std::vector<models::SymExpr> sizes;
  // kIds: rows of the table, one number for the whole tensor or one for each
  // feature: for each column of a matrix, or for each of its rows if
  // `feature_major`, or for each piece of a list, see `bags`. 0: a column of a
  // matrix of floats that is no id but a dense feature.
  std::vector<int64_t> rows;
  bool feature_major = false;
  // kIds with --table-ids: ids of these rows, for each element of `rows`; an
  // empty span: ids are row numbers. Empty: all are.
  std::vector<absl::Span<const int64_t>> ids;
  // kIds: the input with the offsets or lengths, an index into
  // RequestPlan::inputs; -1 when these ids are in no bags.
  int partner = -1;
  // Which bag inputs of the model these are, from 0 in the order of the ids.
  // kIds in bags: one, whose bags each row of a matrix repeats; or one for each
  // piece of the list, which follow one another. kOffsets: one, or one for each
  // row of the offsets. kLengths: one for each piece.
  std::vector<int> bags;
  // kCounts: the integers are indices from `least` on and below `end`, or
  // unknown indices. Neither: the server does not tell.
  int64_t least = 0;
  models::SymExpr end;
  bool unknown_indices = false;
  // kOffsets: the number of ids follows the last bag's begin.
  bool include_last = false;
};

struct RequestPlan {
  std::vector<InputPlan> inputs;  // in the server's order
  // The symbol of `sizes` that is the number of items.
  std::string batch_symbol;
  // Least and most that the model takes of other symbols.
  std::map<std::string, std::pair<int64_t, int64_t>> limits;
  int num_bags = 0;
};

// `rows` replaces the server's numbers of table rows: {input: rows of the
// table, or of each column's table}. If the server has no expressions for
// shapes, a -1 that comes first in a shape is taken for the number of items.
//
// `ids`, which outlives the plan, has the ids of tables whose rows have ids.
//
// InvalidArgument names the input that cannot be filled: a type that no model
// has (strings), ids of unknown rows, offsets of unknown bags, or an input of
// `rows` that the model does not have; or tables of `ids`, none of which the
// server names.
absl::StatusOr<RequestPlan> PlanRequests(
    const ServedModel& model,
    const absl::flat_hash_map<std::string, std::vector<int64_t>>& rows,
    const TableIds& ids = {});

// The number of items of a request, by the model's expressions for shapes.
// Without an expression of the items, the size that comes first in the first
// input, as in most models; 1 if it has none.
int64_t ItemsOf(const ServedModel& model,
                absl::Span<const base::Tensor> tensors);

// "INPUT=N" or "INPUT=N,N,…", repeated → the map that PlanRequests() takes.
absl::StatusOr<absl::flat_hash_map<std::string, std::vector<int64_t>>>
ParseRows(const std::vector<std::string>& texts);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_SERVED_MODEL_H_
