#ifndef REFRACT_TESTS_TOOLS_TINY_MODEL_H_
#define REFRACT_TESTS_TOOLS_TINY_MODEL_H_

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/tensor.h"
#include "gtest/gtest.h"
#include "models/import.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/repository.h"

namespace refract::tools {

// A folder that is gone after the test.
class TempFolder {
 public:
  TempFolder()
      : path_(std::filesystem::path(testing::TempDir()) /
              ("refract_tools." + std::to_string(getpid()) + "." +
               testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  std::string str() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

template <typename T>
base::Tensor MakeTensor(base::DType dtype, std::vector<int64_t> dims,
                        const std::vector<T>& values) {
  absl::StatusOr<base::Tensor> tensor = base::Tensor::Allocate(dtype, dims);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  for (size_t i = 0; i < values.size(); ++i) tensor->as<T>()[i] = values[i];
  return *std::move(tensor);
}

inline void WriteTensors(
    const std::string& path,
    const std::vector<std::pair<std::string, const base::Tensor*>>& tensors) {
  std::vector<std::pair<std::string, base::TensorView>> views;
  for (const auto& [name, tensor] : tensors) {
    views.emplace_back(name, tensor->view());
  }
  const absl::Status status = models::WriteSafetensors(path, views);
  ASSERT_TRUE(status.ok()) << status;
}

// score = sigmoid(linear(cat(dense, embedding(ids)))): two dense features, a
// table of 5 rows × 2, one weight row of 4.
class TinyModel {
 public:
  static constexpr int kRows = 5;

  // Row r of the table is [r, −r/2]; weights are 0.5, −1, 0.25, 2; bias 0.125.
  static float Score(float dense_0, float dense_1, int64_t id) {
    const float r = static_cast<float>(id);
    const float logit =
        0.5f * dense_0 - 1.0f * dense_1 + 0.25f * r + 2.0f * (-r / 2) + 0.125f;
    return 1.0f / (1.0f + std::exp(-logit));
  }

  // Writes the weights and a stand-in for the original file into `folder`.
  static models::ImportedModel Make(const TempFolder& folder,
                                    float first_weight = 0.5f) {
    std::vector<float> table;
    for (int r = 0; r < kRows; ++r) {
      table.push_back(static_cast<float>(r));
      table.push_back(-static_cast<float>(r) / 2);
    }
    const base::Tensor rows =
        MakeTensor<float>(base::DType::kFloat32, {kRows, 2}, table);
    const base::Tensor weight = MakeTensor<float>(base::DType::kFloat32, {1, 4},
                                                  {first_weight, -1, 0.25f, 2});
    const base::Tensor bias =
        MakeTensor<float>(base::DType::kFloat32, {1}, {0.125f});
    const std::string file = folder / "weights.safetensors";
    WriteTensors(file, {{"table.weight", &rows},
                        {"top.weight", &weight},
                        {"top.bias", &bias}});
    models::ImportedModel model;
    model.source_path = folder / "tiny.pt2";
    std::ofstream(model.source_path) << "the original file";
    AddWeights(file, model);
    BuildGraph(model.graph);
    return model;
  }

 private:
  static void AddWeights(const std::string& path,
                         models::ImportedModel& model) {
    const absl::StatusOr<models::SafetensorsFile> file =
        models::SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    for (const models::SafetensorsEntry& entry : file->entries()) {
      models::WeightEntry weight;
      weight.name = entry.name;
      weight.file = path;
      weight.offset = entry.offset;
      weight.bytes = entry.bytes;
      weight.dtype = entry.dtype;
      weight.sizes = entry.dims;
      int64_t stride = 1;
      weight.strides.resize(entry.dims.size());
      for (size_t d = entry.dims.size(); d-- > 0;) {
        weight.strides[d] = stride;
        stride *= entry.dims[d];
      }
      model.weights.entries.push_back(std::move(weight));
    }
    models::WeightFile whole;
    whole.file = path;
    whole.bytes = file->file()->bytes().size();
    whole.digest = base::DigestOf(file->file()->bytes());
    model.weights.files.push_back(std::move(whole));
  }

  static void BuildGraph(models::Graph& graph) {
    using models::ValueRef;
    const models::SymExpr b = models::SymExpr::Symbol("b");
    const auto value = [&](std::string name, base::DType dtype,
                           std::vector<models::SymExpr> shape,
                           std::string weight = "") {
      models::Value result;
      result.name = std::move(name);
      result.dtype = dtype;
      result.has_shape = true;
      result.shape = std::move(shape);
      result.weight = std::move(weight);
      graph.values.push_back(std::move(result));
      return static_cast<models::ValueId>(graph.values.size()) - 1;
    };
    const auto node = [&](std::string op,
                          std::vector<models::NamedArgument> args,
                          models::ValueId output) {
      models::Node result;
      result.name = graph.values[output].name;
      result.op = std::move(op);
      result.args = std::move(args);
      result.outputs = {output};
      graph.values[output].producer =
          static_cast<models::NodeId>(graph.nodes.size());
      graph.nodes.push_back(std::move(result));
    };
    constexpr base::DType kFloat = base::DType::kFloat32;
    const auto dense = value("dense", kFloat, {b, 2});
    const auto ids = value("ids", base::DType::kInt64, {b});
    const auto table = value("p_table", kFloat, {kRows, 2}, "table.weight");
    const auto weight = value("p_w", kFloat, {1, 4}, "top.weight");
    const auto bias = value("p_b", kFloat, {1}, "top.bias");
    const auto emb = value("emb", kFloat, {b, 2});
    const auto all = value("all", kFloat, {b, 4});
    const auto logit = value("logit", kFloat, {b, 1});
    const auto score = value("score", kFloat, {b, 1});
    node("aten.embedding.default",
         {{"weight", ValueRef{table}}, {"indices", ValueRef{ids}}}, emb);
    node("aten.cat.default",
         {{"tensors", models::ValueList{dense, emb}}, {"dim", int64_t{1}}},
         all);
    node("aten.linear.default",
         {{"input", ValueRef{all}},
          {"weight", ValueRef{weight}},
          {"bias", ValueRef{bias}}},
         logit);
    node("aten.sigmoid.default", {{"self", ValueRef{logit}}}, score);
    graph.inputs = {dense, ids};
    graph.outputs = {score};
    graph.output_names = {"output_0"};
    graph.symbols = {{"b", 1, 4096}};
    graph.batch_symbol = "b";
  }
};

}  // namespace refract::tools

#endif  // REFRACT_TESTS_TOOLS_TINY_MODEL_H_
