#ifndef REFRACT_MODELS_TORCH_EXPORT_IMPORT_H_
#define REFRACT_MODELS_TORCH_EXPORT_IMPORT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/import.h"

namespace refract::models {

// Reads a `.pt2` archive (torch.export.save) without LibTorch or Python: the
// graph from models/*.json, weights in place by their offset in the zip.
// Functionalised, validated; tables not bound yet. Schema: major 8 only.
// InvalidArgument / Unimplemented name the file and the entry, field or
// operator.
absl::StatusOr<ImportedModel> ImportTorchExport(absl::string_view path);

}  // namespace refract::models

#endif  // REFRACT_MODELS_TORCH_EXPORT_IMPORT_H_
