#include "partitioner/verify/probe_models.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/sym_expr.h"

namespace refract::partitioner {
namespace {

using models::Stage;
using models::ValueId;
using models::ValueRef;

constexpr char kBatch[] = "s0";

// Makes graphs of fp32 matrices [kBatch, width].
class Builder {
 public:
  explicit Builder(std::string name) {
    model_.name = std::move(name);
    model_.graph.batch_symbol = kBatch;
    model_.graph.symbols = {{.symbol = kBatch, .min = 1}};
  }

  ValueId Input(std::string name, int64_t width) {
    const ValueId id = AddMatrix(std::move(name), width);
    model_.graph.inputs.push_back(id);
    return id;
  }
  // One node with one result of `width` columns.
  ValueId Node(std::string op, std::vector<models::NamedArgument> args,
               int64_t width) {
    const std::string name = absl::StrCat("n", model_.graph.nodes.size());
    const ValueId id = AddMatrix(name, width);
    model_.graph.values[id].producer =
        static_cast<models::NodeId>(model_.graph.nodes.size());
    models::Node node;
    node.name = name;
    node.op = std::move(op);
    node.args = std::move(args);
    node.outputs = {id};
    model_.graph.nodes.push_back(std::move(node));
    return id;
  }
  ProbeModel Finish(ValueId output, bool idle, std::vector<Stage> stages = {}) {
    model_.graph.outputs = {output};
    model_.graph.output_names = {"output_0"};
    model_.stages = std::move(stages);
    model_.idle = idle;
    return std::move(model_);
  }

 private:
  ValueId AddMatrix(std::string name, int64_t width) {
    models::Value value;
    value.name = std::move(name);
    value.dtype = base::DType::kFloat32;
    value.has_shape = true;
    value.shape = {models::SymExpr::Symbol(kBatch), models::SymExpr(width)};
    return model_.graph.AddValue(std::move(value));
  }

  ProbeModel model_;
};

models::NamedArgument Self(ValueId id) { return {"self", ValueRef{id}}; }

models::IntList Ints(std::vector<int64_t> literals) {
  models::IntList list;
  for (const int64_t literal : literals) list.push_back({.literal = literal});
  return list;
}

ValueId RowSums(Builder& builder, ValueId id) {
  return builder.Node("aten.sum.dim_IntList",
                      {Self(id), {"dim", Ints({1})}, {"keepdim", true}}, 1);
}

// One column of the input is used: all bytes come in, hardly any are read.
ProbeModel In() {
  Builder builder("in");
  const ValueId x = builder.Input("x", kProbeWidth);
  const ValueId first = builder.Node("aten.slice.Tensor",
                                     {Self(x),
                                      {"dim", int64_t{1}},
                                      {"start", int64_t{0}},
                                      {"end", int64_t{1}}},
                                     1);
  return builder.Finish(builder.Node("aten.relu.default", {Self(first)}, 1),
                        /*idle=*/true);
}

// A view: the input is the answer, and no operator copies it.
ProbeModel Echo() {
  Builder builder("echo");
  const ValueId x = builder.Input("x", kProbeWidth);
  return builder.Finish(
      builder.Node("aten.view.default",
                   {Self(x), {"size", Ints({-1, kProbeWidth})}}, kProbeWidth),
      /*idle=*/true);
}

// CN-pre writes a wide matrix, the HN reads all of it and returns a column.
ProbeModel Up() {
  Builder builder("up");
  const ValueId x = builder.Input("x", kProbeWidth);
  const ValueId relu =
      builder.Node("aten.relu.default", {Self(x)}, kProbeWidth);
  return builder.Finish(RowSums(builder, relu), /*idle=*/false,
                        {Stage::kCnPre, Stage::kHn});
}

// A column goes up; the HN writes a wide matrix, CN-post reads all of it.
ProbeModel Down() {
  Builder builder("down");
  const ValueId x = builder.Input("x", 1);
  const ValueId wide =
      builder.Node("aten.repeat.default",
                   {Self(x), {"repeats", Ints({1, kProbeWidth})}}, kProbeWidth);
  return builder.Finish(RowSums(builder, wide), /*idle=*/false,
                        {Stage::kHn, Stage::kCnPost});
}

// Many inputs of one column each go up as they come, and one matrix returns.
ProbeModel Tensors() {
  Builder builder("tensors");
  models::ValueList all;
  for (int64_t i = 0; i < kProbeTensors; ++i) {
    all.push_back(builder.Input(absl::StrCat("x", i), 1));
  }
  return builder.Finish(
      builder.Node("aten.cat.default",
                   {{"tensors", std::move(all)}, {"dim", int64_t{1}}},
                   kProbeTensors),
      /*idle=*/true, {Stage::kHn});
}

}  // namespace

std::vector<ProbeModel> ProbeModels() {
  std::vector<ProbeModel> models;
  models.push_back(In());
  models.push_back(Echo());
  models.push_back(Up());
  models.push_back(Down());
  models.push_back(Tensors());
  return models;
}

absl::StatusOr<std::vector<base::Tensor>> ProbeRequest(
    const models::Graph& graph, int64_t batch) {
  std::vector<base::Tensor> tensors;
  for (const ValueId id : graph.inputs) {
    const models::Value& value = graph.value(id);
    const int64_t width = value.shape[1].constant().value_or(1);
    REFRACT_ASSIGN_OR_RETURN(
        base::Tensor tensor,
        base::Tensor::Allocate(value.dtype, {batch, width}));
    std::memset(tensor.data(), 0, tensor.bytes());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace refract::partitioner
