#ifndef REFRACT_TESTS_MODELS_SHAPES_INFERRED_MODEL_TORCH_H_
#define REFRACT_TESTS_MODELS_SHAPES_INFERRED_MODEL_TORCH_H_

// A model in TorchScript whose shapes are inferred. Includes LibTorch.

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/shapes/infer.h"
#include "models/torchscript/import.h"

namespace refract::models {

inline at::Tensor Floats(at::IntArrayRef sizes) {
  at::manual_seed(7);
  return at::randn(sizes);
}

inline at::Tensor Ids(at::IntArrayRef sizes, int64_t rows = 10) {
  at::manual_seed(7);
  return at::randint(rows, sizes, at::kLong);
}

inline at::Tensor Longs(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

using Inputs = std::vector<std::pair<std::string, at::Tensor>>;

class Model {
 public:
  explicit Model(const std::string& body) : module_("test") {
    module_.register_parameter("table", Floats({10, 3}), false);
    module_.register_parameter("weight", Floats({2, 13}), false);
    module_.define(body);
  }

  // Imports the model and infers its shapes.
  absl::Status Infer(Inputs inputs) {
    inputs_ = std::move(inputs);
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string path =
        absl::StrCat(::testing::TempDir(), "/", info->test_suite_name(), "_",
                     info->name(), ".pt");
    module_.save(path);
    auto model = ImportTorchScript(path);
    if (!model.ok()) return model.status();
    imported = *std::move(model);
    weights_ = *WeightStore::Open("", imported.weights);
    return InferShapes(Sample(), *weights_, imported.graph);
  }

  absl::Status Check() {
    return CheckRows(Sample(), *weights_, imported.graph, notes);
  }

  // Limits the sizes as an export declares them, then relaxes them.
  absl::Status LimitAndRelax(bool with_sample = false) {
    std::vector<NamedTensor> sample;
    if (with_sample) sample = Sample();
    for (SymbolRange& range : imported.graph.symbols) {
      if (range.symbol != "B") range.min = 2;
    }
    return RelaxSmallSizes(sample, *weights_, imported.graph, notes);
  }
  // Forgets the shapes of all values but the inputs.
  void ForgetShapes() {
    for (Value& value : imported.graph.values) {
      if (value.producer == kNoNode) continue;
      value.has_shape = false;
      value.shape.clear();
    }
  }
  void Fill() { FillShapes(*weights_, imported.graph); }

  int64_t MinOf(const std::string& symbol) const {
    for (const SymbolRange& range : graph().symbols) {
      if (range.symbol == symbol) return range.min;
    }
    return -1;
  }

  const Graph& graph() const { return imported.graph; }

  std::string Shape(ValueId id) const {
    std::string text;
    for (const SymExpr& size : graph().value(id).shape) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", size.ToString());
    }
    return graph().value(id).has_shape ? text : "?";
  }
  std::string InputShape(const std::string& name) const {
    return Shape(graph().FindValue(name));
  }
  std::string OutputShape(size_t i = 0) const {
    return Shape(graph().outputs[i]);
  }

  ImportedModel imported;
  std::vector<std::string> notes;

 private:
  std::vector<NamedTensor> Sample() const {
    std::vector<NamedTensor> sample;
    for (const auto& [name, tensor] : inputs_) {
      base::TensorView view;
      view.dtype = tensor.scalar_type() == at::kLong ? base::DType::kInt64
                                                     : base::DType::kFloat32;
      view.dims.assign(tensor.sizes().begin(), tensor.sizes().end());
      view.data = static_cast<const std::byte*>(tensor.const_data_ptr());
      view.bytes = tensor.nbytes();
      sample.push_back({name, view});
    }
    return sample;
  }

  torch::jit::Module module_;
  Inputs inputs_;
  std::shared_ptr<const WeightStore> weights_;
};

inline constexpr char kBags[] = R"(
    def forward(self, dense, a, a_offsets, b, b_offsets):
      x = torch.embedding_bag(self.table, a, a_offsets, False, 0, False,
                              None, True)[0]
      y = torch.embedding_bag(self.table, b, b_offsets, False, 0, False,
                              None, False)[0]
      return torch.cat([dense, x, y], 1).sum(1)
  )";

}  // namespace refract::models

#endif  // REFRACT_TESTS_MODELS_SHAPES_INFERRED_MODEL_TORCH_H_
