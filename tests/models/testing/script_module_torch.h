#ifndef REFRACT_TESTS_MODELS_TESTING_SCRIPT_MODULE_TORCH_H_
#define REFRACT_TESTS_MODELS_TESTING_SCRIPT_MODULE_TORCH_H_

// TorchScript modules written in tests, and their imported graphs run operator
// by operator.

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/import.h"
#include "models/shapes/interpreter.h"
#include "models/torchscript/import.h"

namespace refract::models::torchscript {

inline torch::jit::Module Define(const std::string& source) {
  torch::jit::Module module("test");
  module.define(source);
  return module;
}

inline base::TensorView ViewOf(const at::Tensor& tensor) {
  base::TensorView view;
  view.dtype = tensor.scalar_type() == at::kLong ? base::DType::kInt64
                                                 : base::DType::kFloat32;
  view.dims.assign(tensor.sizes().begin(), tensor.sizes().end());
  view.data = static_cast<const std::byte*>(tensor.const_data_ptr());
  view.bytes = tensor.nbytes();
  return view;
}

inline at::Tensor TensorOf(const base::Tensor& tensor) {
  const std::vector<int64_t> dims(tensor.dims().begin(), tensor.dims().end());
  const auto type = tensor.dtype() == base::DType::kInt64     ? at::kLong
                    : tensor.dtype() == base::DType::kFloat64 ? at::kDouble
                    : tensor.dtype() == base::DType::kBool    ? at::kBool
                                                              : at::kFloat;
  return at::from_blob(const_cast<std::byte*>(tensor.data()), dims, type)
      .clone();
}

inline absl::StatusOr<std::vector<at::Tensor>> RunImported(
    const ImportedModel& model, const std::vector<at::Tensor>& inputs) {
  auto weights = WeightStore::Open("", model.weights);
  if (!weights.ok()) return weights.status();
  auto interpreter = Interpreter::Create(model.graph, **weights);
  if (!interpreter.ok()) return interpreter.status();
  std::vector<base::TensorView> views;
  for (const at::Tensor& input : inputs) views.push_back(ViewOf(input));
  InterpreterRun run;
  const absl::Status status = (*interpreter)->Run(views, run);
  if (!status.ok()) return status;
  std::vector<at::Tensor> outputs;
  for (const base::Tensor& output : run.outputs) {
    outputs.push_back(TensorOf(output));
  }
  return outputs;
}

inline std::vector<at::Tensor> Flatten(const at::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  std::vector<at::Tensor> all;
  const auto add = [&all](const at::IValue& element) {
    for (const at::Tensor& tensor : Flatten(element)) all.push_back(tensor);
  };
  if (value.isTuple()) {
    for (const at::IValue& element : value.toTupleRef().elements()) {
      add(element);
    }
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) add(item.value());
  } else {
    for (const at::IValue& element : value.toListRef()) add(element);
  }
  return all;
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

inline std::vector<NamedTensor> SampleOf(const Named& inputs) {
  std::vector<NamedTensor> sample;
  for (const auto& [name, tensor] : inputs) {
    sample.push_back({name, ViewOf(tensor)});
  }
  return sample;
}

}  // namespace refract::models::torchscript

#endif  // REFRACT_TESTS_MODELS_TESTING_SCRIPT_MODULE_TORCH_H_
