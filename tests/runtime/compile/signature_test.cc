#include "runtime/compile/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using base::TensorView;
using models::SymExpr;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::MakeTensor;
using testing::MustBeOk;
using testing::Sym;
using testing::Views;

// dense [b, 3], ids [n], offsets [b + 1], flat [4·b]; out [b, n] and [u].
class SignatureTest : public ::testing::Test {
 protected:
  SignatureTest() {
    builder_.Input("dense", DType::kFloat32, {Sym("b"), 3});
    builder_.Input("ids", DType::kInt64, {Sym("n")});
    builder_.Input("offsets", DType::kInt64, {Sym("b") + SymExpr(1)});
    builder_.Input("flat", DType::kInt32, {SymExpr(4) * Sym("b")});
    const auto nodes =
        builder_.Nodes("test.made_up.default", {},
                       {{DType::kFloat32, {Sym("b"), SymExpr(2) * Sym("n")}},
                        {DType::kFloat32, {Sym("u")}}});
    builder_.Output(nodes[0]);
    builder_.Output(nodes[1]);
    models::Graph& graph = builder_.graph();
    graph.batch_symbol = "b";
    graph.symbols = {{"b", 1, 100}, {"n", 0, 50}};
  }

  Signature Make() {
    const models::Graph& graph = builder_.graph();
    return Signature(graph, graph.inputs, graph.outputs);
  }
  static std::vector<base::Tensor> Request(int64_t b, int64_t n,
                                           int64_t offsets, int64_t flat) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(MakeTensor<float>({b, 3}, std::vector<float>(b * 3)));
    inputs.push_back(MakeTensor<int64_t>({n}, std::vector<int64_t>(n)));
    inputs.push_back(
        MakeTensor<int64_t>({offsets}, std::vector<int64_t>(offsets)));
    inputs.push_back(MakeTensor<int32_t>({flat}, std::vector<int32_t>(flat)));
    return inputs;
  }
  std::string ErrorOf(const std::vector<TensorView>& inputs) {
    SymbolValues symbols;
    const absl::Status status = Make().Bind(inputs, symbols);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  std::string ErrorOf(const std::vector<base::Tensor>& inputs) {
    return ErrorOf(Views(inputs));
  }

  GraphBuilder builder_;
};

TEST_F(SignatureTest, LearnsSymbolsAndGivesShapes) {
  const Signature signature = Make();
  SymbolValues symbols;
  for (int64_t b : {5, 1}) {  // the same object again
    const auto request = Request(b, 7, b + 1, 4 * b);
    MustBeOk(signature.Bind(Views(request), symbols));
    const auto spec = signature.OutputSpec(0, symbols);
    ASSERT_TRUE(spec.has_value());
    EXPECT_EQ(spec->dtype, DType::kFloat32);
    EXPECT_EQ(spec->dims, base::Dims({b, 14}));
    EXPECT_FALSE(signature.OutputSpec(1, symbols).has_value());
    EXPECT_EQ(signature.Batch(Views(request)), b);
  }
}

TEST_F(SignatureTest, SolvesForABatchThatNoInputShowsAlone) {
  const models::Graph& graph = builder_.graph();
  const Signature signature(graph, {graph.inputs[2]}, {});
  std::vector<base::Tensor> inputs;
  inputs.push_back(MakeTensor<int64_t>({8}, std::vector<int64_t>(8)));
  EXPECT_EQ(signature.Batch(Views(inputs)), 7);
  const Signature flat(graph, {graph.inputs[3]}, {});
  inputs.clear();
  inputs.push_back(MakeTensor<int32_t>({10}, std::vector<int32_t>(10)));
  SymbolValues symbols;
  EXPECT_THAT(std::string(flat.Bind(Views(inputs), symbols).message()),
              HasSubstr("input 'flat': dimension 0 is 10"));
  const Signature none(graph, {graph.inputs[1]}, {});
  inputs.clear();
  inputs.push_back(MakeTensor<int64_t>({3}, {1, 2, 3}));
  EXPECT_FALSE(none.Batch(Views(inputs)).has_value());
}

TEST_F(SignatureTest, NamesTheInputThatDisagrees) {
  EXPECT_EQ(ErrorOf(Request(3, 7, 5, 12)),
            "input 'offsets': dimension 0 is 5, expected 4 (b + 1, where input "
            "'dense' makes b = 3)");
  EXPECT_THAT(ErrorOf(Request(3, 7, 4, 11)),
              HasSubstr("input 'flat': dimension 0 is 11, expected 12"));
}

TEST_F(SignatureTest, NamesTheInputOfTheWrongTypeOrShape) {
  const auto good = Request(2, 3, 3, 8);
  std::vector<TensorView> views = Views(good);
  views[1].dtype = DType::kInt32;
  EXPECT_EQ(ErrorOf(views),
            "input 'ids': element type is int32, expected int64");
  views = Views(good);
  views[0].dims = {3, 2};
  EXPECT_THAT(ErrorOf(views),
              HasSubstr("input 'dense': dimension 1 is 2, expected 3"));
  views[0].dims = {6};
  EXPECT_EQ(ErrorOf(views),
            "input 'dense': shape is [6], expected 2 dimensions");
  views[0].dims = {-2, -3};
  EXPECT_THAT(ErrorOf(views), HasSubstr("input 'dense': negative dimension"));
  views[0].dims = {int64_t{1} << 61, 3};
  EXPECT_THAT(ErrorOf(views), HasSubstr("overflows"));
  views[0].dims = {4, 3};
  EXPECT_EQ(ErrorOf(views),
            "input 'dense': holds 24 bytes where shape [4, 3] of float32 needs "
            "48");
  views = Views(good);
  views[1].data = nullptr;
  EXPECT_EQ(ErrorOf(views), "input 'ids': has no data");
  views.pop_back();
  EXPECT_EQ(ErrorOf(views), "3 inputs given, 4 expected");
}

TEST_F(SignatureTest, NamesTheInputOutOfRange) {
  EXPECT_EQ(ErrorOf(Request(0, 3, 1, 0)), "input 'dense': the batch is empty");
  EXPECT_EQ(ErrorOf(Request(101, 3, 102, 404)),
            "input 'dense': b is 101, which the model limits to 1 … 100");
  EXPECT_THAT(ErrorOf(Request(2, 51, 3, 8)), HasSubstr("input 'ids': n is 51"));
  for (models::SymbolRange& range : builder_.graph().symbols) {
    if (range.symbol == "n")
      range = {.symbol = "n", .min = 3, .max = INT64_MAX};
  }
  EXPECT_EQ(ErrorOf(Request(2, 2, 3, 8)),
            "input 'ids': n is 2, which the model limits to 3 or more");
  builder_.graph().min_batch = 2;
  EXPECT_THAT(ErrorOf(Request(1, 3, 2, 4)),
              HasSubstr("input 'dense': the batch is 1"));
}

TEST_F(SignatureTest, WithoutABatchSymbolZeroRowsAreFine) {
  builder_.graph().batch_symbol.clear();
  builder_.graph().symbols.clear();
  SymbolValues symbols;
  MustBeOk(Make().Bind(Views(Request(0, 3, 1, 0)), symbols));
}

}  // namespace
}  // namespace refract::runtime
