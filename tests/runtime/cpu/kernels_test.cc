// Every other native kernel against LibTorch, bit for bit, over odd shapes, and
// against what its header says of bad input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::IdPolicy;
using models::NamedArgument;
using models::SymExpr;
using models::ValueId;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::Float;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::MakeTensor;
using testing::Must;
using ::testing::Not;
using testing::RandomFloats;
using testing::Ref;
using testing::Sym;

using Ids = std::vector<ValueId>;

// One operator over `tensors`, whose dims the graph leaves open.
struct OneNode {
  OneNode(const std::string& op, const std::vector<base::Tensor>& tensors,
          const std::function<std::vector<NamedArgument>(const Ids&)>& args,
          int num_results = 1) {
    std::vector<ValueId> ids;
    for (const base::Tensor& tensor : tensors) {
      std::vector<SymExpr> shape;
      for (size_t d = 0; d < tensor.dims().size(); ++d) {
        shape.push_back(Sym(absl::StrCat("s", ids.size(), "_", d)));
      }
      ids.push_back(
          builder.Input(absl::StrCat("in", ids.size()), tensor.dtype(), shape));
    }
    std::vector<GraphBuilder::Result> results(num_results);
    for (auto& result : results) result.dtype = tensors[0].dtype();
    const auto outputs = builder.Nodes(op, args(ids), results);
    for (ValueId output : outputs) {
      // The rank is LibTorch's to say.
      auto& value = builder.graph().values[output];
      value.has_shape = false;
      value.shape.clear();
      builder.Output(output);
    }
    builder.graph().nodes[0].output_is_list = num_results > 1;
  }
  GraphBuilder builder;
};

// Native, and the same bits and shapes as LibTorch.
void ExpectLikeLibTorch(OneNode& node, const std::vector<base::Tensor>& in) {
  EXPECT_THAT(testing::KernelsOf(node.builder), Each(Not("libtorch")));
  const auto own = Must(testing::RunWhole(node.builder, in));
  const auto torch = Must(testing::RunByLibTorch(node.builder, in));
  ASSERT_EQ(own.size(), torch.size());
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].dims(), torch[i].dims()) << "result " << i;
    EXPECT_TRUE(testing::SameBits(own[i], torch[i])) << "result " << i;
  }
}

base::Tensor RandomTensor(const base::Dims& dims, std::mt19937& random) {
  base::Tensor tensor = Must(base::Tensor::Allocate(DType::kFloat32, dims));
  const auto values = RandomFloats(tensor.as<float>().size(), random);
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

std::vector<base::Tensor> RandomTensors(std::vector<base::Dims> dims,
                                        std::mt19937& random) {
  std::vector<base::Tensor> tensors;
  for (const base::Dims& each : dims) {
    tensors.push_back(RandomTensor(each, random));
  }
  return tensors;
}

TEST(CopyKernelsTest, MoveWhatLibTorchMoves) {
  std::mt19937 random(1);
  struct Case {
    const char* op;
    base::Dims dims;
    std::vector<NamedArgument> args;
    int num_results = 1;
  };
  const std::vector<Case> cases = {
      {"aten.slice.Tensor", {7, 5}, {Int("dim", 1), Int("start", 1)}},
      {"aten.slice.Tensor", {7, 5}, {Int("start", -3), Int("end", 99)}},
      {"aten.slice.Tensor",
       {9, 4},
       {Int("dim", 0), Int("start", 1), Int("end", 8), Int("step", 3)}},
      {"aten.slice.Tensor",
       {5, 3},
       {Int("dim", 0), Int("start", 4), Int("end", 2)}},
      {"aten.select.int", {3, 4, 5}, {Int("dim", 1), Int("index", -1)}},
      {"aten.select.int", {6}, {Int("dim", 0), Int("index", 2)}},
      {"aten.narrow.default",
       {4, 6},
       {Int("dim", 1), Int("start", 2), Int("length", 3)}},
      {"aten.expand.default", {1, 3}, {Ints("size", {4, -1})}},
      {"aten.expand.default", {3}, {Ints("size", {2, 5, 3})}},
      {"aten.expand.default", {2, 1, 3}, {Ints("size", {2, 4, 3})}},
      {"aten.permute.default", {2, 3, 4}, {Ints("dims", {2, 0, 1})}},
      {"aten.permute.default", {2, 3, 4}, {Ints("dims", {0, -1, 1})}},
      {"aten.transpose.int", {5, 3, 2}, {Int("dim0", 1), Int("dim1", 2)}},
      {"aten.transpose.int", {5, 0}, {Int("dim0", 0), Int("dim1", 1)}},
      {"aten.t.default", {4, 7}, {}},
      {"aten.t.default", {4}, {}},
      {"aten.unbind.int", {3, 4}, {Int("dim", 1)}, 4},
      {"aten.split.Tensor", {7, 3}, {Int("split_size", 3)}, 3},
      {"aten.split.Tensor", {2, 8}, {Int("split_size", 4), Int("dim", -1)}, 2},
      {"aten.chunk.default", {2, 7}, {Int("chunks", 3), Int("dim", 1)}, 3},
      {"aten.chunk.default", {5, 2}, {Int("chunks", 4)}, 3},
      {"aten.chunk.default", {2, 0}, {Int("chunks", 3), Int("dim", -1)}, 3},
      {"aten.unflatten.int", {3, 8}, {Int("dim", 1), Ints("sizes", {2, -1})}},
      {"aten.unflatten.int",
       {6, 2},
       {Int("dim", -2), Ints("sizes", {3, 2, 1})}},
      {"aten.split_with_sizes.default",
       {2, 8},
       {Ints("split_sizes", {1, 0, 7}), Int("dim", 1)},
       3},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.op, " ", base::DimsToString(c.dims)));
    std::vector<base::Tensor> in;
    in.push_back(RandomTensor(c.dims, random));
    OneNode node(
        c.op, in,
        [&](const Ids& ids) {
          std::vector<NamedArgument> args = {Ref("self", ids[0])};
          args.insert(args.end(), c.args.begin(), c.args.end());
          return args;
        },
        c.num_results);
    ExpectLikeLibTorch(node, in);
  }
}

