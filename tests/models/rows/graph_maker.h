#ifndef REFRACT_TESTS_MODELS_ROWS_GRAPH_MAKER_H_
#define REFRACT_TESTS_MODELS_ROWS_GRAPH_MAKER_H_

// Small graphs for the tests of row dependence, with shapes given as text.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/graph/graph.h"

namespace refract::models {

// A graph in the making: inputs and weights by shape text ("B,4"), nodes in
// order. Arguments that are tensors are given by value id.
class Maker {
 public:
  Maker() { graph_.batch_symbol = std::string("B"); }

  ValueId Input(std::string_view shape,
                base::DType dtype = base::DType::kFloat32) {
    const ValueId id = Add(shape, dtype);
    graph_.inputs.push_back(id);
    return id;
  }
  ValueId Ids(std::string_view shape) {
    return Input(shape, base::DType::kInt64);
  }
  ValueId Weight(std::string_view shape) {
    const ValueId id = Add(shape, base::DType::kFloat32);
    graph_.values[id].weight = graph_.values[id].name;
    return id;
  }
  ValueId Size(std::string_view expression) {
    Value value;
    value.name = Name("n");
    value.kind = ValueKind::kSymInt;
    value.sym_value = *SymExpr::Parse(std::string(expression));
    value.producer = static_cast<NodeId>(graph_.nodes.size());
    const ValueId id = graph_.AddValue(value);
    Node node;
    node.name = Name("size");
    node.op = "aten.sym_size.int";
    node.args = {{"self", ValueRef{graph_.inputs[0]}}, {"dim", int64_t{0}}};
    node.outputs = {id};
    graph_.nodes.push_back(node);
    return id;
  }
  // One result for each shape.
  std::vector<ValueId> Ops(std::string op, std::vector<NamedArgument> args,
                           std::vector<std::string> shapes,
                           base::DType dtype = base::DType::kFloat32) {
    Node node;
    node.name = Name("node");
    node.op = absl::StrCat("aten.", op);
    node.args = std::move(args);
    for (const std::string& shape : shapes) {
      const ValueId id = Add(shape, dtype);
      graph_.values[id].producer = static_cast<NodeId>(graph_.nodes.size());
      node.outputs.push_back(id);
    }
    graph_.nodes.push_back(node);
    return node.outputs;
  }
  ValueId Op(std::string op, std::vector<NamedArgument> args, std::string shape,
             base::DType dtype = base::DType::kFloat32) {
    return Ops(std::move(op), std::move(args), {shape}, dtype)[0];
  }
  // The graph that returns `outputs`.
  Graph Return(std::vector<ValueId> outputs) {
    graph_.outputs = outputs;
    for (size_t i = 0; i < outputs.size(); ++i) {
      graph_.output_names.push_back(absl::StrCat("output_", i));
    }
    const absl::Status status = ValidateGraph(graph_);
    EXPECT_TRUE(status.ok()) << status;
    return graph_;
  }

 private:
  std::string Name(absl::string_view prefix) {
    return absl::StrCat(prefix, next_++);
  }
  ValueId Add(std::string_view shape, base::DType dtype) {
    Value value;
    value.name = Name("v");
    value.dtype = dtype;
    value.has_shape = true;
    std::string size;
    for (const char c : absl::StrCat(std::string(shape), ",")) {
      if (c != ',') {
        size.push_back(c);
      } else if (!size.empty()) {
        value.shape.push_back(*SymExpr::Parse(size));
        size.clear();
      }
    }
    return graph_.AddValue(value);
  }

  Graph graph_;
  int next_ = 0;
};

}  // namespace refract::models

#endif  // REFRACT_TESTS_MODELS_ROWS_GRAPH_MAKER_H_
