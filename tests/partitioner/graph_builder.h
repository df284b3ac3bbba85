#ifndef REFRACT_TESTS_PARTITIONER_GRAPH_BUILDER_H_
#define REFRACT_TESTS_PARTITIONER_GRAPH_BUILDER_H_

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/graph/graph.h"

namespace refract::partitioner {

// Graphs for tests of the split. Operators take any number of operands: the
// partitioner looks at names and edges only.
class GraphBuilder {
 public:
  models::ValueId Input(std::string name) {
    const models::ValueId id = Add(std::move(name), base::DType::kFloat32);
    graph_.inputs.push_back(id);
    return id;
  }
  models::ValueId Weight(std::string name) {
    const models::ValueId id = Add("p_" + name, base::DType::kFloat32);
    graph_.values[id].weight = std::move(name);
    return id;
  }
  // One node with one output of the same name. Sizes give a kSymInt.
  models::ValueId Node(std::string name, std::string op,
                       std::vector<models::ValueId> operands) {
    const models::ValueId id = Add(name, base::DType::kFloat32);
    models::Value& value = graph_.values[id];
    value.producer = static_cast<models::NodeId>(graph_.nodes.size());
    if (op.rfind("aten.sym_size", 0) == 0 || op.rfind("py.", 0) == 0) {
      value.kind = models::ValueKind::kSymInt;
      value.dtype = base::DType::kUnknown;
    }
    models::Node node;
    node.name = std::move(name);
    node.op = std::move(op);
    node.args.push_back({"tensors", models::ValueList(std::move(operands))});
    node.outputs = {id};
    graph_.nodes.push_back(std::move(node));
    return id;
  }
  void Output(models::ValueId id) {
    graph_.outputs.push_back(id);
    graph_.output_names.push_back("output_" +
                                  std::to_string(graph_.outputs.size() - 1));
  }
  models::Value& value(models::ValueId id) { return graph_.values[id]; }
  models::Graph& graph() { return graph_; }

 private:
  models::ValueId Add(std::string name, base::DType dtype) {
    models::Value value;
    value.name = std::move(name);
    value.dtype = dtype;
    graph_.values.push_back(std::move(value));
    return static_cast<models::ValueId>(graph_.values.size()) - 1;
  }
  models::Graph graph_;
};

struct RandomGraphOptions {
  int max_nodes = 12;
  bool cpu_only = true;  // sort, unknown operators
  bool embeddings = true;
  bool unknown_dtypes = true;
};

// A random acyclic graph of 1…max_nodes nodes with all kinds of operators.
inline models::Graph RandomGraph(std::mt19937& random,
                                 const RandomGraphOptions& options) {
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random);
  };
  std::vector<std::string> ops = {
      "aten.linear.default", "aten.linear.default",
      "aten.bmm.default",    "aten.relu.default",
      "aten.add.Tensor",     "aten.view.default",
      "aten.cat.default",    "aten.softmax.int",
      "aten.sym_size.int",   "py.mul",
  };
  if (options.cpu_only) {
    ops.push_back("aten.topk.default");
    ops.push_back("mylib.secret.default");
  }
  if (options.embeddings) {
    ops.push_back("aten.embedding.default");
    ops.push_back("aten.embedding_bag.padding_idx");
  }
  GraphBuilder builder;
  std::vector<models::ValueId> values;
  std::vector<models::ValueId> sizes;
  const int num_inputs = 1 + below(3);
  for (int i = 0; i < num_inputs; ++i) {
    values.push_back(builder.Input("x" + std::to_string(i)));
  }
  values.push_back(builder.Weight("w"));
  const int num_nodes = 1 + below(options.max_nodes);
  for (int n = 0; n < num_nodes; ++n) {
    std::string op = ops[below(static_cast<int>(ops.size()))];
    if (op == "py.mul" && sizes.empty()) op = "aten.sym_size.int";
    std::vector<models::ValueId> operands;
    const int num_operands = below(10) == 0 ? 0 : 1 + below(3);
    for (int i = 0; i < num_operands; ++i) {
      if (op == "py.mul") {
        operands.push_back(sizes[below(static_cast<int>(sizes.size()))]);
      } else {
        operands.push_back(values[below(static_cast<int>(values.size()))]);
      }
    }
    if (op == "aten.sym_size.int") {
      operands = {values[below(static_cast<int>(values.size()))]};
    } else if (op != "py.mul" && !sizes.empty() && below(4) == 0) {
      operands.push_back(sizes[below(static_cast<int>(sizes.size()))]);
    }
    const models::ValueId id =
        builder.Node("n" + std::to_string(n), op, std::move(operands));
    if (builder.value(id).kind == models::ValueKind::kSymInt) {
      if (options.unknown_dtypes && below(10) == 0) {
        builder.value(id).kind = models::ValueKind::kSymFloat;
      }
      sizes.push_back(id);
    } else {
      if (options.unknown_dtypes && below(12) == 0) {
        builder.value(id).dtype = base::DType::kUnknown;
      }
      values.push_back(id);
    }
    if (below(5) == 0) builder.Output(id);
  }
  builder.Output(values.back());
  return std::move(builder.graph());
}

}  // namespace refract::partitioner

#endif  // REFRACT_TESTS_PARTITIONER_GRAPH_BUILDER_H_