TEST(CopyKernelsTest, MoveElementsOfEverySize) {
  for (DType dtype : {DType::kBool, DType::kFloat16, DType::kInt32,
                      DType::kFloat64, DType::kInt64}) {
    SCOPED_TRACE(base::Name(dtype));
    std::vector<base::Tensor> in;
    in.push_back(Must(base::Tensor::Allocate(dtype, {5, 3, 2})));
    for (size_t i = 0; i < in[0].bytes(); ++i) {
      in[0].data()[i] = std::byte{static_cast<unsigned char>(i % 2)};
    }
    OneNode node("aten.permute.default", in, [](const Ids& ids) {
      return std::vector<NamedArgument>{Ref("self", ids[0]),
                                        Ints("dims", {1, 2, 0})};
    });
    ExpectLikeLibTorch(node, in);
  }
}

// Pieces of as many rows as another input has, and of 2.
TEST(CopyKernelsTest, SplitSizesMayComeWithARequest) {
  GraphBuilder builder;
  const auto shape = [](const char* rows) {
    return std::vector<SymExpr>{Sym(rows), 3};
  };
  const ValueId x = builder.Input("x", DType::kFloat32, shape("n"));
  const ValueId y = builder.Input("y", DType::kFloat32, shape("m"));
  const ValueId rows =
      builder.Node("aten.sym_size.int", {Ref("self", y), Int("dim", 0)},
                   {DType::kInt64, {}, models::ValueKind::kSymInt});
  const auto pieces =
      builder.Nodes("aten.split_with_sizes.default",
                    {Ref("self", x),
                     {"split_sizes", models::IntList{{0, rows}, {2}}},
                     Int("dim", 0)},
                    {{DType::kFloat32, shape("m")}, {DType::kFloat32, {2, 3}}});
  for (const ValueId piece : pieces) builder.Output(piece);
  std::mt19937 random(4);
  for (const int64_t first : {0, 1, 5}) {
    const auto in = RandomTensors({{first + 2, 3}, {first, 3}}, random);
    const auto out = Must(testing::RunWhole(builder, in));
    const auto all = in[0].view().as<float>();
    const auto split = static_cast<size_t>(first) * 3;
    EXPECT_THAT(testing::ValuesOf<float>(out[0].view()),
                ElementsAreArray(all.begin(), all.begin() + split));
    EXPECT_THAT(testing::ValuesOf<float>(out[1].view()),
                ElementsAreArray(all.begin() + split, all.end()));
  }
  const auto wrong =
      testing::RunWhole(builder, RandomTensors({{4, 3}, {1, 3}}, random));
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("2 pieces"));
}

