#include "runtime/batch_padding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/split_run.h"
#include "tests/runtime/testing/run.h"
#include "tests/runtime/testing/small_dlrm.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using ::testing::ElementsAre;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::MakeTensor;
using testing::Must;
using testing::MustBeOk;
using testing::Ref;
using testing::SmallDlrm;
using testing::Sym;
using testing::ValuesOf;
using testing::Views;

// The output that is divided by the batch depends on other rows; no test here
// reads it where rows are added.
void SetMinBatch(SmallDlrm& dlrm, int64_t min_batch) {
  dlrm.builder().graph().min_batch = min_batch;
  dlrm.builder().graph().rows.use = models::RowUse::kAlone;
}

TEST(BatchPaddingTest, AddsARowAndAnEmptyBag) {
  SmallDlrm dlrm;
  SetMinBatch(dlrm, 2);
  const BatchPadding padding(dlrm.builder().graph());
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<float>({1, 3}, {1, 2, 3}));
  request.push_back(MakeTensor<int64_t>({2}, {4, 5}));
  request.push_back(MakeTensor<int64_t>({1}, {6}));
  request.push_back(MakeTensor<int64_t>({2}, {0, 2}));
  request.push_back(MakeTensor<int64_t>({2}, {0, 1}));
  PaddedBatch batch;
  MustBeOk(padding.Pad(Views(request), batch));
  EXPECT_EQ(batch.rows(), 1);
  EXPECT_EQ(batch.inputs()[0].dims, base::Dims({2, 3}));
  EXPECT_THAT(ValuesOf<float>(batch.inputs()[0]),
              ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_EQ(batch.inputs()[1].data, request[1].data());
  EXPECT_THAT(ValuesOf<int64_t>(batch.inputs()[3]), ElementsAre(0, 2, 2));
  EXPECT_THAT(ValuesOf<int64_t>(batch.inputs()[4]), ElementsAre(0, 1, 1));
}

TEST(BatchPaddingTest, LeavesLargeEnoughBatchesAlone) {
  SmallDlrm dlrm;
  const auto request = dlrm.Request(1);
  PaddedBatch batch;
  // The graph supports a batch of 1 …
  MustBeOk(BatchPadding(dlrm.builder().graph()).Pad(Views(request), batch));
  EXPECT_FALSE(batch.rows().has_value());
  // … or the batch is 2.
  SetMinBatch(dlrm, 2);
  const auto two = dlrm.Request(2);
  MustBeOk(BatchPadding(dlrm.builder().graph()).Pad(Views(two), batch));
  EXPECT_FALSE(batch.rows().has_value());
  for (size_t i = 0; i < two.size(); ++i) {
    EXPECT_EQ(batch.inputs()[i].data, two[i].data());
  }
}

TEST(BatchPaddingTest, OffsetsWithoutAnEndPointPastTheIds) {
  GraphBuilder builder;
  const auto table = builder.Weight<float>("t", {4, 1}, {1, 10, 100, 1000});
  const auto ids = builder.Input("ids", DType::kInt32, {Sym("n")});
  const auto offsets = builder.Input("offsets", DType::kInt32, {Sym("b")});
  const auto bags = builder.Nodes(
      "aten.embedding_bag.default",
      {Ref("weight", table), Ref("indices", ids), Ref("offsets", offsets)},
      {{DType::kFloat32, {Sym("b"), 1}}});
  builder.graph().nodes[0].outputs.resize(4, models::kNoValue);
  builder.Output(bags[0]);
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 3;
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<int32_t>({3}, {0, 1, 2}));
  request.push_back(MakeTensor<int32_t>({1}, {0}));
  PaddedBatch batch;
  MustBeOk(BatchPadding(builder.graph()).Pad(Views(request), batch));
  EXPECT_THAT(ValuesOf<int32_t>(batch.inputs()[1]), ElementsAre(0, 3, 3));
  const auto out = Must(testing::RunWhole(builder, request));
  EXPECT_EQ(out[0].dims(), base::Dims({1, 1}));
  EXPECT_THAT(ValuesOf<float>(out[0].view()), ElementsAre(111));
}

// A number of ids has another form among floats than among integers.
TEST(BatchPaddingTest, OffsetsThatAreFloatsAreRefused) {
  GraphBuilder builder;
  const auto ids = builder.Input("ids", DType::kInt64, {Sym("n")});
  const auto floats = builder.Input("floats", DType::kFloat32, {Sym("b")});
  const auto offsets =
      builder.Node("aten._to_copy.default", {Ref("self", floats)},
                   {DType::kInt64, {Sym("b")}});
  builder.Output(builder.Nodes(
      "aten.embedding_bag.default",
      {Ref("weight", builder.Weight<float>("t", {2, 1}, {1, 10})),
       Ref("indices", ids), Ref("offsets", offsets)},
      {{DType::kFloat32, {Sym("b"), 1}}})[0]);
  builder.graph().nodes.back().outputs.resize(4, models::kNoValue);
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 2;
  builder.graph().rows.use = models::RowUse::kAlone;
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<int64_t>({2}, {0, 1}));
  request.push_back(MakeTensor<float>({1}, {0}));
  PaddedBatch batch;
  const absl::Status status =
      BatchPadding(builder.graph()).Pad(Views(request), batch);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("input 'floats'"));
}

