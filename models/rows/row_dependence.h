#ifndef REFRACT_MODELS_ROWS_ROW_DEPENDENCE_H_
#define REFRACT_MODELS_ROWS_ROW_DEPENDENCE_H_

// May requests be put together, or cut, by rows? (RowDependence in graph.h is
// the answer.)
//
// Found without running the model, by a rule per operator that says where the
// rows of its operands are in its results: dimension, and how many entries each
// row has there. The rows' dimension may be reshaped, permuted, gathered from,
// even folded into another dimension and unfolded again. An operator that works
// along it (a mean, softmax, sort, roll or product over the batch) brings rows
// together. So does a result that has the rows' dimension twice (x @ x.T), and
// a number made of the batch's size or of a row's number. Operators without a
// rule count as bringing rows together: kUnknown.

#include <cstddef>
#include <vector>

#include "models/graph/graph.h"
#include "models/graph/op_traits.h"
#include "models/repository/split_plan.h"

namespace refract::models {

// Entries that each item has in dimension `dim` of a value, item after item: k
// where the size is k times the batch, such as the histories of all items in
// one vector. Entries above 1 may also lie feature after feature, unless the
// row dependence is RowUse::kAlone. 0: the dimension does not count items.
// `uses`: FindIdInputs(graph).
int64_t EntriesPerItem(const Graph& graph, const std::vector<IdInput>& uses,
                       ValueId id, size_t dim);

// Row dependence of the whole model, from its nodes; does not read graph.rows.
RowDependence FindRowDependence(const Graph& graph);

// graph.rows, or FindRowDependence() for a graph of an importer that did not
// fill graph.rows.
RowDependence RowDependenceOf(const Graph& graph);

// Row dependence of the HN part alone, which an HN needs before it merges
// requests. Nodes of the CN parts do not count, but values that cross must have
// rows. A dependence that only running the model showed (graph.rows) counts as
// the HN's. Neither is allowed when nothing runs on the HN.
RowDependence FindHnRowDependence(const Graph& graph, const SplitPlan& plan);

// Fills plan.rows and plan.hn_rows. `plan` has its stages and crossings.
void MarkRows(const Graph& graph, SplitPlan& plan);

// "alone", "together", "unknown".
absl::string_view Name(RowUse use);

}  // namespace refract::models

#endif  // REFRACT_MODELS_ROWS_ROW_DEPENDENCE_H_