TEST(CopyKernelsTest, RefuseWhatDoesNotFit) {
  std::mt19937 random(2);
  struct Case {
    const char* op;
    std::vector<NamedArgument> args;
    int num_results;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"aten.select.int", {Int("dim", 0), Int("index", 3)}, 1, "index 3"},
      {"aten.select.int", {Int("dim", 2), Int("index", 0)}, 1, "dimension 2"},
      {"aten.narrow.default",
       {Int("dim", 1), Int("start", 2), Int("length", 4)},
       1,
       "length 4"},
      {"aten.expand.default", {Ints("size", {3, 5})}, 1, "does not expand"},
      {"aten.unbind.int", {Int("dim", 0)}, 2, "is not 2"},
      {"aten.split.Tensor", {Int("split_size", 1)}, 2, "2 pieces"},
      {"aten.chunk.default", {Int("chunks", 3)}, 2, "2 pieces"},
      {"aten.chunk.default", {Int("chunks", 0)}, 2, "2 pieces"},
      {"aten.unflatten.int",
       {Int("dim", 1), Ints("sizes", {3, 2})},
       1,
       "does not fit"},
      {"aten.split_with_sizes.default",
       {Ints("split_sizes", {1, 1})},
       2,
       "2 pieces"},
      {"aten.split_with_sizes.default",
       {Ints("split_sizes", {4, -1})},
       2,
       "2 pieces"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.op);
    std::vector<base::Tensor> in = RandomTensors({{3, 4}}, random);
    OneNode node(
        c.op, in,
        [&](const Ids& ids) {
          std::vector<NamedArgument> args = {Ref("self", ids[0])};
          args.insert(args.end(), c.args.begin(), c.args.end());
          return args;
        },
        c.num_results);
    const auto out = testing::RunWhole(node.builder, in);
    EXPECT_EQ(out.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(out.status().message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(out.status().message()), HasSubstr("n0"));
  }
}

TEST(CopyKernelsTest, ExpandAsAnotherTensor) {
  std::mt19937 random(5);
  const std::vector<std::pair<base::Dims, base::Dims>> shapes = {
      {{1, 3}, {4, 3}}, {{3}, {2, 5, 3}}, {{2, 1, 3}, {2, 4, 3}},
      {{}, {3, 2}},     {{1, 3}, {0, 3}}, {{2, 2}, {2, 2}}};
  const auto args = [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0]),
                                      Ref("other", ids[1])};
  };
  for (const auto& [from, to] : shapes) {
    SCOPED_TRACE(
        absl::StrCat(base::DimsToString(from), " ", base::DimsToString(to)));
    const auto in = RandomTensors({from, to}, random);
    OneNode node("aten.expand_as.default", in, args);
    ExpectLikeLibTorch(node, in);
  }
  const auto in = RandomTensors({{2, 3}, {4, 3}}, random);
  OneNode node("aten.expand_as.default", in, args);
  EXPECT_THAT(
      std::string(testing::RunWhole(node.builder, in).status().message()),
      HasSubstr("[2, 3] does not expand to [4, 3]"));
}

