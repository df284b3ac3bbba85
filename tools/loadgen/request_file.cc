#include "tools/loadgen/request_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "models/repository/files/safetensors.h"

namespace refract::loadgen {
namespace {

bool FitsShape(absl::Span<const int64_t> dims,
               absl::Span<const int64_t> shape) {
  return std::equal(
      dims.begin(), dims.end(), shape.begin(), shape.end(),
      [](int64_t size, int64_t of) { return of < 0 || size == of; });
}

}  // namespace

absl::StatusOr<std::vector<base::Tensor>> ReadRequest(
    const std::string& path, const ServedModel& model) {
  REFRACT_ASSIGN_OR_RETURN(const models::SafetensorsFile file,
                           models::SafetensorsFile::Open(path));
  const auto wrong = [&path](const std::string& input, const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": input ", input, " ", why));
  };
  std::vector<base::Tensor> tensors;
  for (const ServedInput& input : model.inputs) {
    const models::SafetensorsEntry* entry = file.Find(input.name);
    if (entry == nullptr) return wrong(input.name, "is missing");
    if (entry->dtype != input.dtype || !FitsShape(entry->dims, input.dims)) {
      return wrong(input.name,
                   absl::StrCat("is ", base::Name(entry->dtype),
                                base::DimsToString(entry->dims),
                                ", the model takes ", base::Name(input.dtype),
                                base::DimsToString(input.dims)));
    }
    REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                             base::Tensor::CopyOf(file.View(*entry)));
    tensors.push_back(std::move(tensor));
  }
  for (const models::SafetensorsEntry& entry : file.entries()) {
    const bool known = std::any_of(
        model.inputs.begin(), model.inputs.end(),
        [&](const auto& input) { return input.name == entry.name; });
    if (!known) return wrong(entry.name, "is not one of the model's");
  }
  return tensors;
}

}  // namespace refract::loadgen
