#ifndef REFRACT_MODELS_IMPORT_H_
#define REFRACT_MODELS_IMPORT_H_

// Results of both importers. `refract import` (tools) checks a result by
// running it and passes it to Repository::AddVersion.

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"

namespace refract::models {

struct ImportedModel {
  Graph graph;
  // `file` of each entry is an absolute or caller-relative path of a source
  // file here; AddVersion copies the files and rewrites the names.
  WeightTable weights;
  // Weights that the model registers as buffers or has as constants: their
  // values are always in the file. A constant made by freezing a TorchScript
  // that a look-up reads is not in this set: it may be a table's stand-in.
  absl::flat_hash_set<std::string> buffers;
  // Parameters of the file that no operator reads. `weights` does not have
  // them.
  absl::flat_hash_set<std::string> unread;
  std::string source_path;
  // Request that the model was checked with, safetensors; empty: none. Stored
  // with the version, which takes sizes and warm-up requests from it.
  std::string sample_path;
  // Facts for the user that need no action, one line each ("the export guards
  // batch != 1; …").
  std::vector<std::string> notes;
};

struct ImportOptions {
  // Folder whose *.safetensors give real values to parameters that were
  // exported as stand-ins. A tensor binds to the parameter of the same name;
  // dtype and shape must agree. A parameter of float32 [rows, dim] also takes
  // float16 and bfloat16, and uint8 [rows, bytes] with rows of the format that
  // the file's metadata names (models/tables/row_format.h). Empty: none.
  std::string tables_dir;
};

// By content, not by extension: a zip with models/*.json is torch.export, a zip
// with constants.pkl + code/ is TorchScript. InvalidArgument for any other
// file, naming the file and its fault (foreign, truncated, newer schema).
enum class ArchiveKind { kTorchExport, kTorchScript };
absl::StatusOr<ArchiveKind> DetectArchive(absl::string_view path);

// Replaces storage of the stand-ins by the tensors of `tables_dir`; adds those
// files to `weights.files`. Leaves out tensors for parameters that nothing
// reads. InvalidArgument: names that match no parameter, shapes or dtypes that
// differ, a tensor that two files hold, a file of the wrong size; also when a
// stand-in (a parameter of stride 0 in its first dimension, with more than one
// row) stays without values.
absl::Status BindTables(const ImportOptions& options, ImportedModel& model);

}  // namespace refract::models

#endif  // REFRACT_MODELS_IMPORT_H_