TEST(IntegerTest, IsLibTorchs) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const std::vector<std::pair<base::Dims, base::Dims>> shapes = {
      {{33}, {33}},
      {{7, 13}, {13}},
      {{7, 13}, {7, 1}},
      {{1, 5}, {4, 1}},
      {{3, 1, 4}, {2, 1}},
      {{}, {6}},
      {{2, 3, 5}, {}},
      {{0, 4}, {4}},
      {{4, 1, 1}, {1, 3, 9}},
      {{1, 1}, {1}},
      {{2, 3, 4, 5}, {3, 1, 5}}};
  const auto tensor = [&](const base::Dims& dims) {
    base::Tensor result = Must(base::Tensor::Allocate(DType::kInt64, dims));
    for (int64_t& value : result.as<int64_t>()) {
      // Few values, so that some are equal; some so large that sums wrap.
      value = static_cast<int64_t>(random() % 5) - 2;
      if (random() % 4 == 0) value = static_cast<int64_t>(random());
    }
    return result;
  };
  for (const char* name :
       {"add.Tensor", "sub.Tensor", "mul.Tensor", "minimum.default",
        "maximum.default", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor",
        "gt.Tensor", "ge.Tensor"}) {
    const std::string op = absl::StrCat("aten.", name);
    const bool truth = op.size() == std::string("aten.eq.Tensor").size();
    const auto run = [&](const std::vector<base::Tensor>& in,
                         const std::vector<NamedArgument>& more) {
      SCOPED_TRACE(op);
      OneNode node(op, in, [&](const Ids& ids) {
        std::vector<NamedArgument> args = {Ref("self", ids[0])};
        if (ids.size() > 1) args.push_back(Ref("other", ids[1]));
        args.insert(args.end(), more.begin(), more.end());
        return args;
      });
      if (truth) {
        const ValueId out = node.builder.graph().nodes[0].outputs[0];
        node.builder.graph().values[out].dtype = DType::kBool;
      }
      ExpectLikeLibTorch(node, in);
    };
    for (const auto& [a, b] : shapes) {
      SCOPED_TRACE(
          absl::StrCat(base::DimsToString(a), " ", base::DimsToString(b)));
      std::vector<base::Tensor> in;
      in.push_back(tensor(a));
      in.push_back(tensor(b));
      run(in, {});
    }
    if (!absl::StrContains(op, "imum")) {
      std::vector<base::Tensor> in;
      in.push_back(tensor({3, 7}));
      run(in, {Int("other", 2)});
      run(in, {Int("other", -(int64_t{1} << 40))});
    }
  }
}

TEST(IntegerTest, LeavesOtherNumbersToLibTorch) {
  std::vector<base::Tensor> in;
  in.push_back(MakeTensor<int64_t>({3}, {1, 2, 3}));
  const auto kernels = [&](const std::vector<NamedArgument>& more,
                           DType result) {
    OneNode node("aten.add.Tensor", in, [&](const Ids& ids) {
      std::vector<NamedArgument> args = {Ref("self", ids[0])};
      args.insert(args.end(), more.begin(), more.end());
      return args;
    });
    const ValueId out = node.builder.graph().nodes[0].outputs[0];
    node.builder.graph().values[out].dtype = result;
    return testing::KernelsOf(node.builder);
  };
  EXPECT_THAT(kernels({Float("other", 0.5)}, DType::kFloat32),
              ElementsAre("libtorch"));
  EXPECT_THAT(kernels({Int("other", 5), Int("alpha", 3)}, DType::kInt64),
              ElementsAre("libtorch"));
  EXPECT_THAT(kernels({Int("other", 5)}, DType::kInt64),
              ElementsAre("int_add"));
}

TEST(RangeTest, CountsLikeLibTorch) {
  struct Case {
    const char* op;
    std::vector<NamedArgument> args;
  };
  const std::vector<Case> cases = {
      {"aten.arange.default", {Int("end", 7)}},
      {"aten.arange.default", {Int("end", 0)}},
      {"aten.arange.start", {Int("start", -3), Int("end", 4)}},
      {"aten.arange.start_step",
       {Int("start", 1), Int("end", 12), Int("step", 5)}},
      {"aten.arange.start_step",
       {Int("start", 4), Int("end", -4), Int("step", -3)}}};
  const auto build = [](const char* op, const std::vector<NamedArgument>& args,
                        GraphBuilder& builder) {
    const auto outputs = builder.Nodes(op, args, {{.dtype = DType::kInt64}});
    auto& value = builder.graph().values[outputs[0]];
    value.has_shape = false;
    value.shape.clear();
    builder.Output(outputs[0]);
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.op);
    GraphBuilder builder;
    build(c.op, c.args, builder);
    const auto own = Must(testing::RunWhole(builder, {}));
    const auto torch = Must(testing::RunByLibTorch(builder, {}));
    EXPECT_EQ(own[0].dims(), torch[0].dims());
    EXPECT_TRUE(testing::SameBits(own[0], torch[0]));
  }
  GraphBuilder builder;
  build("aten.arange.start", {Int("start", 4), Int("end", 1)}, builder);
  const auto refused = testing::RunWhole(builder, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ElementwiseTest, FillsTheShapeOfATensor) {
  std::mt19937 random(6);
  auto in = RandomTensors({{3, 5}}, random);
  in[0].as<float>()[0] = std::nanf("");
  for (const auto& [op, args] :
       std::vector<std::pair<const char*, std::vector<NamedArgument>>>{
           {"aten.zeros_like.default", {}},
           {"aten.ones_like.default", {}},
           {"aten.full_like.default", {Float("fill_value", -2.5)}}}) {
    SCOPED_TRACE(op);
    OneNode node(op, in, [&, &more = args](const Ids& ids) {
      std::vector<NamedArgument> all = {Ref("self", ids[0])};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    });
    ExpectLikeLibTorch(node, in);
  }
}

