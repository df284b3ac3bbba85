#ifndef REFRACT_TESTS_CPU_NODE_SMALL_MODEL_H_
#define REFRACT_TESTS_CPU_NODE_SMALL_MODEL_H_

// A model small enough to be computed by hand, made without importers and disk
// layout, for tests of both nodes:
//
//   score[b] = sigmoid(bias + Σ fc[i] · cat(dense[b], table[ids[b]])[i])
//   echo[b]  = 2 · dense[b]
//   twice[b] = 2 · table[ids[b]]
//
// dense: FP32[B, 3]; ids: INT64[B]; table: 10 × 4. Split: look-up on the CN,
// cat and linear on the HN, the rest on the CN; so an input and a result of
// CN-pre both cross and are also read by CN-post.

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "models/repository/weights.h"

namespace refract::testing_models {

inline constexpr int64_t kDense = 3;
inline constexpr int64_t kDim = 4;
inline constexpr int64_t kRows = 10;

// Weight i of the model, in file order: table, fc, bias. `variant` makes models
// that differ.
inline float WeightValue(size_t i, int variant) {
  return 0.25f * std::sin(1.0f + static_cast<float>(i)) + 0.1f * variant;
}
inline constexpr size_t kFcBegin = kRows * kDim;
inline constexpr size_t kBiasBegin = kFcBegin + kDense + kDim;
inline constexpr size_t kNumWeights = kBiasBegin + 1;

inline float DenseValue(int64_t row, int64_t column) {
  return 0.5f * static_cast<float>((row * 7 + column * 3) % 11) - 2.0f;
}
inline int64_t IdValue(int64_t row) { return (row * 3 + 1) % kRows; }

// The oracle: plain loops in double.
inline double ExpectedScore(int64_t row, int variant) {
  double sum = WeightValue(kBiasBegin, variant);
  for (int64_t i = 0; i < kDense; ++i) {
    sum += double{WeightValue(kFcBegin + i, variant)} * DenseValue(row, i);
  }
  for (int64_t i = 0; i < kDim; ++i) {
    sum += double{WeightValue(kFcBegin + kDense + i, variant)} *
           WeightValue(IdValue(row) * kDim + i, variant);
  }
  return 1 / (1 + std::exp(-sum));
}

inline models::ValueId AddValue(models::Graph& graph, std::string name,
                                base::DType dtype,
                                std::vector<models::SymExpr> shape,
                                std::string weight = "") {
  models::Value value;
  value.name = std::move(name);
  value.dtype = dtype;
  value.has_shape = true;
  value.shape = std::move(shape);
  value.weight = std::move(weight);
  return graph.AddValue(std::move(value));
}

inline void AddNode(models::Graph& graph, std::string op,
                    std::vector<models::NamedArgument> args,
                    models::ValueId output) {
  models::Node node;
  node.name = "node_" + graph.value(output).name;
  node.op = std::move(op);
  node.args = std::move(args);
  node.outputs = {output};
  graph.values[output].producer =
      static_cast<models::NodeId>(graph.nodes.size());
  graph.nodes.push_back(std::move(node));
}

inline models::Graph MakeGraph() {
  using models::ValueRef;
  constexpr auto kFloat = base::DType::kFloat32;
  const models::SymExpr batch = models::SymExpr::Symbol("B");
  models::Graph graph;
  graph.batch_symbol = "B";
  graph.symbols = {{.symbol = "B", .min = 1, .max = 100000}};
  const auto dense = AddValue(graph, "dense", kFloat, {batch, kDense});
  const auto ids = AddValue(graph, "ids", base::DType::kInt64, {batch});
  const auto table = AddValue(graph, "table", kFloat, {kRows, kDim}, "table");
  const auto fc = AddValue(graph, "fc", kFloat, {1, kDense + kDim}, "fc");
  const auto bias = AddValue(graph, "bias", kFloat, {1}, "bias");
  const auto rows = AddValue(graph, "rows", kFloat, {batch, kDim});
  const auto all = AddValue(graph, "all", kFloat, {batch, kDense + kDim});
  const auto logit = AddValue(graph, "logit", kFloat, {batch, 1});
  const auto score = AddValue(graph, "score", kFloat, {batch, 1});
  const auto echo = AddValue(graph, "echo", kFloat, {batch, kDense});
  const auto twice = AddValue(graph, "twice", kFloat, {batch, kDim});
  graph.inputs = {dense, ids};
  AddNode(graph, "aten.embedding.default",
          {{"weight", ValueRef{table}}, {"indices", ValueRef{ids}}}, rows);
  AddNode(graph, "aten.cat.default",
          {{"tensors", models::ValueList{dense, rows}}, {"dim", int64_t{1}}},
          all);
  AddNode(graph, "aten.linear.default",
          {{"input", ValueRef{all}},
           {"weight", ValueRef{fc}},
           {"bias", ValueRef{bias}}},
          logit);
  AddNode(graph, "aten.sigmoid.default", {{"self", ValueRef{logit}}}, score);
  AddNode(graph, "aten.add.Tensor",
          {{"self", ValueRef{dense}}, {"other", ValueRef{dense}}}, echo);
  AddNode(graph, "aten.add.Tensor",
          {{"self", ValueRef{rows}}, {"other", ValueRef{rows}}}, twice);
  graph.outputs = {score, echo, twice};
  graph.output_names = {"score", "echo", "twice"};
  return graph;
}

inline void WriteWeights(const std::string& path, int variant) {
  std::vector<float> values(kNumWeights);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = WeightValue(i, variant);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
}

// The table of the weights in `file`.
inline models::WeightTable MakeWeightTable(const std::string& file) {
  models::WeightTable table;
  const auto add = [&](std::string name, size_t begin, size_t count,
                       std::vector<int64_t> sizes,
                       std::vector<int64_t> strides) {
    table.entries.push_back({.name = std::move(name),
                             .file = file,
                             .offset = begin * sizeof(float),
                             .bytes = count * sizeof(float),
                             .dtype = base::DType::kFloat32,
                             .sizes = std::move(sizes),
                             .strides = std::move(strides)});
  };
  add("table", 0, kFcBegin, {kRows, kDim}, {kDim, 1});
  add("fc", kFcBegin, kDense + kDim, {1, kDense + kDim}, {kDense + kDim, 1});
  add("bias", kBiasBegin, 1, {1}, {1});
  table.files.push_back({.file = file, .bytes = kNumWeights * sizeof(float)});
  return table;
}

// Writes the weights into a new file and maps it; the file's name is removed at
// once, the mapping stays.
inline std::shared_ptr<const models::WeightStore> MakeWeights(int variant) {
  std::string folder =
      (std::filesystem::temp_directory_path() / "refract_small_XXXXXX")
          .string();
  if (mkdtemp(folder.data()) == nullptr) std::abort();
  WriteWeights(folder + "/weights", variant);
  auto store = models::WeightStore::Open(folder, MakeWeightTable("weights"));
  std::filesystem::remove_all(folder);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    std::abort();
  }
  return *std::move(store);
}

