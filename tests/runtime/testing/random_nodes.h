#ifndef REFRACT_TESTS_RUNTIME_TESTING_RANDOM_NODES_H_
#define REFRACT_TESTS_RUNTIME_TESTING_RANDOM_NODES_H_

// Single nodes with arguments that may not fit their operands.

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/runtime/testing/graph_builder.h"

namespace refract::runtime::testing {

using Args = std::vector<models::NamedArgument>;

// One node on inputs of given sizes.
struct OneNode {
  struct Input {
    DType dtype = DType::kFloat32;
    base::Dims dims;
  };
  std::string op;
  std::vector<Input> inputs;
  // From the inputs' values.
  std::function<Args(const std::vector<ValueId>&)> args;
  // The graph's shape of the result.
  DType dtype = DType::kFloat32;
  base::Dims result;

  void AddTo(GraphBuilder& builder) const {
    std::vector<ValueId> ids;
    for (const Input& input : inputs) {
      ids.push_back(builder.Input(
          absl::StrCat("x", ids.size()), input.dtype,
          std::vector<SymExpr>(input.dims.begin(), input.dims.end())));
    }
    builder.Output(builder.Node(
        op, args(ids),
        {dtype, std::vector<SymExpr>(result.begin(), result.end())}));
  }
  std::vector<base::Tensor> Values(std::mt19937& random) const {
    std::vector<base::Tensor> values;
    for (const Input& input : inputs) {
      values.push_back(Must(base::Tensor::Allocate(input.dtype, input.dims)));
      base::Tensor& tensor = values.back();
      if (input.dtype == DType::kFloat32) {
        for (float& x : tensor.as<float>()) {
          x = static_cast<float>(random() % 256) / 128 - 1;
        }
      } else {
        // Some out of range.
        for (int64_t& x : tensor.as<int64_t>()) {
          x = static_cast<int64_t>(random() % 7) - 2;
        }
      }
    }
    return values;
  }
};

inline Args Einsum(const std::string& equation,
                   const std::vector<ValueId>& ids) {
  return {{"equation", equation}, List("tensors", ids)};
}

// Nodes of operators with native kernels, valid about half of the time.
class RandomNodes {
 public:
  explicit RandomNodes(std::mt19937& random) : random_(random) {}

  OneNode Make() {
    OneNode node;
    switch (Below(9)) {
      case 0:
        MakeEinsum(node);
        break;
      case 1:
        MakeTensordot(node);
        break;
      case 2:
        MakeIndex(node);
        break;
      case 3:
        MakeSelect(node);
        break;
      case 4:
        MakeReduction(node);
        break;
      case 5:
        MakeConvolution(node);
        break;
      case 6:
        MakeProduct(node);
        break;
      case 7:
        MakeView(node);
        break;
      default:
        MakeCat(node);
        break;
    }
    return node;
  }

