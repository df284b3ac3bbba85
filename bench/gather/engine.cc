#include "bench/gather/engine.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/runtime/timing.h"

namespace refract::bench {
namespace {

using models::ValueId;

// embedding_bag of every table; with `cat`, their results side by side.
models::Graph MakeGraph(const Tables& tables, bool cat) {
  models::Graph graph;
  const auto add = [&](std::string name, base::DType dtype,
                       std::vector<models::SymExpr> shape) {
    models::Value value;
    value.name = std::move(name);
    value.dtype = dtype;
    value.has_shape = true;
    value.shape = std::move(shape);
    return graph.AddValue(std::move(value));
  };
  const auto batch = models::SymExpr::Symbol("B");
  models::ValueList pooled;
  for (int64_t t = 0; t < tables.count; ++t) {
    const ValueId table =
        add(absl::StrCat("table", t), base::DType::kFloat32,
            {models::SymExpr(tables.rows), models::SymExpr(tables.layout.dim)});
    graph.values[table].weight = absl::StrCat("t", t);
    if (tables.layout.format.element != models::RowElement::kFloat32) {
      graph.values[table].row_bytes = tables.layout.stride;
    }
    const ValueId ids = add(absl::StrCat("ids", t), base::DType::kInt64,
                            {models::SymExpr::Symbol(absl::StrCat("N", t))});
    const ValueId offsets =
        add(absl::StrCat("offsets", t), base::DType::kInt64, {batch});
    graph.inputs.push_back(ids);
    graph.inputs.push_back(offsets);
    models::Node node;
    node.name = absl::StrCat("bag", t);
    node.op = "aten.embedding_bag.default";
    node.args = {{"weight", models::ValueRef{table}},
                 {"indices", models::ValueRef{ids}},
                 {"offsets", models::ValueRef{offsets}}};
    const ValueId result = add(absl::StrCat("pooled", t), base::DType::kFloat32,
                               {batch, models::SymExpr(tables.layout.dim)});
    graph.values[result].producer =
        static_cast<models::NodeId>(graph.nodes.size());
    // aten.embedding_bag has four results; only the pooled vectors are used.
    node.outputs = {result, models::kNoValue, models::kNoValue,
                    models::kNoValue};
    graph.nodes.push_back(std::move(node));
    pooled.push_back(result);
  }
  if (!cat) {
    for (const ValueId id : pooled) graph.outputs.push_back(id);
  } else {
    models::Node node;
    node.name = "cat";
    node.op = "aten.cat.default";
    node.args = {{"tensors", pooled}, {"dim", int64_t{1}}};
    const ValueId result =
        add("joined", base::DType::kFloat32,
            {batch, models::SymExpr(tables.count * tables.layout.dim)});
    graph.values[result].producer =
        static_cast<models::NodeId>(graph.nodes.size());
    node.outputs = {result};
    graph.nodes.push_back(std::move(node));
    graph.outputs.push_back(result);
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    graph.output_names.push_back(absl::StrCat("output_", i));
  }
  graph.batch_symbol = "B";
  return graph;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const Tables& tables,
                                                       bool cat) {
  auto engine = std::make_unique<Engine>();
  engine->graph_ = MakeGraph(tables, cat);
  engine->width_ = tables.layout.dim * (cat ? tables.count : 1);
  REFRACT_ASSIGN_OR_RETURN(
      engine->program_,
      runtime::Program::Compile(engine->graph_,
                                runtime::Part::Whole(engine->graph_),
                                tables.store, {}));
  engine->context_.emplace(*engine->program_);
  return engine;
}

void Engine::Run(const Request& request) {
  const size_t count = graph_.outputs.size();
  const size_t bytes =
      static_cast<size_t>(request.batch * width_) * sizeof(float);
  // Memory like that of a message: the results are written where a CPU node
  // would send them from. It is kept between runs of one batch size.
  if (destinations_.empty() || bytes != bytes_) {
    bytes_ = bytes;
    message_ = base::AlignedBuffer(bytes * count);
    destinations_.clear();
    for (size_t i = 0; i < count; ++i) {
      destinations_.push_back(message_.data() + i * bytes);
    }
  }
  const absl::Status status = program_->Run(request.views, destinations_,
                                            *context_, outputs_, nullptr);
  if (!status.ok()) {
    std::fprintf(stderr, "bench_gather: %s\n", status.ToString().c_str());
    std::exit(1);
  }
}

std::vector<float> Engine::Result(int64_t batch) const {
  std::vector<float> result;
  for (int64_t b = 0; b < batch; ++b) {
    // Item by item, and in an item table by table, whether the results are one
    // tensor or many: the same order as the baselines' cat.
    for (const std::byte* from : destinations_) {
      const float* const row =
          reinterpret_cast<const float*>(from) + b * width_;
      result.insert(result.end(), row, row + width_);
    }
  }
  return result;
}

std::vector<double> Engine::PartsOf(const Request& request) {
  std::vector<std::vector<double>> parts(program_->steps().size() + 2);
  // The same request again and again, so that its rows are in the caches.
  for (int i = 0; i < 51; ++i) {
    runtime::StepTimes times;
    const absl::Status status = program_->RunTimed(
        request.views, destinations_, *context_, outputs_, times);
    if (!status.ok()) continue;
    parts.front().push_back(static_cast<double>(times.before) / 1e3);
    parts.back().push_back(static_cast<double>(times.after) / 1e3);
    for (size_t s = 0; s < times.steps.size(); ++s) {
      parts[s + 1].push_back(static_cast<double>(times.steps[s]) / 1e3);
    }
  }
  std::vector<double> medians;
  for (auto& part : parts) medians.push_back(Percentile(part, 0.5));
  return medians;
}

}  // namespace refract::bench
