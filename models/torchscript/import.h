#ifndef REFRACT_MODELS_TORCHSCRIPT_IMPORT_H_
#define REFRACT_MODELS_TORCHSCRIPT_IMPORT_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/import.h"
#include "models/shapes/infer.h"

namespace refract::models {

// By argument of forward(): the keys of a KeyedJaggedTensor, in the order in
// which requests have their lengths and values. A file does not have them.
using KeyLists = absl::flat_hash_map<std::string, std::vector<std::string>>;

// Reads a frozen TorchScript file through LibTorch (the format's only parser).
// Graph names arguments by the operators' schemas; weights are located in the
// zip and mapped in place, preserved attributes keep their names, constants are
// called "constants.<i>". No shapes yet: InferShapes() adds them.
// Functionalised, validated; tables not bound yet. `sample`: one request by
// input name, or empty. Arguments that are lists or optional take their length
// from it, and scripted code its branches on ranks and dtypes. Dictionaries,
// lists and tuples of tensors become inputs named "argument_key", the parts of
// a KeyedJaggedTensor or of another object "argument__values",
// "argument__lengths", …. Unimplemented names operators such as prim::If that
// have no IR form.
absl::StatusOr<ImportedModel> ImportTorchScript(
    absl::string_view path, absl::Span<const NamedTensor> sample = {},
    const KeyLists& keys = {});

}  // namespace refract::models

#endif  // REFRACT_MODELS_TORCHSCRIPT_IMPORT_H_
