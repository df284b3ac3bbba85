#ifndef REFRACT_MODELS_TORCHSCRIPT_CONVERT_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_CONVERT_TORCH_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/torchscript/archive_torch.h"
#include "models/torchscript/import.h"
#include "models/repository/weights.h"

namespace refract::models::torchscript {

struct Converted {
  Graph graph;  // as written: in-place operators and views are still in it
  // Every parameter and buffer, read or not, and the constants that are read.
  std::vector<WeightEntry> weights;
  // Those of them that are registered buffers, and those that are constants of
  // the code: what freezing makes of both parameters and buffers.
  absl::flat_hash_set<std::string> buffers;
  absl::flat_hash_set<std::string> constants;
  std::vector<std::string> notes;  // as ImportedModel::notes
};

// One request by input name, or empty.
using Examples = absl::flat_hash_map<std::string, at::Tensor>;

// The module's forward() as IR. Everything that constants decide is decided
// here: attributes, branches, loops, lists, arithmetic; with `examples` also
// what ranks, dtypes and lengths of lists decide. Unimplemented names the
// operator and the line of Python that it came from, or the input or output
// that is no tensor. May throw what LibTorch throws.
// `keys`: as ImportTorchScript().
absl::StatusOr<Converted> Convert(const Archive& archive,
                                  const Examples& examples,
                                  const KeyLists& keys);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_CONVERT_TORCH_H_