TEST(CatTest, JoinsLikeLibTorch) {
  std::mt19937 random(3);
  struct Case {
    const char* op;
    std::vector<base::Dims> dims;
    int64_t dim;
  };
  const std::vector<Case> cases = {
      {"aten.cat.default", {{3, 2}, {3, 5}, {3, 1}}, 1},
      {"aten.cat.default", {{3, 2}, {1, 2}}, 0},
      {"aten.cat.default", {{2, 3, 4}, {2, 0, 4}, {2, 1, 4}}, -2},
      {"aten.cat.default", {{0, 2}, {0, 3}}, 1},
      {"aten.stack.default", {{3, 4}, {3, 4}, {3, 4}}, 1},
      {"aten.stack.default", {{3, 4}, {3, 4}}, -1},
      {"aten.stack.default", {{}, {}, {}}, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.op, " ", c.dim));
    const auto in = RandomTensors(c.dims, random);
    OneNode node(c.op, in, [&](const Ids& ids) {
      return std::vector<NamedArgument>{List("tensors", ids),
                                        Int("dim", c.dim)};
    });
    ExpectLikeLibTorch(node, in);
  }
  for (const std::vector<base::Dims>& dims :
       {std::vector<base::Dims>{{3, 2}, {3, 5}},
        {{2, 1, 4}, {2, 3, 4}},
        {{2}, {5}}}) {
    const auto in = RandomTensors(dims, random);
    OneNode node("aten.hstack.default", in, [&](const Ids& ids) {
      return std::vector<NamedArgument>{List("tensors", ids)};
    });
    ExpectLikeLibTorch(node, in);
  }
  const auto in = RandomTensors({{3, 2}, {4, 2}}, random);
  OneNode node("aten.cat.default", in, [&](const Ids& ids) {
    return std::vector<NamedArgument>{List("tensors", ids), Int("dim", 1)};
  });
  EXPECT_THAT(
      std::string(testing::RunWhole(node.builder, in).status().message()),
      HasSubstr("tensor 1 is [4, 2]"));
}

TEST(CastTest, ConvertsLikeLibTorch) {
  const std::vector<float> floats = {0.0f,
                                     -0.0f,
                                     0.5f,
                                     -0.5f,
                                     1.0f,
                                     -1.5f,
                                     2.999f,
                                     1e-30f,
                                     123456.7f,
                                     2147483648.0f,
                                     -2147483648.0f,
                                     -2147483904.0f,
                                     1e18f,
                                     1e20f,
                                     -1e20f,
                                     std::numeric_limits<float>::infinity(),
                                     -std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::quiet_NaN(),
                                     3.4e38f};
  const std::vector<int64_t> integers = {0,
                                         1,
                                         -1,
                                         7,
                                         255,
                                         256,
                                         int64_t{1} << 31,
                                         -(int64_t{1} << 31) - 1,
                                         (int64_t{1} << 24) + 1,
                                         int64_t{1} << 40,
                                         std::numeric_limits<int64_t>::max(),
                                         std::numeric_limits<int64_t>::min()};
  const DType dtypes[] = {DType::kBool, DType::kInt32, DType::kInt64,
                          DType::kFloat32};
  const auto tensor_of = [&](DType dtype) {
    if (dtype == DType::kFloat32) {
      return MakeTensor<float>({static_cast<int64_t>(floats.size())}, floats);
    }
    const auto count = static_cast<int64_t>(integers.size());
    if (dtype == DType::kInt64) return MakeTensor<int64_t>({count}, integers);
    base::Tensor tensor = Must(base::Tensor::Allocate(dtype, {count}));
    for (size_t i = 0; i < integers.size(); ++i) {
      if (dtype == DType::kInt32) {
        tensor.as<int32_t>()[i] = static_cast<int32_t>(integers[i]);
      } else {
        tensor.data()[i] = std::byte{i % 3 == 0};
      }
    }
    return tensor;
  };
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      if (from == to) continue;
      SCOPED_TRACE(absl::StrCat(base::Name(from), " to ", base::Name(to)));
      std::vector<base::Tensor> in;
      in.push_back(tensor_of(from));
      for (const bool copies : {false, true}) {
        OneNode node(copies ? "aten._to_copy.default" : "aten.to.dtype", in,
                     [&](const Ids& ids) {
                       return std::vector<NamedArgument>{
                           Ref("self", ids[0]), NamedArgument{"dtype", to}};
                     });
        const ValueId out = node.builder.graph().nodes[0].outputs[0];
        node.builder.graph().values[out].dtype = to;
        ExpectLikeLibTorch(node, in);
      }
    }
  }
}