// Meta's DLRM: a matrix of offsets has the bags of a table in each row. The ids
// are a matrix of as many rows, or a list for each table.
TEST(BatchPaddingTest, FeatureMajorMatricesArePaddedRowByRow) {
  for (const bool lists : {false, true}) {
    SCOPED_TRACE(lists);
    GraphBuilder builder;
    const auto offsets = builder.Input("offsets", DType::kInt64, {2, Sym("b")});
    std::vector<models::ValueId> ids;
    for (const char* name :
         lists ? std::vector{"ids_0", "ids_1"} : std::vector{"ids"}) {
      ids.push_back(lists ? builder.Input(name, DType::kInt64, {Sym(name)})
                          : builder.Input(name, DType::kInt64, {2, Sym("n")}));
    }
    const auto row = [&](models::ValueId matrix, int64_t index,
                         const char* size) {
      return builder.Node(
          "aten.select.int",
          {Ref("self", matrix), Int("dim", 0), Int("index", index)},
          {DType::kInt64, {Sym(size)}});
    };
    for (int64_t i = 0; i < 2; ++i) {
      const auto table =
          builder.Weight<float>(i == 0 ? "t" : "u", {4, 1}, {1, 10, 100, 1000});
      builder.Output(
          builder.Nodes("aten.embedding_bag.default",
                        {Ref("weight", table),
                         Ref("indices", lists ? ids[i] : row(ids[0], i, "n")),
                         Ref("offsets", row(offsets, i, "b"))},
                        {{DType::kFloat32, {Sym("b"), 1}}})[0]);
      builder.graph().nodes.back().outputs.resize(4, models::kNoValue);
    }
    builder.graph().batch_symbol = "b";
    builder.graph().min_batch = 3;
    std::vector<base::Tensor> request;
    request.push_back(MakeTensor<int64_t>({2, 2}, {0, 2, 0, 1}));
    if (lists) {
      request.push_back(MakeTensor<int64_t>({3}, {0, 1, 2}));
      request.push_back(MakeTensor<int64_t>({4}, {3, 3, 2, 1}));
    } else {
      request.push_back(MakeTensor<int64_t>({2, 3}, {0, 1, 2, 3, 3, 2}));
    }
    PaddedBatch batch;
    MustBeOk(BatchPadding(builder.graph()).Pad(Views(request), batch));
    EXPECT_EQ(batch.inputs()[0].dims, base::Dims({2, 3}));
    EXPECT_THAT(ValuesOf<int64_t>(batch.inputs()[0]),
                ElementsAre(0, 2, 3, 0, 1, lists ? 4 : 3));
    const auto out = Must(testing::RunWhole(builder, request));
    EXPECT_THAT(ValuesOf<float>(out[0].view()), ElementsAre(11, 100));
    EXPECT_THAT(ValuesOf<float>(out[1].view()),
                ElementsAre(1000, lists ? 1110 : 1100));
  }
}

// TorchRec's KeyedJaggedTensor: lengths of the bags of two tables, one table
// after the other.
TEST(BatchPaddingTest, EachPieceOfLengthsGetsEmptyBags) {
  GraphBuilder builder;
  const auto ids = builder.Input("ids", DType::kInt64, {Sym("n")});
  const auto lengths =
      builder.Input("lengths", DType::kInt32, {Sym("b") + Sym("b")});
  const auto rows =
      builder.Node("aten.view.default",
                   {Ref("self", lengths), testing::Ints("size", {2, -1})},
                   {DType::kInt32, {2, Sym("b")}});
  const auto ends =
      builder.Node("aten.cumsum.default", {Ref("self", rows), Int("dim", 1)},
                   {DType::kInt64, {2, Sym("b")}});
  const auto pieces =
      builder.Nodes("aten.split_with_sizes.default",
                    {Ref("self", ids), testing::Ints("split_sizes", {1, 1})},
                    {{DType::kInt64, {Sym("p")}}, {DType::kInt64, {Sym("q")}}});
  for (int64_t i = 0; i < 2; ++i) {
    const auto row = builder.Node(
        "aten.select.int", {Ref("self", ends), Int("dim", 0), Int("index", i)},
        {DType::kInt64, {Sym("b")}});
    builder.Output(builder.Nodes(
        "aten.embedding_bag.default",
        {Ref("weight",
             builder.Weight<float>(i == 0 ? "t" : "u", {2, 1}, {1, 10})),
         Ref("indices", pieces[i]), Ref("offsets", row)},
        {{DType::kFloat32, {Sym("b"), 1}}})[0]);
    builder.graph().nodes.back().outputs.resize(4, models::kNoValue);
  }
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 3;
  builder.graph().rows.use = models::RowUse::kAlone;
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<int64_t>({2}, {0, 1}));
  request.push_back(MakeTensor<int32_t>({4}, {1, 0, 0, 1}));
  PaddedBatch batch;
  MustBeOk(BatchPadding(builder.graph()).Pad(Views(request), batch));
  EXPECT_EQ(batch.inputs()[0].data, request[0].data());
  EXPECT_EQ(batch.inputs()[1].dims, base::Dims({6}));
  EXPECT_THAT(ValuesOf<int32_t>(batch.inputs()[1]),
              ElementsAre(1, 0, 0, 0, 1, 0));
}

