#ifndef REFRACT_MODELS_TORCH_EXPORT_OUTPUT_NAMES_H_
#define REFRACT_MODELS_TORCH_EXPORT_OUTPUT_NAMES_H_

#include <optional>
#include <string>
#include <vector>

#include "models/torch_export/json.h"

namespace refract::models::torch_export {

// Names for the leaves of what the model returns, from the tree specification
// in `graph_module` (module_call_graph[0].signature.out_spec). nullopt unless
// it is a dict whose keys give every leaf its own name: nested leaves are named
// KEY_SUBKEY or KEY_INDEX. Internal to torch_export.
std::optional<std::vector<std::string>> DictOutputNames(
    const Json& graph_module);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_OUTPUT_NAMES_H_