TEST(ElementwiseTest, IsBitIdenticalToLibTorch) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::vector<std::pair<base::Dims, base::Dims>> shapes = {
      {{33}, {33}},           {{7, 13}, {13}},
      {{7, 13}, {7, 1}},      {{1, 5}, {4, 1}},
      {{3, 1, 4}, {2, 1}},    {{}, {6}},
      {{2, 3, 5}, {}},        {{0, 4}, {4}},
      {{4, 1, 1}, {1, 3, 9}}, {{2, 3, 4, 5}, {3, 1, 5}},
  };
  for (const char* op : {"aten.add.Tensor", "aten.sub.Tensor",
                         "aten.mul.Tensor", "aten.div.Tensor"}) {
    for (const auto& [a, b] : shapes) {
      SCOPED_TRACE(absl::StrCat(op, " ", base::DimsToString(a), " ",
                                base::DimsToString(b)));
      const auto in = RandomTensors({a, b}, random);
      OneNode node(op, in, [](const Ids& ids) {
        return std::vector<NamedArgument>{Ref("self", ids[0]),
                                          Ref("other", ids[1])};
      });
      ExpectLikeLibTorch(node, in);
    }
    for (const NamedArgument& number :
         {Float("other", 0.1), Float("other", 1e-40), Int("other", 3),
          Int("other", 16777217)}) {
      SCOPED_TRACE(op);
      const auto in = RandomTensors({{5, 7}}, random);
      OneNode node(op, in, [&](const Ids& ids) {
        return std::vector<NamedArgument>{Ref("self", ids[0]), number};
      });
      ExpectLikeLibTorch(node, in);
    }
  }
}

TEST(ElementwiseTest, KeepsSpecialValuesAsLibTorchDoes) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.0f, -0.0f, inf,    -inf,   std::nanf(""),
                               1.0f, -1.0f, 1e-40f, -1e-40f};
  // Longer than a vector register, so that both the main loop and the rest of
  // LibTorch's kernel are seen.
  for (int i = 0; i < 3; ++i) {
    const std::vector<float> copy = values;
    values.insert(values.end(), copy.begin(), copy.end());
  }
  const auto count = static_cast<int64_t>(values.size());
  std::vector<base::Tensor> in;
  in.push_back(MakeTensor<float>({count}, values));
  OneNode relu("aten.relu.default", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0])};
  });
  ExpectLikeLibTorch(relu, in);
  in.push_back(MakeTensor<float>({count}, values));
  std::reverse(in[1].as<float>().begin(), in[1].as<float>().end());
  OneNode mul("aten.mul.Tensor", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0]),
                                      Ref("other", ids[1])};
  });
  const auto own = Must(testing::RunWhole(mul.builder, in));
  const auto torch = Must(testing::RunByLibTorch(mul.builder, in));
  for (int64_t i = 0; i < count; ++i) {
    const float x = own[0].view().as<float>()[i];
    const float y = torch[0].view().as<float>()[i];
    // A NaN's sign is nobody's promise.
    if (std::isnan(y)) {
      EXPECT_TRUE(std::isnan(x)) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(y)) << i;
    }
  }
}

