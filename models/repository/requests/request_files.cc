#include "models/repository/requests/request_files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/requests/golden.h"

namespace refract::models {
namespace {

std::string InputNames(const Graph& graph) {
  return absl::StrJoin(graph.inputs, ", ", [&](std::string* out, ValueId id) {
    out->append(graph.value(id).name);
  });
}

std::string OutputNames(const Graph& graph) {
  return absl::StrJoin(graph.output_names, ", ");
}

// Checks element type and rank; the program checks extents.
absl::Status CheckInput(absl::string_view path, const Value& input,
                        const SafetensorsEntry& entry) {
  // A size chosen by the caller comes as an int64 scalar.
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

// Takes tensors out of a file by name, and knows which remain.
class TensorTaker {
 public:
  TensorTaker(absl::string_view path, const SafetensorsFile& file)
      : path_(path), file_(file) {}

  // Takes the inputs of `graph`, each under `prefix` and its name.
  absl::Status TakeInputs(const Graph& graph, absl::string_view prefix,
                          std::vector<base::Tensor>& inputs) {
    for (const ValueId id : graph.inputs) {
      const Value& input = graph.value(id);
      const SafetensorsEntry* entry =
          file_.Find(absl::StrCat(prefix, input.name));
      if (entry == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ": input ", prefix, input.name,
                         " is missing; the model wants ", InputNames(graph)));
      }
      REFRACT_RETURN_IF_ERROR(CheckInput(path_, input, *entry));
      REFRACT_RETURN_IF_ERROR(Take(*entry, inputs));
    }
    return absl::OkStatus();
  }

  // Takes the outputs of `graph` that the file has.
  absl::Status TakeOutputs(const Graph& graph, absl::string_view prefix,
                           std::vector<base::Tensor>& outputs) {
    bool any = false;
    for (const std::string& name : graph.output_names) {
      const SafetensorsEntry* entry = file_.Find(absl::StrCat(prefix, name));
      if (entry == nullptr) {
        outputs.emplace_back();
        continue;
      }
      // The tensor would count as an input and as an answer.
      if (used_.contains(entry->name)) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ": ", entry->name,
                         " is the name of an input and of an output"));
      }
      REFRACT_RETURN_IF_ERROR(Take(*entry, outputs));
      any = true;
    }
    if (any) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": holds no output; the model gives ", OutputNames(graph)));
  }

  // Null: no tensor remains.
  const SafetensorsEntry* Left() const {
    for (const SafetensorsEntry& entry : file_.entries()) {
      if (!used_.contains(entry.name)) return &entry;
    }
    return nullptr;
  }

 private:
  absl::Status Take(const SafetensorsEntry& entry,
                    std::vector<base::Tensor>& tensors) {
    REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                             base::Tensor::CopyOf(file_.View(entry)));
    tensors.push_back(std::move(tensor));
    used_.insert(entry.name);
    return absl::OkStatus();
  }

  const absl::string_view path_;
  const SafetensorsFile& file_;
  absl::flat_hash_set<absl::string_view> used_;
};

// Prefixes of the tensors of request `index` in kGoldenFile.
std::string InputPrefix(size_t index) {
  return absl::StrCat(index, "/inputs/");
}
std::string OutputPrefix(size_t index) {
  return absl::StrCat(index, "/outputs/");
}

}  // namespace

absl::StatusOr<std::vector<base::Tensor>> ReadInputs(absl::string_view path,
                                                     const Graph& graph) {
  REFRACT_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           SafetensorsFile::Open(path));
  TensorTaker taker(path, file);
  std::vector<base::Tensor> tensors;
  REFRACT_RETURN_IF_ERROR(taker.TakeInputs(graph, "", tensors));
  if (const SafetensorsEntry* left = taker.Left()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the model has no input ", left->name,
                     "; it wants ", InputNames(graph)));
  }
  return tensors;
}

absl::StatusOr<GoldenRequest> ReadExpected(absl::string_view path,
                                           const Graph& graph) {
  REFRACT_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           SafetensorsFile::Open(path));
  TensorTaker taker(path, file);
  GoldenRequest request;
  REFRACT_RETURN_IF_ERROR(taker.TakeInputs(graph, "", request.inputs));
  REFRACT_RETURN_IF_ERROR(taker.TakeOutputs(graph, "", request.outputs));
  if (const SafetensorsEntry* left = taker.Left()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the model has neither an input nor an output ", left->name,
        "; it wants ", InputNames(graph), " and gives ", OutputNames(graph)));
  }
  return request;
}

absl::StatusOr<std::vector<GoldenRequest>> ReadGolden(absl::string_view path,
                                                      const Graph& graph) {
  std::vector<GoldenRequest> requests;
  std::error_code error;
  if (!std::filesystem::exists(std::string(path), error)) return requests;
  REFRACT_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           SafetensorsFile::Open(path));
  TensorTaker taker(path, file);
  while (taker.Left() != nullptr) {
    const size_t index = requests.size();
    GoldenRequest& request = requests.emplace_back();
    REFRACT_RETURN_IF_ERROR(
        taker.TakeInputs(graph, InputPrefix(index), request.inputs));
    REFRACT_RETURN_IF_ERROR(
        taker.TakeOutputs(graph, OutputPrefix(index), request.outputs));
  }
  return requests;
}

absl::Status WriteGolden(absl::string_view path, const Graph& graph,
                         absl::Span<const GoldenRequest> requests) {
  std::vector<std::pair<std::string, base::TensorView>> tensors;
  for (size_t r = 0; r < requests.size(); ++r) {
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      tensors.emplace_back(
          absl::StrCat(InputPrefix(r), graph.value(graph.inputs[i]).name),
          requests[r].inputs[i].view());
    }
    for (size_t i = 0; i < graph.output_names.size(); ++i) {
      const base::Tensor& output = requests[r].outputs[i];
      if (output.dtype() == base::DType::kUnknown) continue;
      tensors.emplace_back(absl::StrCat(OutputPrefix(r), graph.output_names[i]),
                           output.view());
    }
  }
  return WriteSafetensors(path, tensors);
}

absl::Status WriteOutputs(absl::string_view path, const Graph& graph,
                          absl::Span<const base::TensorView> outputs) {
  if (outputs.size() != graph.output_names.size()) {
    return absl::InternalError(absl::StrCat("the run returned ", outputs.size(),
                                            " outputs, but the model has ",
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