TEST(BatchPaddingTest, ItemsOfSeveralEntriesAreRepeated) {
  GraphBuilder builder;
  const auto table = builder.Weight<float>("t", {4, 1}, {1, 10, 100, 1000});
  const auto ids =
      builder.Input("ids", DType::kInt32, {SymExpr::Symbol("b") * 2});
  const auto rows = builder.Node("aten.embedding.default",
                                 {Ref("weight", table), Ref("indices", ids)},
                                 {DType::kFloat32, {Sym("b") * 2, 1}});
  const auto items = builder.Node("aten.view.default", {Ref("self", rows)},
                                  {DType::kFloat32, {Sym("b"), 2}});
  builder.Output(items);
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 3;
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<int32_t>({4}, {0, 1, 2, 3}));
  PaddedBatch batch;
  MustBeOk(BatchPadding(builder.graph()).Pad(Views(request), batch));
  EXPECT_THAT(ValuesOf<int32_t>(batch.inputs()[0]),
              ElementsAre(0, 1, 2, 3, 2, 3));
  // No whole number of items.
  request[0] = MakeTensor<int32_t>({5}, {0, 1, 2, 3, 0});
  MustBeOk(BatchPadding(builder.graph()).Pad(Views(request), batch));
  EXPECT_FALSE(batch.rows().has_value());
}

TEST(BatchPaddingTest, ItemsInTheSecondDimensionAreRepeated) {
  GraphBuilder builder;
  const auto table = builder.Weight<float>("t", {4, 1}, {1, 10, 100, 1000});
  const auto ids = builder.Input("ids", DType::kInt32, {2, Sym("b")});
  const auto row = builder.Node(
      "aten.select.int", {Ref("self", ids), Int("dim", 0), Int("index", 1)},
      {DType::kInt32, {Sym("b")}});
  builder.Output(builder.Node("aten.embedding.default",
                              {Ref("weight", table), Ref("indices", row)},
                              {DType::kFloat32, {Sym("b"), 1}}));
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 3;
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<int32_t>({2, 2}, {0, 1, 2, 3}));
  PaddedBatch batch;
  MustBeOk(BatchPadding(builder.graph()).Pad(Views(request), batch));
  EXPECT_THAT(ValuesOf<int32_t>(batch.inputs()[0]),
              ElementsAre(0, 1, 1, 2, 3, 3));
  const auto out = Must(testing::RunWhole(builder, request));
  EXPECT_THAT(ValuesOf<float>(out[0].view()), ElementsAre(100, 1000));
}

TEST(BatchPaddingTest, ResultsWithItemsInTheSecondDimensionAreNotCut) {
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {2, Sym("b")});
  builder.Output(builder.Node("aten.relu.default", {Ref("self", x)},
                              {DType::kFloat32, {2, Sym("b")}}));
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 3;
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<float>({2, 1}, {1, 2}));
  const auto status = testing::RunWhole(builder, request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be cut"));
}

TEST(BatchPaddingTest, OffsetsOfAColumnOfIdsCannotBePadded) {
  // The size of the input does not show where the ids of this column end.
  GraphBuilder builder;
  const auto table = builder.Weight<float>("t", {2, 1}, {1, 10});
  const auto ids = builder.Input("ids", DType::kInt64, {Sym("n"), 2});
  const auto offsets = builder.Input("offsets", DType::kInt64, {Sym("b")});
  const auto column = builder.Node(
      "aten.select.int", {Ref("self", ids), Int("dim", 1), Int("index", 0)},
      {DType::kInt64, {Sym("n")}});
  builder.Output(builder.Nodes(
      "aten.embedding_bag.default",
      {Ref("weight", table), Ref("indices", column), Ref("offsets", offsets)},
      {{DType::kFloat32, {Sym("b"), 1}}})[0]);
  builder.graph().nodes[1].outputs.resize(4, models::kNoValue);
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 2;
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<int64_t>({1, 2}, {0, 1}));
  request.push_back(MakeTensor<int64_t>({1}, {0}));
  const auto status = testing::RunWhole(builder, request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("input 'offsets'"));
}

