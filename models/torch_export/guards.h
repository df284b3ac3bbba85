#ifndef REFRACT_MODELS_TORCH_EXPORT_GUARDS_H_
#define REFRACT_MODELS_TORCH_EXPORT_GUARDS_H_

// Conditions of an export on its inputs' sizes: `range_constraints` and
// `guards_code`, which differ (an export may declare 1..4096 rows and guard
// that they are not 1). Internal to torch_export.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/graph/graph.h"
#include "models/torch_export/json.h"

namespace refract::models::torch_export {

// Fills graph.symbols from {"s36": {"min_val": 2, "max_val": null}, …}.
// InvalidArgument when a bound is no integer or a range is empty.
absl::Status ReadRanges(const Json& ranges, Graph& graph);

// Sets graph.batch_symbol: the leading size of the first output when that is
// one symbol s, or s - c, where s becomes s + c in every size; else the symbol
// that leads most inputs (the first of equals); empty when there is none.
void ChooseBatchSymbol(Graph& graph);

// Tightens graph.symbols by guards such as "L['x'].size()[0] != 1", over the
// shapes of graph.inputs. Guards that the shapes already imply are dropped,
// guards that are neither ranges nor implied become notes.
void ApplyGuards(const Json& guards, Graph& graph,
                 std::vector<std::string>& notes);

// The batch symbol's lower bound becomes graph.min_batch and the symbol's range
// begins at 1: the runtime pads smaller requests. Bounds above 1 of other
// symbols become notes.
void SetMinBatch(Graph& graph, std::vector<std::string>& notes);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_GUARDS_H_
