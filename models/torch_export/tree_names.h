#ifndef REFRACT_MODELS_TORCH_EXPORT_TREE_NAMES_H_
#define REFRACT_MODELS_TORCH_EXPORT_TREE_NAMES_H_

// Names for the inputs and outputs of a model, from the tree specifications in
// `graph_module` (module_call_graph[0].signature). Nested leaves are named
// KEY_SUBKEY or KEY_INDEX. Internal to torch_export.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/torch_export/json.h"

namespace refract::models::torch_export {

// "user_id" for "user.id", as torch.export makes names of inputs but for the
// case of letters (torch/_export/utils.py, placeholder_naming_pass).
std::string AsWord(absl::string_view key);

// Names of the leaves of out_spec. nullopt unless out_spec is a dict whose keys
// give every leaf its own name.
std::optional<std::vector<std::string>> DictOutputNames(
    const Json& graph_module);

// `exported`, the names that torch.export gave the leaves of in_spec, as
// forward() spells them: "OtherKw" for "otherkw", "features_Price" for
// "features_price", "Sparse__values" for the part "sparse__values" of an object
// of a class. A name stays as exported where the specification is missing, does
// not lead to it, or would repeat another.
std::vector<std::string> InputNames(const Json& graph_module,
                                    const std::vector<std::string>& exported);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_TREE_NAMES_H_
