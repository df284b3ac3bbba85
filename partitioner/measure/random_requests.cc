#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/repository/model_config.h"
#include "proto/inference/model_config.pb.h"
#include "partitioner/costs/work.h"
#include "partitioner/measure/request_source.h"
#include "tools/loadgen/request_maker.h"
#include "tools/loadgen/served_model.h"

namespace refract::partitioner {
namespace {

using models::Graph;

// The metadata that a server would report of the model.
loadgen::ServedModel Describe(const Graph& graph) {
  loadgen::ServedModel served;
  served.name = "model";
  for (const models::ValueId id : graph.inputs) {
    const models::Value& value = graph.value(id);
    loadgen::ServedInput input;
    input.name = value.name;
    // Sizes come as int64 scalars.
    input.dtype = value.kind == models::ValueKind::kTensor
                      ? value.dtype
                      : base::DType::kInt64;
    for (const models::SymExpr& extent : value.shape) {
      input.dims.push_back(extent.constant().value_or(-1));
    }
    served.inputs.push_back(std::move(input));
  }
  // Parameters tell the request maker which inputs are ids of which tables.
  const inference::ModelConfig config = models::MakeConfig("model", graph);
  for (const auto& [key, value] : config.parameters()) {
    served.parameters[key] = value.string_value();
  }
  return served;
}

class Random final : public RequestSource {
 public:
  Random(const Graph& graph,
         const absl::flat_hash_map<std::string, int64_t>& per_item,
         loadgen::RequestMaker maker)
      : graph_(graph), per_item_(per_item), maker_(std::move(maker)) {
    for (const auto& [symbol, size] : SizesForBatch(graph, 1, per_item)) {
      if (symbol == graph.batch_symbol) continue;
      const auto given = per_item.find(symbol);
      sizes_[symbol] = given == per_item.end() ? 1 : given->second;
    }
  }

  absl::StatusOr<std::vector<base::Tensor>> Make(int64_t batch) override {
    return maker_.Make(batch, SizesForBatch(graph_, batch, per_item_));
  }
  const std::map<std::string, int64_t>& sizes() const override {
    return sizes_;
  }
  const std::string& description() const override { return description_; }

 private:
  const Graph& graph_;
  const absl::flat_hash_map<std::string, int64_t> per_item_;
  loadgen::RequestMaker maker_;
  std::map<std::string, int64_t> sizes_;
  const std::string description_ =
      "random, ids uniform over their whole tables, fresh every time";
};

}  // namespace

absl::StatusOr<std::unique_ptr<RequestSource>> RandomRequests(
    const Graph& graph,
    const absl::flat_hash_map<std::string, int64_t>& per_item, uint64_t seed) {
  auto plan = loadgen::PlanRequests(Describe(graph), {});
  if (!plan.ok()) {
    return base::Annotate(plan.status(),
                          "cannot make random requests; give --inputs");
  }
  loadgen::RequestOptions options;
  options.seed = seed;
  // Long enough for the largest symbol that is not the batch.
  options.length = 1;
  for (const auto& [symbol, size] : SizesForBatch(graph, 1, per_item)) {
    if (symbol != graph.batch_symbol) {
      options.length = std::max(options.length, size);
    }
  }
  REFRACT_ASSIGN_OR_RETURN(
      loadgen::RequestMaker maker,
      loadgen::RequestMaker::Create(*std::move(plan), std::move(options)));
  return std::make_unique<Random>(graph, per_item, std::move(maker));
}

}  // namespace refract::partitioner