TEST(ElementwiseTest, LeavesWhatIsRoundedToLibTorch) {
  std::mt19937 random(4);
  const auto in = RandomTensors({{5}, {5}}, random);
  OneNode floor("aten.div.Tensor_mode", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0]),
                                      Ref("other", ids[1]),
                                      {"rounding_mode", std::string("floor")}};
  });
  EXPECT_THAT(testing::KernelsOf(floor.builder), ElementsAre("libtorch"));
  EXPECT_TRUE(
      testing::SameBits(Must(testing::RunWhole(floor.builder, in))[0],
                        Must(testing::RunByLibTorch(floor.builder, in))[0]));
}

TEST(ElementwiseTest, RefusesShapesThatDoNotBroadcast) {
  std::mt19937 random(5);
  const auto in = RandomTensors({{2, 3}, {4}}, random);
  OneNode node("aten.add.Tensor", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0]),
                                      Ref("other", ids[1])};
  });
  EXPECT_EQ(testing::RunWhole(node.builder, in).status().message(),
            "n0: shapes [2, 3] and [4] do not broadcast");
}

// A table of 6 rows of 3, read by ids of two dimensions.
struct LookUp {
  explicit LookUp(std::vector<int64_t> values) {
    std::vector<float> table(18);
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<float>(i);
    }
    const auto weight = builder.Weight("users", {6, 3}, table);
    const auto ids = builder.Input("ids", DType::kInt64, {Sym("b"), 2});
    builder.Output(builder.Node(
        "aten.embedding.default",
        {Ref("weight", weight), Ref("indices", ids), Int("padding_idx", 1)},
        {DType::kFloat32, {Sym("b"), 2, 3}}));
    const auto rows = static_cast<int64_t>(values.size()) / 2;
    inputs.push_back(MakeTensor<int64_t>({rows, 2}, values));
  }
  GraphBuilder builder;
  std::vector<base::Tensor> inputs;
};

TEST(EmbeddingTest, CopiesRows) {
  LookUp look_up({5, 0, 1, 1, 3, 2});
  const auto out = Must(testing::RunWhole(look_up.builder, look_up.inputs));
  EXPECT_EQ(out[0].dims(), base::Dims({3, 2, 3}));
  EXPECT_THAT(
      testing::ValuesOf<float>(out[0].view()),
      ElementsAre(15, 16, 17, 0, 1, 2, 3, 4, 5, 3, 4, 5, 9, 10, 11, 6, 7, 8));
}

TEST(EmbeddingTest, FollowsThePolicyOfItsTable) {
  LookUp look_up({5, 6, -1, 1});
  EXPECT_EQ(
      testing::RunWhole(look_up.builder, look_up.inputs).status().message(),
      "table 'users': id 6 at position 1 is outside [0, 6)");
  CompileOptions options;
  RunStats stats;
  options.config.id_policies["users"] = IdPolicy::kZeroRow;
  auto out =
      Must(testing::RunWhole(look_up.builder, look_up.inputs, options, &stats));
  EXPECT_THAT(testing::ValuesOf<float>(out[0].view()),
              ElementsAre(15, 16, 17, 0, 0, 0, 0, 0, 0, 3, 4, 5));
  EXPECT_EQ(stats.replaced_ids, 2);
  options.config.id_policies["users"] = IdPolicy::kDefaultRow;
  out =
      Must(testing::RunWhole(look_up.builder, look_up.inputs, options, &stats));
  EXPECT_THAT(testing::ValuesOf<float>(out[0].view()),
              ElementsAre(15, 16, 17, 0, 1, 2, 0, 1, 2, 3, 4, 5));
  EXPECT_EQ(stats.replaced_ids, 4);
}

TEST(EmbeddingTest, SelectsRowsByIndex) {
  std::mt19937 random(6);
  std::vector<base::Tensor> in = RandomTensors({{5, 3}}, random);
  in.push_back(MakeTensor<int64_t>({4}, {4, 0, 0, 2}));
  OneNode node("aten.index_select.default", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0]), Int("dim", 0),
                                      Ref("index", ids[1])};
  });
  ExpectLikeLibTorch(node, in);
}

}  // namespace
}  // namespace refract::runtime
