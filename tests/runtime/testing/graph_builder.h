#ifndef REFRACT_TESTS_RUNTIME_TESTING_GRAPH_BUILDER_H_
#define REFRACT_TESTS_RUNTIME_TESTING_GRAPH_BUILDER_H_

// Builds small graphs with weights in a file, and runs them. For tests:
// failures abort.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "models/repository/weights.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::runtime::testing {

using base::DType;
using models::SymExpr;
using models::ValueId;

template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kUInt8;
  return DType::kUnknown;
}

// Ends the test program when `status` is an error.
inline void MustBeOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}
template <typename T>
T Must(absl::StatusOr<T> value) {
  MustBeOk(value.status());
  return *std::move(value);
}

template <typename T>
base::Tensor MakeTensor(std::initializer_list<int64_t> dims,
                        const std::vector<T>& values) {
  base::Tensor tensor =
      Must(base::Tensor::Allocate(DTypeOf<T>(), base::Dims(dims)));
  if (tensor.bytes() != values.size() * sizeof(T)) std::abort();
  if (!values.empty()) {
    std::memcpy(tensor.data(), values.data(), tensor.bytes());
  }
  return tensor;
}

template <typename T>
std::vector<T> ValuesOf(const base::TensorView& view) {
  const auto span = view.as<T>();
  return {span.begin(), span.end()};
}

