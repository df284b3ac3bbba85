// Kernels that move, join and count elements: LibTorch's bits over odd shapes,
// and the headers' statements on bad input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/runtime/cpu/one_node.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::NamedArgument;
using models::SymExpr;
using models::ValueId;
using ::testing::ElementsAreArray;
using testing::ExpectLikeLibTorch;
using testing::Float;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Ids;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::Must;
using testing::OneNode;
using testing::RandomTensor;
using testing::RandomTensors;
using testing::Ref;
using testing::Sym;

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
      // The stride of such a step is beyond int64.
      {"aten.slice.Tensor", {5, 4}, {Int("step", int64_t{1} << 62)}},
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
      {"aten.unbind.int", {3, 4, 2}, {Int("dim", -2)}, 4},
      {"aten.unbind.int", {3, 4, 2}, {Int("dim", 0)}, 3},
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

// Pieces with the number of rows of another input, and of 2 rows.
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

}  // namespace
}  // namespace refract::runtime
