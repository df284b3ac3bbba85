// Constant tensors: against LibTorch where the size is known, and against the
// request's size otherwise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::NamedArgument;
using models::ValueId;
using testing::Bool;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::Float;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::MakeTensor;
using testing::Must;
using testing::Ref;
using testing::Sym;

// A tensor [rows of an input + `more`, 3] made by `op`.
class Filled {
 public:
  Filled(const std::string& op, DType dtype, std::vector<NamedArgument> args,
         int64_t more = 0) {
    const GraphBuilder::Result size = {
        DType::kInt64, {}, models::ValueKind::kSymInt};
    const ValueId x = builder_.Input("x", DType::kFloat32, {Sym("n"), 2});
    ValueId rows = builder_.Node("aten.sym_size.int",
                                 {Ref("self", x), Int("dim", 0)}, size);
    rows = builder_.Node("py.add", {Ref("a", rows), Int("b", more)}, size);
    args.push_back({"size", models::IntList{{0, rows}, {3}}});
    if (op.find("new_") != std::string::npos) args.push_back(Ref("self", x));
    const ValueId out = builder_.Node(op, std::move(args), {dtype, {}});
    builder_.graph().values[out].has_shape = false;
    builder_.Output(out);
  }

  absl::StatusOr<base::Tensor> Run(int64_t rows) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(
        MakeTensor<float>({rows, 2}, std::vector<float>(rows * 2, 1.0f)));
    auto outputs = testing::RunWhole(builder_, inputs);
    if (!outputs.ok()) return outputs.status();
    return std::move((*outputs)[0]);
  }
  std::vector<std::string> Kernels() { return testing::KernelsOf(builder_); }

 private:
  GraphBuilder builder_;
};

template <typename T>
void ExpectAll(Filled filled, T value) {
  EXPECT_THAT(filled.Kernels(), ElementsAre("size", "size", "fill"));
  for (const int64_t rows : {1, 5, 40, 0}) {
    const base::Tensor out = Must(filled.Run(rows));
    EXPECT_EQ(out.dims(), base::Dims({rows, 3}));
    EXPECT_THAT(testing::ValuesOf<T>(out.view()), Each(value));
  }
}

TEST(FillTest, TakesItsSizeFromARequest) {
  ExpectAll<float>({"aten.zeros.default", DType::kFloat32, {}}, 0.0f);
  ExpectAll<float>({"aten.new_ones.default", DType::kFloat32, {}}, 1.0f);
  ExpectAll<float>(
      {"aten.full.default", DType::kFloat32, {Float("fill_value", -2.5)}},
      -2.5f);
  ExpectAll<float>(
      {"aten.new_full.default", DType::kFloat32, {Int("fill_value", 7)}}, 7.0f);
  ExpectAll<int64_t>({"aten.ones.default", DType::kInt64, {}}, 1);
  ExpectAll<int64_t>({"aten.full.default",
                      DType::kInt64,
                      {Int("fill_value", -(int64_t{1} << 40))}},
                     -(int64_t{1} << 40));
  ExpectAll<int32_t>({"aten.new_zeros.default", DType::kInt32, {}}, 0);
}

TEST(FillTest, IsLibTorchs) {
  struct Case {
    const char* op;
    DType dtype;
    std::vector<NamedArgument> args;
  };
  const std::vector<Case> cases = {
      {"aten.zeros.default", DType::kFloat32, {}},
      {"aten.ones.default", DType::kBool, {}},
      {"aten.full.default", DType::kFloat32, {Float("fill_value", 0.1)}},
      {"aten.full.default", DType::kFloat32, {Bool("fill_value", true)}},
      {"aten.full.default", DType::kBool, {Int("fill_value", 5)}},
      {"aten.full.default", DType::kInt64, {Bool("fill_value", true)}},
      {"aten.full.default", DType::kInt32, {Int("fill_value", -3)}},
      // Left to LibTorch: another type, and a number that LibTorch rounds.
      {"aten.full.default", DType::kFloat64, {Float("fill_value", 0.1)}},
      {"aten.full.default", DType::kInt64, {Float("fill_value", 2.5)}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.op, " ", base::Name(c.dtype)));
    GraphBuilder builder;
    std::vector<NamedArgument> args = c.args;
    args.push_back(testing::Ints("size", {2, 0, 3}));
    args.push_back({"dtype", c.dtype});
    const ValueId none = builder.Node(c.op, args, {c.dtype, {2, 0, 3}});
    args[args.size() - 2] = testing::Ints("size", {2, 5, 3});
    const ValueId some = builder.Node(c.op, args, {c.dtype, {2, 5, 3}});
    builder.Output(none);
    builder.Output(some);
    const auto own = Must(testing::RunWhole(builder, {}));
    const auto torch = Must(testing::RunByLibTorch(builder, {}));
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(testing::SameBits(own[i], torch[i]));
    }
  }
}

TEST(FillTest, RefusesANegativeSize) {
  Filled filled("aten.zeros.default", DType::kFloat32, {}, -5);
  EXPECT_EQ(Must(filled.Run(7)).dims(), base::Dims({2, 3}));
  const auto refused = filled.Run(3);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("a tensor with a size of -2"));
}

TEST(FillTest, LeavesWhatItCannotHoldToLibTorch) {
  Filled rounded("aten.full.default", DType::kInt64,
                 {Float("fill_value", 2.5)});
  EXPECT_THAT(rounded.Kernels(), ElementsAre("size", "size", "libtorch"));
}

}  // namespace
}  // namespace refract::runtime
