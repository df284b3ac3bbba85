#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "models/aten/convert_torch.h"
#include "models/functionalize.h"
#include "models/torchscript/archive_torch.h"
#include "models/torchscript/convert_torch.h"
#include "models/torchscript/import.h"

namespace refract::models {
namespace {

absl::StatusOr<ImportedModel> Import(absl::string_view path,
                                     absl::Span<const NamedTensor> sample) {
  REFRACT_ASSIGN_OR_RETURN(const torchscript::Archive archive,
                           torchscript::Archive::Load(path));
  torchscript::Converted converted;
  REFRACT_RETURN_IF_ERROR(aten::Guarded(path, [&]() -> absl::Status {
    torchscript::Examples examples;
    for (const NamedTensor& named : sample) {
      aten::Operand operand;
      operand.kind = aten::Operand::Kind::kTensor;
      operand.tensor = named.tensor;
      REFRACT_ASSIGN_OR_RETURN(examples[named.name], aten::ToTensor(operand));
    }
    auto result = torchscript::Convert(archive, examples);
    if (!result.ok()) return base::Annotate(result.status(), path);
    converted = *std::move(result);
    return absl::OkStatus();
  }));
  ImportedModel model;
  model.graph = std::move(converted.graph);
  model.weights.entries = std::move(converted.weights);
  model.weights.files.push_back({std::string(path),
                                 archive.zip().file()->bytes().size(),
                                 base::Digest{}});
  model.source_path = std::string(path);
  REFRACT_RETURN_IF_ERROR(base::Annotate(Functionalize(model.graph), path));
  REFRACT_RETURN_IF_ERROR(base::Annotate(CheckRunnable(model.graph), path));
  // Bounds of every weight, before anyone reads one.
  REFRACT_RETURN_IF_ERROR(
      WeightStore::Open(/*folder=*/"", model.weights).status());
  return model;
}

}  // namespace

absl::StatusOr<ImportedModel> ImportTorchScript(
    absl::string_view path, absl::Span<const NamedTensor> sample) {
  return Import(path, sample);
}

}  // namespace refract::models
