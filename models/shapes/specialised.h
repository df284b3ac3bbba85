#ifndef REFRACT_MODELS_SHAPES_SPECIALISED_H_
#define REFRACT_MODELS_SHAPES_SPECIALISED_H_

// Finds the operator that fixes a trace to the batch it was traced with.

#include <cstdint>
#include <string>

#include "models/graph/graph.h"
#include "models/shapes/interpreter.h"

namespace refract::models {

// `good` ran with `rows` rows; `bad` with `bad_rows`, and failed at bad.failed
// or gave `output` (a ValueId) the wrong size. The culprit is the earliest
// operator before that point with the traced batch as a literal, else the
// earliest whose result keeps the traced batch though its arguments do not,
// else the operator that failed. kNoNode: nothing computes `output`.
NodeId FindCulprit(const Graph& graph, const InterpreterRun& good, int64_t rows,
                   const InterpreterRun& bad, int64_t bad_rows, ValueId output);

// "view_3 (aten.view.default, size=[4, -1])": a node with its literals.
std::string DescribeNode(const Graph& graph, NodeId id);

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_SPECIALISED_H_