 private:
  int64_t Below(int64_t end) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(end));
  }
  int64_t Size() {
    const int64_t sizes[] = {0, 1, 1, 2, 2, 3, 3, 4};
    return sizes[Below(8)];
  }
  base::Dims Dims(int64_t most) {
    base::Dims dims;
    for (int64_t left = Below(most + 1); left > 0; --left) {
      dims.push_back(Size());
    }
    return dims;
  }
  // Mostly existing dimensions.
  int64_t Dim(const base::Dims& dims) {
    const auto rank = static_cast<int64_t>(dims.size());
    return Below(10) == 0 ? Below(20) - 10 : Below(2 * rank + 1) - rank;
  }
  std::vector<int64_t> SomeDims(const base::Dims& dims) {
    std::vector<int64_t> some;
    for (int64_t left = Below(4); left > 0; --left) some.push_back(Dim(dims));
    return some;
  }

  // Valid about half of the time: the arguments are changed afterwards.
  void MakeEinsum(OneNode& node) {
    node.op = "aten.einsum.default";
    std::string equation;
    std::map<char, int64_t> sizes;
    for (const char letter : std::string("abcde")) sizes[letter] = Size();
    std::string parts[3];
    for (std::string& part : parts) {
      for (const char letter : std::string("abcde")) {
        if (Below(2) == 0) part += letter;
      }
      std::shuffle(part.begin(), part.end(), random_);
    }
    for (int i : {0, 1}) {
      base::Dims dims;
      for (const char letter : parts[i]) dims.push_back(sizes[letter]);
      node.inputs.push_back({DType::kFloat32, dims});
    }
    equation = absl::StrCat(parts[0], ",", parts[1], "->", parts[2]);
    for (int64_t changes = Below(3); changes > 0; --changes) {
      const std::string letters = "abcde ,->.xyz";
      const auto at =
          static_cast<size_t>(Below(static_cast<int64_t>(equation.size()) + 1));
      const char letter = letters[static_cast<size_t>(
          Below(static_cast<int64_t>(letters.size())))];
      switch (Below(3)) {
        case 0:
          equation.insert(at, 1, letter);
          break;
        case 1:
          equation.erase(at, 1);
          break;
        default:
          if (at < equation.size()) equation[at] = letter;
          break;
      }
    }
    if (Below(4) == 0) node.inputs[Below(2)].dims = Dims(4);
    node.args = [equation](const auto& ids) { return Einsum(equation, ids); };
  }

  void MakeTensordot(OneNode& node) {
    node.op = "aten.tensordot.default";
    base::Dims a = Dims(4);
    base::Dims b = Dims(4);
    std::vector<int64_t> a_dims = SomeDims(a);
    std::vector<int64_t> b_dims = SomeDims(b);
    if (Below(3) != 0) b_dims.resize(a_dims.size());
    for (size_t i = 0; i < std::min(a_dims.size(), b_dims.size()); ++i) {
      const auto rank = static_cast<int64_t>(a.size());
      const int64_t d = a_dims[i] < 0 ? a_dims[i] + rank : a_dims[i];
      const int64_t e = b_dims[i] < 0
                            ? b_dims[i] + static_cast<int64_t>(b.size())
                            : b_dims[i];
      if (Below(5) != 0 && d >= 0 && d < rank && e >= 0 &&
          e < static_cast<int64_t>(b.size())) {
        b[static_cast<size_t>(e)] = a[static_cast<size_t>(d)];
      }
    }
    node.inputs = {{DType::kFloat32, a}, {DType::kFloat32, b}};
    node.args = [a_dims, b_dims](const auto& ids) {
      return Args{Ref("self", ids[0]), Ref("other", ids[1]),
                  Ints("dims_self", a_dims), Ints("dims_other", b_dims)};
    };
  }

  void MakeIndex(OneNode& node) {
    node.op = "aten.index.Tensor";
    node.inputs = {{DType::kFloat32, Dims(4)}};
    const base::Dims shape = Dims(2);
    std::vector<bool> whole;
    for (int64_t left = 1 + Below(4); left > 0; --left) {
      whole.push_back(Below(3) == 0);
      if (whole.back()) continue;
      node.inputs.push_back({DType::kInt64, Below(4) == 0 ? Dims(3) : shape});
    }
    node.args = [whole](const auto& ids) {
      std::vector<ValueId> indices;
      size_t next = 1;
      for (const bool all : whole) {
        indices.push_back(all ? models::kNoValue : ids[next++]);
      }
      return Args{Ref("self", ids[0]), List("indices", indices)};
    };
  }

  void MakeSelect(OneNode& node) {
    const bool gather = Below(2) == 0;
    node.op = gather ? "aten.gather.default" : "aten.index_select.default";
    const base::Dims dims = Dims(4);
    base::Dims index = gather && Below(4) != 0 ? dims : Dims(2);
    if (gather && !index.empty() && Below(2) == 0) {
      index[static_cast<size_t>(Below(static_cast<int64_t>(index.size())))] =
          Size();
    }
    node.inputs = {{DType::kFloat32, dims}, {DType::kInt64, index}};
    const int64_t dim = Dim(dims);
    node.args = [dim](const auto& ids) {
      return Args{Ref("self", ids[0]), Int("dim", dim), Ref("index", ids[1])};
    };
  }

  void MakeReduction(OneNode& node) {
    const base::Dims dims = Dims(5);
    node.inputs = {{DType::kFloat32, dims}};
    const int64_t kind = Below(4);
    if (kind < 2) {
      node.op = kind == 0 ? "aten.sum.dim_IntList" : "aten.mean.dim";
      const std::vector<int64_t> some = SomeDims(dims);
      const bool keep = Below(2) == 0;
      node.args = [some, keep](const auto& ids) {
        return Args{Ref("self", ids[0]), Ints("dim", some),
                    Bool("keepdim", keep)};
      };
    } else if (kind == 2) {
      node.op = "aten.softmax.int";
      const int64_t dim = Dim(dims);
      node.args = [dim](const auto& ids) {
        return Args{Ref("self", ids[0]), Int("dim", dim)};
      };
    } else {
      node.op = "aten.layer_norm.default";
      const int64_t width =
          dims.empty() || Below(4) == 0 ? Size() : dims.back();
      const bool weight = Below(2) == 0;
      if (weight) {
        node.inputs.push_back({DType::kFloat32, {Below(5) ? width : Size()}});
      }
      node.args = [width, weight](const auto& ids) {
        Args args = {Ref("input", ids[0]), Ints("normalized_shape", {width})};
        if (weight) args.push_back(Ref("weight", ids[1]));
        return args;
      };
    }
  }

  void MakeConvolution(OneNode& node) {
    node.op = "aten.conv1d.default";
    const int64_t channels = 1 + Below(3);
    base::Dims input = {Size(), channels, 1 + Below(4)};
    base::Dims weight = {1 + Below(3), channels, 1 + Below(4) / 3};
    if (Below(5) == 0) input = Dims(4);
    if (Below(5) == 0) weight = Dims(4);
    node.inputs = {{DType::kFloat32, input}, {DType::kFloat32, weight}};
    const bool bias = Below(2) == 0;
    if (bias) {
      node.inputs.push_back({DType::kFloat32, Below(5) == 0 || weight.empty()
                                                  ? Dims(2)
                                                  : base::Dims{weight[0]}});
    }
    const int64_t groups = Below(6) == 0 ? Below(4) - 1 : 1;
    const int64_t stride = Below(6) == 0 ? Below(4) - 1 : 1;
    node.args = [bias, groups, stride](const auto& ids) {
      Args args = {Ref("input", ids[0]), Ref("weight", ids[1])};
      if (bias) args.push_back(Ref("bias", ids[2]));
      args.push_back(Ints("stride", {stride}));
      args.push_back(Int("groups", groups));
      return args;
    };
  }

  void MakeProduct(OneNode& node) {
    const int64_t kind = Below(4);
    const int64_t k = Size();
    base::Dims a = {Size(), k};
    base::Dims b = {k, Size()};
    if (kind == 3) std::swap(b[0], b[1]);
    if (kind == 1 || Below(3) == 0) {
      const int64_t batch = Size();
      a.insert(a.begin(), batch);
      if (kind == 1 || Below(2) == 0) b.insert(b.begin(), batch);
    }
    if (Below(4) == 0) a = Dims(4);
    if (Below(4) == 0) b = Dims(4);
    node.inputs = {{DType::kFloat32, a}, {DType::kFloat32, b}};
    const char* const ops[] = {"aten.mm.default", "aten.bmm.default",
                               "aten.matmul.default", "aten.linear.default"};
    node.op = ops[kind];
    if (kind == 3) {
      const bool bias = Below(2) == 0;
      if (bias) {
        node.inputs.push_back({DType::kFloat32, b.empty() || Below(4) == 0
                                                    ? Dims(2)
                                                    : base::Dims{b[0]}});
      }
      node.args = [bias](const auto& ids) {
        Args args = {Ref("input", ids[0]), Ref("weight", ids[1])};
        if (bias) args.push_back(Ref("bias", ids[2]));
        return args;
      };
      return;
    }
    const char* const other = kind == 2 ? "other" : "mat2";
    node.args = [other](const auto& ids) {
      return Args{Ref("self", ids[0]), Ref(other, ids[1])};
    };
  }

  void MakeView(OneNode& node) {
    const base::Dims dims = Dims(5);
    node.inputs = {{DType::kFloat32, dims}};
    const int64_t x = Dim(dims);
    const int64_t y = Below(3) == 0 ? Below(14) - 7 : Dim(dims);
    const int64_t z = Below(8) - 2;
    std::vector<int64_t> sizes;
    for (int64_t left = Below(5); left > 0; --left) {
      sizes.push_back(Below(5) == 0 ? -1 : Size());
    }
    if (Below(3) == 0) sizes.assign(dims.begin(), dims.end());
    switch (Below(9)) {
      case 0:
        node.op = "aten.slice.Tensor";
        node.args = [x, y, z](const auto& ids) {
          return Args{Ref("self", ids[0]), Int("dim", x), Int("start", y),
                      Int("end", z)};
        };
        break;
      case 1:
        node.op = "aten.select.int";
        node.args = [x, y](const auto& ids) {
          return Args{Ref("self", ids[0]), Int("dim", x), Int("index", y)};
        };
        break;
      case 2:
        node.op = "aten.narrow.default";
        node.args = [x, y, z](const auto& ids) {
          return Args{Ref("self", ids[0]), Int("dim", x), Int("start", y),
                      Int("length", z)};
        };
        break;
      case 3:
        node.op = "aten.permute.default";
        sizes.clear();
        for (size_t d = 0; d < dims.size(); ++d) {
          sizes.push_back(static_cast<int64_t>(d));
        }
        std::shuffle(sizes.begin(), sizes.end(), random_);
        if (Below(4) == 0) sizes = SomeDims(dims);
        node.args = [sizes](const auto& ids) {
          return Args{Ref("self", ids[0]), Ints("dims", sizes)};
        };
        break;
      case 4:
        node.op = "aten.transpose.int";
        node.args = [x, y](const auto& ids) {
          return Args{Ref("self", ids[0]), Int("dim0", x), Int("dim1", y)};
        };
        break;
      case 5:
        node.op = "aten.expand.default";
        // LibTorch may give such a size for a leading -1.
        for (size_t d = 0; d + dims.size() < sizes.size(); ++d) {
          sizes[d] = std::abs(sizes[d]);
        }
        node.args = [sizes](const auto& ids) {
          return Args{Ref("self", ids[0]), Ints("size", sizes)};
        };
        break;
      case 6:
        node.op = "aten.reshape.default";
        node.args = [sizes](const auto& ids) {
          return Args{Ref("self", ids[0]), Ints("shape", sizes)};
        };
        break;
      case 7:
        node.op = "aten.flatten.using_ints";
        node.args = [x, y](const auto& ids) {
          return Args{Ref("self", ids[0]), Int("start_dim", x),
                      Int("end_dim", y)};
        };
        break;
      default:
        node.op = "aten.unflatten.int";
        node.args = [x, sizes](const auto& ids) {
          return Args{Ref("self", ids[0]), Int("dim", x), Ints("sizes", sizes)};
        };
        break;
    }
  }

  void MakeCat(OneNode& node) {
    node.op = Below(4) == 0 ? "aten.stack.default" : "aten.cat.default";
    const base::Dims dims = Dims(4);
    const int64_t dim = Dim(dims);
    const int64_t count = 1 + Below(4);
    for (int64_t i = 0; i < count; ++i) {
      base::Dims own = dims;
      if (!own.empty() && Below(3) == 0) {
        own[static_cast<size_t>(Below(static_cast<int64_t>(own.size())))] =
            Size();
      }
      node.inputs.push_back({DType::kFloat32, Below(8) == 0 ? Dims(4) : own});
    }
    node.args = [dim](const auto& ids) {
      return Args{List("tensors", ids), Int("dim", dim)};
    };
  }

  std::mt19937& random_;
};

// For messages: the operator, the inputs' sizes and the arguments.
inline std::string Describe(const OneNode& node, GraphBuilder& builder) {
  std::string text = node.op;
  for (const OneNode::Input& input : node.inputs) {
    absl::StrAppend(&text, " ", base::DimsToString(input.dims));
  }
  for (const models::NamedArgument& argument : builder.graph().nodes[0].args) {
    if (const auto* number = std::get_if<int64_t>(&argument.value)) {
      absl::StrAppend(&text, " ", argument.name, "=", *number);
    } else if (const auto* words = std::get_if<std::string>(&argument.value)) {
      absl::StrAppend(&text, " ", argument.name, "=", *words);
    } else if (const auto* list =
                   std::get_if<models::IntList>(&argument.value)) {
      absl::StrAppend(&text, " ", argument.name, "=[");
      for (const auto& item : *list) absl::StrAppend(&text, item.literal, " ");
      absl::StrAppend(&text, "]");
    }
  }
  return text;
}

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_TESTING_RANDOM_NODES_H_
