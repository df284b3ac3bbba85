#ifndef REFRACT_TOOLS_IMPORT_IMPORT_MODEL_H_
#define REFRACT_TOOLS_IMPORT_IMPORT_MODEL_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/import.h"

namespace refract::tools {

struct ImportRequest {
  std::string model_file;
  std::string tables_dir;  // empty: weights are in the model file
  // By argument of a TorchScript's forward(): see ImportTorchScript().
  absl::flat_hash_map<std::string, std::vector<std::string>> keys;
  std::string sample_file;  // empty: `sample.safetensors` beside a TorchScript
  std::vector<std::string> op_libraries;  // loaded already
  // Files with answers; whether PyTorch answers the sample, too: golden.h.
  std::vector<std::string> expected;
  bool record_golden = true;
  // A folder for files of this import that AddVersion() copies.
  std::string scratch;
  // Called on this thread with the step that begins.
  std::function<void(const std::string& text)> progress = [](const auto&) {};
};

// Reads a model file and makes sure that it can be served: every operator is
// deterministic and has an implementation, shapes follow the batch, the sample,
// if there is one, runs, and golden requests are answered as they should be.
// Writes to the scratch folder alone.
//
// Errors name the file and the entry, input, output or operator:
// InvalidArgument, NotFound, Unimplemented, FailedPrecondition. Facts that
// need no action of the user are added to `notes` of the result.
absl::StatusOr<models::ImportedModel> PrepareModel(
    const ImportRequest& request);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_IMPORT_IMPORT_MODEL_H_
