#ifndef REFRACT_RUNTIME_COMPILE_NODE_KEY_H_
#define REFRACT_RUNTIME_COMPILE_NODE_KEY_H_

// Which nodes of a graph compute the same.

#include <functional>
#include <string>

#include "models/graph/graph.h"

namespace refract::runtime {

// Equal for nodes of the same operator and arguments, where `place` says which
// values are the same (it numbers them). Empty for nodes whose results differ
// from call to call or may: random and unknown operators, uninitialised memory.
std::string NodeKey(const models::Node& node,
                    const std::function<int(models::ValueId)>& place);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_NODE_KEY_H_
