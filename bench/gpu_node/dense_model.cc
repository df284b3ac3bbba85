#include "bench/gpu_node/dense_model.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "models/repository/split_plan.h"
#include "models/repository/weights.h"

namespace refract::bench {
namespace {

constexpr uint32_t kSeed = 1;
constexpr auto kFloat = base::DType::kFloat32;
constexpr absl::string_view kBatch = "B";

models::ValueId AddValue(models::Graph& graph, std::string name,
                         std::vector<models::SymExpr> shape, bool is_weight) {
  models::Value value;
  value.dtype = kFloat;
  value.has_shape = true;
  value.shape = std::move(shape);
  if (is_weight) value.weight = name;
  value.name = std::move(name);
  return graph.AddValue(std::move(value));
}

void AddNode(models::Graph& graph, std::string op,
             std::vector<models::NamedArgument> args, models::ValueId output) {
  models::Node node;
  node.name = absl::StrCat("node_", graph.value(output).name);
  node.op = std::move(op);
  node.args = std::move(args);
  node.outputs = {output};
  graph.values[output].producer =
      static_cast<models::NodeId>(graph.nodes.size());
  graph.nodes.push_back(std::move(node));
}

models::Graph MakeGraph(const std::vector<int64_t>& widths) {
  using models::ValueRef;
  const models::SymExpr batch = models::SymExpr::Symbol(std::string(kBatch));
  models::Graph graph;
  graph.batch_symbol = std::string(kBatch);
  graph.symbols = {
      {.symbol = std::string(kBatch), .min = 1, .max = int64_t{1} << 20}};
  models::ValueId last =
      AddValue(graph, "x", {batch, widths[0]}, /*is_weight=*/false);
  graph.inputs = {last};
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const bool is_last = i + 2 == widths.size();
    const auto weight = AddValue(graph, absl::StrCat("weight", i),
                                 {widths[i + 1], widths[i]}, true);
    const auto bias =
        AddValue(graph, absl::StrCat("bias", i), {widths[i + 1]}, true);
    const auto sum = AddValue(graph, is_last ? "score" : absl::StrCat("sum", i),
                              {batch, widths[i + 1]}, false);
    AddNode(graph, "aten.linear.default",
            {{"input", ValueRef{last}},
             {"weight", ValueRef{weight}},
             {"bias", ValueRef{bias}}},
            sum);
    last = sum;
    if (is_last) break;
    last =
        AddValue(graph, absl::StrCat("relu", i), {batch, widths[i + 1]}, false);
    AddNode(graph, "aten.relu.default", {{"self", ValueRef{sum}}}, last);
  }
  graph.outputs = {last};
  graph.output_names = {"score"};
  return graph;
}

// In a file that is unlinked once it is mapped.
absl::StatusOr<std::shared_ptr<const models::WeightStore>> MakeWeights(
    const std::vector<int64_t>& widths) {
  std::mt19937 random(kSeed);
  models::WeightTable table;
  std::vector<float> values;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const int64_t in = widths[i];
    const int64_t out = widths[i + 1];
    const auto add = [&](std::string name, std::vector<int64_t> sizes,
                         std::vector<int64_t> strides, float scale) {
      std::normal_distribution<float> normal(0, scale);
      const size_t begin = values.size();
      int64_t count = 1;
      for (const int64_t size : sizes) count *= size;
      for (int64_t k = 0; k < count; ++k) values.push_back(normal(random));
      table.entries.push_back(
          {.name = std::move(name),
           .file = "weights",
           .offset = begin * sizeof(float),
           .bytes = static_cast<size_t>(count) * sizeof(float),
           .dtype = kFloat,
           .sizes = std::move(sizes),
           .strides = std::move(strides)});
    };
    add(absl::StrCat("weight", i), {out, in}, {in, 1},
        std::sqrt(2.0f / static_cast<float>(in)));
    add(absl::StrCat("bias", i), {out}, {1}, 0.01f);
  }
  table.files.push_back(
      {.file = "weights", .bytes = values.size() * sizeof(float)});
  // Weights are opened from a file as in a repository. The mapping outlives the
  // folder.
  std::string folder =
      (std::filesystem::temp_directory_path() / "refract_bench_XXXXXX")
          .string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot make folder ", folder));
  }
  const auto remove =
      absl::MakeCleanup([&folder] { std::filesystem::remove_all(folder); });
  std::ofstream file(absl::StrCat(folder, "/weights"), std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  file.close();
  if (!file) {
    return absl::InternalError(absl::StrCat("cannot write to ", folder));
  }
  return models::WeightStore::Open(folder, table);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const models::LoadedModel>> MakeDenseModel(
    const std::vector<int64_t>& widths) {
  if (widths.size() < 2) {
    return absl::InvalidArgumentError("a model has at least two widths");
  }
  auto model = std::make_shared<models::LoadedModel>();
  model->name = "dense";
  model->version = 1;
  model->graph = MakeGraph(widths);
  model->digest = {.low = 1, .high = 1};
  model->config.name = model->name;
  REFRACT_ASSIGN_OR_RETURN(model->weights, MakeWeights(widths));
  // All nodes on the HN: the benchmark measures the GPU node alone.
  models::SplitPlan plan;
  plan.model = model->digest;
  plan.method = "all-hn";
  plan.stages.assign(model->graph.nodes.size(), models::Stage::kHn);
  models::ComputeCrossings(model->graph, plan);
  model->plan = std::move(plan);
  return model;
}

}  // namespace refract::bench