inline std::vector<float> RandomFloats(size_t count, std::mt19937& random) {
  std::uniform_real_distribution<float> distribution(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

inline base::Tensor RandomTensor(const base::Dims& dims, std::mt19937& random) {
  base::Tensor tensor = Must(base::Tensor::Allocate(DType::kFloat32, dims));
  const std::vector<float> values =
      RandomFloats(tensor.as<float>().size(), random);
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

// A symbol to write shapes with: Sym("b") + 1.
inline SymExpr Sym(const std::string& name) { return SymExpr::Symbol(name); }

class GraphBuilder {
 public:
  // Result of a node.
  struct Result {
    DType dtype = DType::kFloat32;
    std::vector<SymExpr> shape;
    models::ValueKind kind = models::ValueKind::kTensor;
  };

  ValueId Input(const std::string& name, DType dtype,
                std::vector<SymExpr> shape) {
    const ValueId id = AddValue(name, {dtype, std::move(shape)});
    graph_.inputs.push_back(id);
    return id;
  }

  template <typename T>
  ValueId Weight(const std::string& name, std::vector<int64_t> dims,
                 const std::vector<T>& values) {
    return RawWeight(name, DTypeOf<T>(), std::move(dims), values.data(),
                     values.size() * sizeof(T));
  }

  // Empty strides: those of a dense tensor.
  ValueId RawWeight(const std::string& name, DType dtype,
                    std::vector<int64_t> dims, const void* data, size_t bytes,
                    std::vector<int64_t> strides = {}) {
    models::Value value;
    value.name = absl::StrCat("p_", name);
    value.dtype = dtype;
    value.has_shape = true;
    for (int64_t dim : dims) value.shape.push_back(dim);
    value.weight = name;
    models::WeightEntry entry;
    entry.name = name;
    entry.file = "weights.bin";
    entry.offset = blob_.size();
    entry.bytes = bytes;
    entry.dtype = dtype;
    entry.strides = std::move(strides);
    if (entry.strides.empty()) {
      entry.strides.assign(dims.size(), 1);
      for (size_t d = dims.size(); d-- > 1;) {
        entry.strides[d - 1] = entry.strides[d] * dims[d];
      }
    }
    entry.sizes = std::move(dims);
    blob_.append(static_cast<const char*>(data), bytes);
    blob_.resize((blob_.size() + 63) / 64 * 64);
    table_.entries.push_back(std::move(entry));
    return graph_.AddValue(std::move(value));
  }

  // A table of `rows` rows of `layout`, as float32 to the graph.
  ValueId Rows(const std::string& name, int64_t rows,
               const models::RowLayout& layout, const void* data) {
    const ValueId id =
        RawWeight(name, DType::kFloat32, {rows, layout.dim}, data,
                  static_cast<size_t>(rows * layout.stride));
    table_.entries.back().rows = layout;
    graph_.values[id].row_bytes = layout.stride;
    return id;
  }

  // The first `rows` rows of the weight `of`, in its memory.
  ValueId FirstRows(const std::string& name, ValueId of, int64_t rows) {
    models::Value value = graph_.value(of);
    const auto entry = std::find_if(
        table_.entries.begin(), table_.entries.end(),
        [&](const auto& known) { return known.name == value.weight; });
    models::WeightEntry part = *entry;
    part.name = name;
    part.sizes[0] = rows;
    table_.entries.push_back(std::move(part));
    value.name = absl::StrCat("p_", name);
    value.weight = name;
    value.shape[0] = rows;
    return graph_.AddValue(std::move(value));
  }

  std::vector<ValueId> Nodes(const std::string& op,
                             std::vector<models::NamedArgument> args,
                             std::vector<Result> results) {
    models::Node node;
    const auto id = static_cast<models::NodeId>(graph_.nodes.size());
    node.name = absl::StrCat("n", id);
    node.op = op;
    node.args = std::move(args);
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId value =
          AddValue(absl::StrCat("v", id, "_", i), std::move(results[i]));
      graph_.values[value].producer = id;
      node.outputs.push_back(value);
    }
    graph_.nodes.push_back(std::move(node));
    return graph_.nodes.back().outputs;
  }

  ValueId Node(const std::string& op, std::vector<models::NamedArgument> args,
               Result result) {
    std::vector<Result> results;
    results.push_back(std::move(result));
    return Nodes(op, std::move(args), std::move(results))[0];
  }

  void Output(ValueId id) {
    graph_.outputs.push_back(id);
    graph_.output_names.push_back(
        absl::StrCat("out", graph_.output_names.size()));
  }

  // Writes the weights; call it after the last weight is added.
  std::shared_ptr<const models::WeightStore> Weights() {
    folder_.Write("weights.bin", blob_);
    table_.files.clear();
    if (!table_.entries.empty()) {
      models::WeightFile file;
      file.file = "weights.bin";
      file.bytes = blob_.size();
      table_.files.push_back(file);
    }
    return Must(models::WeightStore::Open(folder_.path(), table_));
  }

  models::Graph& graph() {
    MustBeOk(models::ValidateGraph(graph_));
    return graph_;
  }

 private:
  ValueId AddValue(const std::string& name, Result result) {
    models::Value value;
    value.name = name;
    value.kind = result.kind;
    if (result.kind == models::ValueKind::kTensor) {
      value.dtype = result.dtype;
      value.has_shape = true;
      value.shape = std::move(result.shape);
    }
    return graph_.AddValue(std::move(value));
  }

  models::testing::TempDir folder_;
  models::Graph graph_;
  models::WeightTable table_;
  std::string blob_;
};

// Arguments, short to write.
inline models::NamedArgument Ref(const std::string& name, ValueId id) {
  return {name, models::ValueRef{id}};
}
inline models::NamedArgument List(const std::string& name,
                                  std::vector<ValueId> ids) {
  return {name, models::ValueList(std::move(ids))};
}
inline models::NamedArgument Int(const std::string& name, int64_t value) {
  return {name, value};
}
inline models::NamedArgument Ints(const std::string& name,
                                  std::vector<int64_t> values) {
  models::IntList list;
  for (int64_t value : values) list.push_back({value, models::kNoValue});
  return {name, std::move(list)};
}
inline models::NamedArgument Bool(const std::string& name, bool value) {
  return {name, value};
}
inline models::NamedArgument Float(const std::string& name, double value) {
  return {name, value};
}

// A plan with the given stage per node.
inline models::SplitPlan PlanOf(const models::Graph& graph,
                                const std::vector<int>& stages) {
  models::SplitPlan plan;
  plan.method = "test";
  for (int stage : stages) {
    plan.stages.push_back(static_cast<models::Stage>(stage));
  }
  models::ComputeCrossings(graph, plan);
  return plan;
}

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_TESTING_GRAPH_BUILDER_H_
