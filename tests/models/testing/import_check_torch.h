#ifndef REFRACT_TESTS_MODELS_TESTING_IMPORT_CHECK_TORCH_H_
#define REFRACT_TESTS_MODELS_TESTING_IMPORT_CHECK_TORCH_H_

// Imports TorchScript modules of tests and compares their graphs, run operator by
// operator, with forward().

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/torchscript/import.h"
#include "tests/models/testing/script_module_torch.h"

namespace refract::models {

inline std::string PathOf(const std::string& name) {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return absl::StrCat(::testing::TempDir(), "/", info->name(), "_", name,
                      ".pt");
}

// The module with `sample`, run on it as `arguments`, which hold the same
// tensors in the sample's order.
inline ImportedModel CheckSample(torch::jit::Module module,
                                 const torchscript::Named& sample,
                                 std::vector<at::IValue> arguments) {
  const std::string path = PathOf("model");
  module.eval();
  module.save(path);
  auto model = ImportTorchScript(path, torchscript::SampleOf(sample));
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  EXPECT_TRUE(ValidateGraph(model->graph).ok());
  std::vector<std::string> names;
  std::vector<at::Tensor> inputs;
  for (const ValueId id : model->graph.inputs) {
    names.push_back(model->graph.value(id).name);
    for (const auto& [name, tensor] : sample) {
      if (name == names.back()) inputs.push_back(tensor);
    }
  }
  EXPECT_EQ(inputs.size(), names.size());
  const std::vector<at::Tensor> want =
      torchscript::Flatten(module.forward(arguments));
  const auto got = torchscript::RunImported(*model, inputs);
  EXPECT_TRUE(got.ok()) << got.status();
  if (!got.ok()) return *std::move(model);
  EXPECT_EQ(got->size(), want.size());
  for (size_t i = 0; i < std::min(got->size(), want.size()); ++i) {
    EXPECT_TRUE(at::equal((*got)[i], want[i])) << "output " << i;
  }
  return *std::move(model);
}

// Imports the module as saved and checks it against forward().
inline ImportedModel Check(torch::jit::Module module,
                           const std::vector<at::Tensor>& inputs,
                           const std::string& name = "model") {
  const std::string path = PathOf(name);
  module.eval();
  module.save(path);
  auto model = ImportTorchScript(path);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  EXPECT_TRUE(ValidateGraph(model->graph).ok());
  // forward() may write into its inputs.
  std::vector<at::IValue> arguments;
  for (const at::Tensor& input : inputs) arguments.push_back(input.clone());
  const std::vector<at::Tensor> want =
      torchscript::Flatten(module.forward(arguments));
  const auto got = torchscript::RunImported(*model, inputs);
  EXPECT_TRUE(got.ok()) << got.status();
  if (!got.ok()) return *std::move(model);
  EXPECT_EQ(got->size(), want.size());
  for (size_t i = 0; i < std::min(got->size(), want.size()); ++i) {
    EXPECT_EQ((*got)[i].scalar_type(), want[i].scalar_type());
    // Weights that are read transposed multiply in another order.
    EXPECT_TRUE(at::allclose((*got)[i], want[i], 1e-6, 1e-6))
        << "output " << i << "\n"
        << (*got)[i] << "\nwanted\n"
        << want[i];
  }
  return *std::move(model);
}

inline absl::Status Refusal(torch::jit::Module module) {
  const std::string path = PathOf("model");
  module.save(path);
  const auto model = ImportTorchScript(path);
  EXPECT_FALSE(model.ok());
  if (model.ok()) return absl::OkStatus();
  EXPECT_THAT(model.status().message(), ::testing::HasSubstr(path));
  return model.status();
}

inline std::vector<std::string> Ops(const Graph& graph) {
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes) ops.push_back(node.op);
  return ops;
}

inline at::Tensor Seeded(at::IntArrayRef sizes) {
  at::manual_seed(7);
  return at::randn(sizes);
}

}  // namespace refract::models

#endif  // REFRACT_TESTS_MODELS_TESTING_IMPORT_CHECK_TORCH_H_
