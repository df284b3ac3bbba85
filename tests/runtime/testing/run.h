#ifndef REFRACT_TESTS_RUNTIME_TESTING_RUN_H_
#define REFRACT_TESTS_RUNTIME_TESTING_RUN_H_

// Runs hand-built graphs, and LibTorch beside them as the oracle.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/tensor.h"
#include "runtime/program.h"
#include "runtime/split_run.h"
#include "runtime/torch/caller.h"
#include "tests/runtime/testing/graph_builder.h"

namespace refract::runtime::testing {

inline std::vector<base::TensorView> Views(
    const std::vector<base::Tensor>& tensors) {
  std::vector<base::TensorView> views;
  for (const base::Tensor& tensor : tensors) views.push_back(tensor.view());
  return views;
}

// Runs the whole graph on `inputs`, as a server would.
inline absl::StatusOr<std::vector<base::Tensor>> RunWhole(
    GraphBuilder& builder, const std::vector<base::Tensor>& inputs,
    const CompileOptions& options = {}, RunStats* stats = nullptr) {
  auto runner =
      RequestRunner::Whole(builder.graph(), builder.Weights(), options);
  if (!runner.ok()) return runner.status();
  return (*runner)->Run(Views(inputs), stats);
}

// The kernel of each step, e.g. {"embedding_bag/sum", "libtorch"}.
inline std::vector<std::string> KernelsOf(GraphBuilder& builder,
                                          const CompileOptions& options = {}) {
  const models::Graph& graph = builder.graph();
  const auto program = Must(
      Program::Compile(graph, Part::Whole(graph), builder.Weights(), options));
  std::vector<std::string> kernels;
  for (const std::string& line : program->Describe()) {
    kernels.push_back(line.substr(line.rfind(' ') + 1));
  }
  return kernels;
}

// Runs the graph's nodes one by one by LibTorch alone. Tensors only.
inline absl::StatusOr<std::vector<base::Tensor>> RunByLibTorch(
    GraphBuilder& builder, const std::vector<base::Tensor>& inputs) {
  using runtime::aten::Operand;
  const models::Graph& graph = builder.graph();
  const auto weights = builder.Weights();
  std::vector<Operand> values(graph.values.size());
  std::vector<models::WeightView> views(graph.values.size());
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (!graph.values[id].is_weight()) continue;
    views[id] = Must(weights->Get(graph.values[id].weight));
    values[id].kind = Operand::Kind::kWeight;
    values[id].weight = &views[id];
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    values[graph.inputs[i]].kind = Operand::Kind::kTensor;
    values[graph.inputs[i]].tensor = inputs[i].view();
  }
  std::vector<std::vector<runtime::aten::Result>> alive;
  for (const models::Node& node : graph.nodes) {
    const auto caller = Must(runtime::aten::Caller::Create(node));
    std::vector<Operand> operands;
    for (ValueId id : models::InputsOf(node)) operands.push_back(values[id]);
    alive.emplace_back();
    const absl::Status status = caller->Call(operands, alive.back());
    if (!status.ok()) return status;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == models::kNoValue) continue;
      values[node.outputs[i]] = alive.back()[i].operand;
    }
  }
  std::vector<base::Tensor> outputs;
  for (ValueId id : graph.outputs) {
    outputs.push_back(Must(base::Tensor::CopyOf(values[id].tensor)));
  }
  return outputs;
}

inline bool SameBits(const base::Tensor& a, const base::Tensor& b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims() &&
         (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_TESTING_RUN_H_