TEST(BatchPaddingTest, SmallBatchesGetTheirOwnScoresSplitAndUnsplit) {
  SmallDlrm dlrm;
  SetMinBatch(dlrm, 4);
  const auto weights = dlrm.builder().Weights();
  const models::Graph& graph = dlrm.builder().graph();
  auto whole = Must(RequestRunner::Whole(graph, weights, {}));
  auto split = Must(RequestRunner::Split(graph, dlrm.Plan(), weights, {}));
  for (int64_t batch : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(batch);
    const auto request = dlrm.Request(batch);
    const auto out = Must(whole->Run(Views(request)));
    const auto other = Must(split->Run(Views(request)));
    const auto expected = dlrm.Reference(request);
    ASSERT_EQ(out[0].dims(), base::Dims({batch}));
    for (int64_t i = 0; i < batch; ++i) {
      EXPECT_NEAR(out[0].view().as<float>()[i], expected.squeezed[i], 1e-5);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_TRUE(testing::SameBits(out[i], other[i])) << "output " << i;
    }
    // Outputs that do not follow the batch keep their size.
    EXPECT_EQ(out[4].dims()[0], 1);
  }
}

// x − mean(x) over the batch, exported with Dim("b", min=4).
void BuildCentred(GraphBuilder& builder) {
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 2});
  const auto mean = builder.Node("aten.mean.dim",
                                 {Ref("self", x), testing::Ints("dim", {0}),
                                  testing::Bool("keepdim", true)},
                                 {DType::kFloat32, {1, 2}});
  builder.Output(builder.Node("aten.sub.Tensor",
                              {Ref("self", x), Ref("other", mean)},
                              {DType::kFloat32, {Sym("b"), 2}}));
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 4;
}

TEST(BatchPaddingTest, RefusesSmallBatchesWhereRowsDependOnEachOther) {
  for (const bool known : {false, true}) {
    SCOPED_TRACE(known ? "found by import" : "found from the graph");
    GraphBuilder builder;
    BuildCentred(builder);
    if (known) {
      builder.graph().rows = {.use = models::RowUse::kTogether,
                              .why = "by a mean"};
    }
    EXPECT_EQ(SmallestBatch(builder.graph()), 4);
    std::vector<base::Tensor> three;
    three.push_back(MakeTensor<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
    const auto status = testing::RunWhole(builder, three).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("input 'x': the batch is 3; the model needs 4 "
                          "rows or more"));
    if (known) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("by a mean"));
    }
    std::vector<base::Tensor> four;
    four.push_back(MakeTensor<float>({4, 2}, {1, 0, 3, 0, 5, 0, 7, 4}));
    const auto out = Must(testing::RunWhole(builder, four));
    EXPECT_THAT(ValuesOf<float>(out[0].view()),
                ElementsAre(-3, -1, -1, -1, 1, -1, 3, 3));
  }
  SmallDlrm dlrm;
  SetMinBatch(dlrm, 4);
  EXPECT_EQ(SmallestBatch(dlrm.builder().graph()), 1);
}

TEST(BatchPaddingTest, NamesAnInputThatCannotBePadded) {
  GraphBuilder builder;
  const auto x =
      builder.Input("flat", DType::kFloat32, {SymExpr(2) * Sym("b") + 1});
  builder.Input("rows", DType::kFloat32, {Sym("b")});
  builder.Output(builder.Node("aten.relu.default", {Ref("self", x)},
                              {DType::kFloat32, {SymExpr(2) * Sym("b") + 1}}));
  builder.graph().batch_symbol = "b";
  builder.graph().min_batch = 2;
  std::vector<base::Tensor> request;
  request.push_back(MakeTensor<float>({3}, {1, 2, 3}));
  request.push_back(MakeTensor<float>({1}, {1}));
  const auto status = testing::RunWhole(builder, request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("input 'flat'"));
}

TEST(BatchPaddingTest, WrongInputsAreLeftToTheProgramToRefuse) {
  SmallDlrm dlrm;
  SetMinBatch(dlrm, 2);
  auto request = dlrm.Request(1);
  request[3] = MakeTensor<int64_t>({0}, {});
  const auto status = testing::RunWhole(dlrm.builder(), request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("input 'offsets_0'"));
}

}  // namespace
}  // namespace refract::runtime
