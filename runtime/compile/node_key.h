#ifndef REFRACT_RUNTIME_COMPILE_NODE_KEY_H_
#define REFRACT_RUNTIME_COMPILE_NODE_KEY_H_

// Finds nodes of a graph with equal results.

#include <functional>
#include <string>

#include "models/graph/graph.h"

namespace refract::runtime {

// Key that is equal for nodes with the same operator and arguments; `place`
// numbers values, with equal numbers for equal values. Empty for nodes whose
// results may differ from call to call: random and unknown operators,
// uninitialised memory.
std::string NodeKey(const models::Node& node,
                    const std::function<int(models::ValueId)>& place);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_NODE_KEY_H_