// Cat and linear on the HN, the rest on the CN.
inline models::SplitPlan MakePlan(const models::Graph& graph,
                                  const base::Digest& digest) {
  using models::Stage;
  models::SplitPlan plan;
  plan.model = digest;
  plan.method = "by hand";
  plan.stages = {Stage::kCnPre,  Stage::kHn,     Stage::kHn,
                 Stage::kCnPost, Stage::kCnPost, Stage::kCnPost};
  models::ComputeCrossings(graph, plan);
  const absl::Status valid = models::ValidatePlan(graph, digest, plan);
  if (!valid.ok()) {
    std::fprintf(stderr, "%s\n", valid.ToString().c_str());
    std::abort();
  }
  return plan;
}

struct SmallModelOptions {
  std::string name = "small";
  int64_t version = 1;
  bool split = true;
  int variant = 0;        // other weights, other digest
  int64_t min_batch = 1;  // of the graph
};

inline std::shared_ptr<const models::LoadedModel> MakeSmallModel(
    const SmallModelOptions& options) {
  auto model = std::make_shared<models::LoadedModel>();
  model->name = options.name;
  model->version = options.version;
  model->graph = MakeGraph();
  model->graph.min_batch = options.min_batch;
  model->digest = {.low = 17, .high = static_cast<uint64_t>(options.variant)};
  model->config.name = options.name;
  model->config_text = "name: \"" + options.name + "\" platform: \"refract\"";
  model->weights = MakeWeights(options.variant);
  if (options.split) model->plan = MakePlan(model->graph, model->digest);
  return model;
}

inline base::Tensor MakeDense(int64_t batch, int64_t first_row = 0) {
  base::Tensor tensor =
      *base::Tensor::Allocate(base::DType::kFloat32, {batch, kDense});
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < kDense; ++i) {
      tensor.as<float>()[b * kDense + i] = DenseValue(first_row + b, i);
    }
  }
  return tensor;
}

inline base::Tensor MakeIds(int64_t batch, int64_t first_row = 0) {
  base::Tensor tensor = *base::Tensor::Allocate(base::DType::kInt64, {batch});
  for (int64_t b = 0; b < batch; ++b) {
    tensor.as<int64_t>()[b] = IdValue(first_row + b);
  }
  return tensor;
}

}  // namespace refract::testing_models

#endif  // REFRACT_TESTS_CPU_NODE_SMALL_MODEL_H_
