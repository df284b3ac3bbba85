#ifndef REFRACT_MODELS_IMPORT_H_
#define REFRACT_MODELS_IMPORT_H_

// What both importers return. `refract import` (tools) checks it by running it
// and hands it to Repository::AddVersion.

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
  // values are always in the file. What freezing a TorchScript made a constant
  // and a look-up reads is not among them: it may be a table's stand-in.
  absl::flat_hash_set<std::string> buffers;
  std::string source_path;
  // Request that the model was checked with, safetensors; empty: none. Kept
  // with the version, whose sizes and warm-up requests it gives.
  std::string sample_path;
  // Things a user should know and need not act on, one line each ("the export
  // guards batch != 1; …").
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

// By content, not by extension: a zip with models/*.json is torch.export, one
// with constants.pkl + code/ is TorchScript. InvalidArgument for anything else,
// naming the file and what is wrong with it (foreign, truncated, newer schema).
enum class ArchiveKind { kTorchExport, kTorchScript };
absl::StatusOr<ArchiveKind> DetectArchive(absl::string_view path);

// Replaces storage of the stand-ins by the tensors of `tables_dir`; adds those
// files to `weights.files`. InvalidArgument: names that match no parameter,
// shapes or dtypes that differ, a tensor that two files hold, a file of the
// wrong size; also when a stand-in (a parameter of stride 0 in its first
// dimension, with more than one row) stays without values.
absl::Status BindTables(const ImportOptions& options, ImportedModel& model);

}  // namespace refract::models

#endif  // REFRACT_MODELS_IMPORT_H_
