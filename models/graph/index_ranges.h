#ifndef REFRACT_MODELS_GRAPH_INDEX_RANGES_H_
#define REFRACT_MODELS_GRAPH_INDEX_RANGES_H_

// Inputs that a model uses as indices after arithmetic, such as the lengths of
// histories in `history[arange(B), length - 1]`, or ids in `table(ids + 1)`.
// FindIdInputs() knows ids that reach a table unchanged.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"

namespace refract::models {

struct IndexRange {
  ValueId input = kNoValue;
  // Each integer of the input from `least` on and below `end` is a valid index
  // wherever it is used. `end` may have symbols. It is unknown where more than
  // a shift by a literal makes the index, such as `table(ids + offsets)` with a
  // weight. 0 ≤ least.
  int64_t least = 0;
  SymExpr end;
};

// At most one for each input, integers or floats, in the order of the graph's
// inputs. Indices that other operators make (comparisons, remainders, sorting)
// are left out.
std::vector<IndexRange> FindIndexRanges(const Graph& graph);

// Inputs that index, without arithmetic, a tensor that is no weight: the row of
// each entry in `zeros(B, D).index_add(0, row, entries)`, or a candidate's user
// in `users[user]`. In the order of the graph's inputs. Needs no shapes.
std::vector<ValueId> FindRowNumbers(const Graph& graph);

// Ids that arrive as floats. CTR code often packs dense features and ids into
// one matrix of float32 and casts columns back to integers. A float with p
// bits of significand represents every integer up to 2^p and only some above
// (IEEE 754: float32 24, float64 53, float16 11; bfloat16 8): a larger table
// has rows that no request can name, and asking for such a row answers with
// another row.
//
// InvalidArgument names table, column and limit of a look-up whose ids come
// from an input through slices, views, joins, masks, rounding, bounds and casts
// as floats that cannot address the table. Arithmetic ends the search: its
// results are not a client's ids.
absl::Status CheckFloatIds(const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_INDEX_RANGES_H_
