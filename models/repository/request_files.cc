#include "models/repository/request_files.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/repository/safetensors.h"

namespace refract::models {
namespace {

std::string InputNames(const Graph& graph) {
  return absl::StrJoin(graph.inputs, ", ", [&](std::string* out, ValueId id) {
    out->append(graph.value(id).name);
  });
}

// Element type and rank; extents are the program's to check.
absl::Status CheckInput(absl::string_view path, const Value& input,
                        const SafetensorsEntry& entry) {
  // A size that the caller chooses comes as an int64 scalar.
  const bool is_size = input.kind != ValueKind::kTensor;
  const base::DType wanted = is_size ? base::DType::kInt64 : input.dtype;
  if (wanted != base::DType::kUnknown && wanted != entry.dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": input ", input.name, " is ", base::Name(entry.dtype),
        ", the model wants ", base::Name(wanted)));
  }
  if ((is_size || input.has_shape) && entry.dims.size() != input.shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": input ", input.name, " has ", entry.dims.size(),
                     " dimensions, the model wants ", input.shape.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<base::Tensor>> ReadInputs(absl::string_view path,
                                                     const Graph& graph) {
  REFRACT_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           SafetensorsFile::Open(path));
  std::vector<base::Tensor> tensors;
  absl::flat_hash_set<absl::string_view> used;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    const SafetensorsEntry* entry = file.Find(input.name);
    if (entry == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": input ", input.name,
                       " is missing; the model wants ", InputNames(graph)));
    }
    REFRACT_RETURN_IF_ERROR(CheckInput(path, input, *entry));
    REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                             base::Tensor::CopyOf(file.View(*entry)));
    tensors.push_back(std::move(tensor));
    used.insert(entry->name);
  }
  for (const SafetensorsEntry& entry : file.entries()) {
    if (used.contains(entry.name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the model has no input ", entry.name,
                     "; it wants ", InputNames(graph)));
  }
  return tensors;
}

absl::Status WriteOutputs(absl::string_view path, const Graph& graph,
                          absl::Span<const base::TensorView> outputs) {
  if (outputs.size() != graph.output_names.size()) {
    return absl::InternalError(absl::StrCat("the run gave ", outputs.size(),
                                            " outputs of ",
                                            graph.output_names.size()));
  }
  std::vector<std::pair<std::string, base::TensorView>> tensors;
  for (size_t i = 0; i < outputs.size(); ++i) {
    tensors.emplace_back(graph.output_names[i], outputs[i]);
  }
  return WriteSafetensors(path, tensors);
}

std::vector<base::TensorView> ViewsOf(absl::Span<const base::Tensor> tensors) {
  std::vector<base::TensorView> views;
  for (const base::Tensor& tensor : tensors) views.push_back(tensor.view());
  return views;
}

}  // namespace refract::models
