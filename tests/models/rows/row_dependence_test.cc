#include "models/rows/row_dependence.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/graph_proto.h"
#include "proto/graph.pb.h"
#include "tests/models/rows/graph_maker.h"

namespace refract::models {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

ValueRef Ref(ValueId id) { return ValueRef{id}; }
NamedArgument Dim(int64_t dim) { return {"dim", dim}; }
NamedArgument Dims(absl::string_view name, std::vector<int64_t> dims) {
  IntList list;
  for (const int64_t dim : dims) list.push_back({.literal = dim});
  return {std::string(name), list};
}

// One operator on "self" [B, 4] or of another shape.
struct Case {
  std::string op;
  std::vector<NamedArgument> args;
  std::string result = "B,4";
  std::string self = "B,4";
};

RowDependence Find(const Case& given) {
  Maker maker;
  std::vector<NamedArgument> args = given.args;
  args.push_back({"self", Ref(maker.Input(given.self))});
  return FindRowDependence(
      maker.Return({maker.Op(given.op, args, given.result)}));
}

TEST(RowDependenceTest, OperatorsAlongTheBatchBringRowsTogether) {
  for (const Case& given : std::vector<Case>{
           {"softmax.int", {Dim(0)}},
           {"_softmax.default", {Dim(-2)}},
           {"_log_softmax.default", {Dim(0)}},
           {"_safe_softmax.default", {Dim(0)}},
           {"mean.dim", {Dims("dim", {0})}, "4"},
           {"mean.default", {}, ""},
           {"sum.dim_IntList", {Dims("dim", {1, 0})}, ""},
           {"var.correction", {Dims("dim", {0}), {"keepdim", true}}, "1,4"},
           {"cumsum.default", {Dim(0)}},
           {"sort.default", {Dim(0)}},
           {"topk.default", {{"k", int64_t{2}}, Dim(0)}, "2,4"},
           {"topk.default", {{"k", int64_t{2}}}, "2", "B"},
           {"roll.default", {Dims("dims", {0})}},
           {"roll.default", {Dims("shifts", {1})}},
           {"flip.default", {Dims("dims", {0, 1})}},
           {"select.int", {Dim(0), {"index", int64_t{0}}}, "4"},
           {"slice.Tensor", {Dim(0), {"start", int64_t{1}}}, "B-1,4"},
           {"view.default", {}, "B//2,8"},
           {"view.default", {}, "4,B"},
           {"unique_consecutive.default", {}, "u0"}}) {
    const RowDependence found = Find(given);
    EXPECT_NE(found.use, RowUse::kAlone) << given.op << " to " << given.result;
    EXPECT_FALSE(found.may_split) << given.op;
    EXPECT_FALSE(found.may_coalesce) << given.op;
    EXPECT_THAT(found.why, HasSubstr(given.op)) << given.op;
    EXPECT_THAT(found.node, HasSubstr("node"));
  }
}

TEST(RowDependenceTest, OperatorsWithinRowsKeepThemApart) {
  for (const Case& given : std::vector<Case>{
           {"softmax.int", {Dim(1)}},
           {"_safe_softmax.default", {Dim(-1)}},
           {"mean.dim", {Dims("dim", {-1})}, "B"},
           {"mean.dim", {Dims("dim", {-1}), {"keepdim", true}}, "B,1"},
           {"topk.default", {{"k", int64_t{2}}}, "B,2"},
           {"sort.default", {Dim(1)}},
           {"relu.default", {}},
           {"flip.default", {Dims("dims", {1})}},
           {"cumsum.default", {Dim(1)}},
           {"select.int", {Dim(1), {"index", int64_t{0}}}, "B"},
           {"slice.Tensor", {Dim(1), {"start", int64_t{1}}}, "B,3"},
           {"unsqueeze.default", {Dim(0)}, "1,B,4"},
           {"view.default", {}, "B,2,2"},
           {"view.default", {}, "4*B"},
           {"reshape.default", {}, "2*B,2"},
           {"layer_norm.default", {Dims("normalized_shape", {4})}}}) {
    Case fixed = given;
    RowDependence found = Find(fixed);
    if (given.op == "layer_norm.default") {
      Maker maker;
      const ValueId x = maker.Input("B,4");
      found = FindRowDependence(maker.Return({maker.Op(
          given.op, {{"input", Ref(x)}, given.args[0]}, given.result)}));
    }
    EXPECT_EQ(found.use, RowUse::kAlone) << given.op << ": " << found.why;
    EXPECT_THAT(found.node, IsEmpty()) << given.op;
  }
}

// Histories of all items in one vector, as FuxiCTR passes them.
TEST(RowDependenceTest, ItemsOfSeveralEntries) {
  for (const bool by_item : {true, false}) {
    Maker maker;
    const ValueId ids = maker.Ids("3*B");
    const ValueId rows = maker.Op(
        "embedding.default",
        {{"weight", Ref(maker.Weight("100,4"))}, {"indices", Ref(ids)}},
        "3*B,4");
    const ValueId view = maker.Op("view.default", {{"self", Ref(rows)}},
                                  by_item ? "B,3,4" : "3,B,4");
    const ValueId sum =
        maker.Op("sum.dim_IntList",
                 {{"self", Ref(view)}, Dims("dim", {by_item ? 1 : 0})}, "B,4");
    const Graph graph = maker.Return({sum});
    SplitPlan plan;
    plan.stages = {Stage::kCnPre, Stage::kHn, Stage::kHn};
    ComputeCrossings(graph, plan);
    MarkRows(graph, plan);
    for (const RowDependence& found : {plan.rows, plan.hn_rows}) {
      // Entries that lie feature after feature are neither proved to depend on
      // other items nor cut item by item.
      EXPECT_EQ(found.use, by_item ? RowUse::kAlone : RowUse::kUnknown)
          << found.why;
      EXPECT_EQ(found.may_coalesce, by_item) << found.why;
    }
  }
}

// Integers that are no ids may be lengths of bags, feature after feature.
TEST(RowDependenceTest, EntriesOfItemsInVectors) {
  Maker maker;
  const ValueId lengths = maker.Ids("3*B");
  const ValueId ids = maker.Ids("3*B");
  const ValueId of_bags = maker.Ids("3*B");
  const ValueId offsets = maker.Ids("B");
  const ValueId floats = maker.Input("3*B");
  const ValueId matrix = maker.Ids("3*B,2");
  const ValueId more = maker.Input("3*B + 1");
  const ValueId items = maker.Ids("B");
  const Graph graph = maker.Return(
      {maker.Op("embedding.default",
                {{"weight", Ref(maker.Weight("100,4"))}, {"indices", Ref(ids)}},
                "3*B,4"),
       maker.Op("embedding_bag.padding_idx",
                {{"weight", Ref(maker.Weight("100,4"))},
                 {"indices", Ref(of_bags)},
                 {"offsets", Ref(offsets)}},
                "B,4")});
  const std::vector<IdInput> uses = FindIdInputs(graph);
  const auto entries = [&](ValueId id) {
    return EntriesPerItem(graph, uses, id, 0);
  };
  EXPECT_EQ(entries(lengths), 0);
  EXPECT_EQ(entries(ids), 3);
  EXPECT_EQ(entries(of_bags), 0);
  EXPECT_EQ(entries(floats), 3);
  EXPECT_EQ(entries(matrix), 3);
  EXPECT_EQ(entries(more), 0);
  EXPECT_EQ(entries(items), 1);
}

// Bounds that all rows share have no place of a row, whatever their number.
TEST(RowDependenceTest, BucketsOfValues) {
  struct Case {
    std::string values, bounds;
    bool of_rows;  // the bounds are an input that differs by row
    RowUse use;
  };
  const Case cases[] = {
      {"B", "7", false, RowUse::kAlone},
      {"B", "B", false, RowUse::kAlone},
      {"B,3", "7", false, RowUse::kAlone},
      {"B,3", "B,7", true, RowUse::kAlone},
      {"B", "B", true, RowUse::kTogether},
      {"3,B", "3,B", true, RowUse::kTogether},
  };
  for (const Case& given : cases) {
    Maker maker;
    const ValueId values = maker.Input(given.values);
    const ValueId bounds =
        given.of_rows ? maker.Input(given.bounds) : maker.Weight(given.bounds);
    const RowDependence found = FindRowDependence(maker.Return(
        {maker.Op("searchsorted.Tensor",
                  {{"sorted_sequence", Ref(bounds)}, {"self", Ref(values)}},
                  given.values, base::DType::kInt64)}));
    EXPECT_EQ(found.use, given.use)
        << given.values << " in " << given.bounds << ": " << found.why;
  }
  Maker maker;
  const ValueId price = maker.Input("B");
  const RowDependence found = FindRowDependence(maker.Return(
      {maker.Op("bucketize.Tensor",
                {{"self", Ref(price)}, {"boundaries", Ref(maker.Weight("7"))}},
                "B", base::DType::kInt64)}));
  EXPECT_TRUE(found.may_coalesce) << found.why;
}

TEST(RowDependenceTest, InBatchNegatives) {
  Maker maker;
  const ValueId x = maker.Input("B,4");
  const ValueId turned = maker.Op("t.default", {{"self", Ref(x)}}, "4,B");
  const ValueId scores =
      maker.Op("mm.default", {{"self", Ref(x)}, {"mat2", Ref(turned)}}, "B,B");
  const RowDependence found = FindRowDependence(maker.Return({scores}));
  EXPECT_EQ(found.use, RowUse::kTogether);
  EXPECT_THAT(found.why,
              HasSubstr("(aten.mm.default) combines rows of the batch"));
}

TEST(RowDependenceTest, ProductsWithWeightsAndWithTheSameRows) {
  Maker maker;
  const ValueId x = maker.Input("B,7,4");
  const ValueId linear = maker.Op(
      "linear.default",
      {{"input", Ref(x)}, {"weight", Ref(maker.Weight("4,4"))}}, "B,7,4");
  const ValueId turned = maker.Op(
      "transpose.int",
      {{"self", Ref(linear)}, {"dim0", int64_t{1}}, {"dim1", int64_t{2}}},
      "B,4,7");
  const ValueId gram = maker.Op(
      "bmm.default", {{"self", Ref(x)}, {"mat2", Ref(turned)}}, "B,7,7");
  const ValueId sum =
      maker.Op("einsum.default",
               {{"equation", std::string("bij,...jk->b...ik")},
                {"tensors", ValueList{gram, maker.Weight("7,3")}}},
               "B,7,3");
  const RowDependence found = FindRowDependence(maker.Return({sum}));
  EXPECT_TRUE(found.may_coalesce) << found.why;
}

// Layers fold the batch into another dimension, turn it, and take it out again.
TEST(RowDependenceTest, BatchFoldedAndUnfolded) {
  for (const auto& [unfolded, alone] :
       std::vector<std::pair<std::string, bool>>{{"7,B,4", true},
                                                 {"B,7,4", false}}) {
    Maker maker;
    const ValueId x = maker.Input("B,7,4");
    const ValueId turned =
        maker.Op("permute.default", {{"self", Ref(x)}, Dims("dims", {1, 0, 2})},
                 "7,B,4");
    const ValueId flat =
        maker.Op("reshape.default", {{"self", Ref(turned)}}, "7*B,4");
    const ValueId relu =
        maker.Op("relu.default", {{"self", Ref(flat)}}, "7*B,4");
    const ValueId back =
        maker.Op("view.default", {{"self", Ref(relu)}}, unfolded);
    const std::vector<int64_t> order =
        alone ? std::vector<int64_t>{1, 0, 2} : std::vector<int64_t>{0, 1, 2};
    const ValueId out = maker.Op(
        "permute.default", {{"self", Ref(back)}, Dims("dims", order)}, "B,7,4");
    const RowDependence found = FindRowDependence(maker.Return({out}));
    EXPECT_EQ(found.may_coalesce, alone) << unfolded << ": " << found.why;
  }
}

TEST(RowDependenceTest, BatchNormInTrainingAndInEvaluation) {
  for (const bool training : {false, true}) {
    Maker maker;
    const ValueId x = maker.Input("B,4");
    const ValueId out = maker.Op("batch_norm.default",
                                 {{"input", Ref(x)},
                                  {"running_mean", Ref(maker.Weight("4"))},
                                  {"running_var", Ref(maker.Weight("4"))},
                                  {"training", training}},
                                 "B,4");
    const RowDependence found = FindRowDependence(maker.Return({out}));
    EXPECT_EQ(found.use, training ? RowUse::kTogether : RowUse::kAlone);
  }
}

TEST(RowDependenceTest, SizeOfTheBatchAsAValue) {
  Maker maker;
  const ValueId x = maker.Input("B,4");
  const ValueId count = maker.Size("B");
  const ValueId out =
      maker.Op("div.Tensor", {{"self", Ref(x)}, {"other", Ref(count)}}, "B,4");
  const RowDependence found = FindRowDependence(maker.Return({out}));
  EXPECT_EQ(found.use, RowUse::kTogether);
  EXPECT_THAT(found.why, HasSubstr("aten.div.Tensor"));
}

TEST(RowDependenceTest, SizeOfTheBatchAsASize) {
  Maker maker;
  const ValueId x = maker.Input("B,4");
  const ValueId count = maker.Size("B");
  const ValueId zeros =
      maker.Op("zeros.default",
               {{"size", IntList{{.value = count}, {.literal = 4}}}}, "B,4");
  const ValueId out =
      maker.Op("add.Tensor", {{"self", Ref(x)}, {"other", Ref(zeros)}}, "B,4");
  EXPECT_TRUE(FindRowDependence(maker.Return({out})).may_coalesce);
}

// h[arange(B), last] picks each row's own step; a permutation of rows does not,
// nor does a row's number as a value.
TEST(RowDependenceTest, RowsByTheirNumber) {
  for (const int what : {0, 1, 2}) {
    Maker maker;
    const ValueId h = maker.Input("B,7,4");
    const ValueId last = maker.Ids("B");
    const ValueId number =
        maker.Op("arange.default", {{"end", Ref(maker.Size("B"))}}, "B",
                 base::DType::kInt64);
    ValueId out = kNoValue;
    if (what == 0) {
      out = maker.Op("index.Tensor",
                     {{"self", Ref(h)}, {"indices", ValueList{number, last}}},
                     "B,4");
    } else if (what == 1) {
      out = maker.Op("index.Tensor",
                     {{"self", Ref(h)}, {"indices", ValueList{last}}}, "B,7,4");
    } else {
      out = maker.Op(
          "embedding.default",
          {{"weight", Ref(maker.Weight("100,4"))}, {"indices", Ref(number)}},
          "B,4");
    }
    const RowDependence found = FindRowDependence(maker.Return({out}));
    EXPECT_EQ(found.use, what == 0 ? RowUse::kAlone : RowUse::kTogether)
        << what << ": " << found.why;
  }
}

TEST(RowDependenceTest, BagsAreRowsOnceTheyArePooled) {
  Maker maker;
  const ValueId ids = maker.Ids("N");
  const ValueId lengths = maker.Ids("B");
  const ValueId ends =
      maker.Op("cumsum.default", {{"self", Ref(lengths)}, Dim(0)}, "B",
               base::DType::kInt64);
  const ValueId offsets =
      maker.Op("sub.Tensor", {{"self", Ref(ends)}, {"other", Ref(lengths)}},
               "B", base::DType::kInt64);
  const ValueId pooled = maker.Op("embedding_bag.padding_idx",
                                  {{"weight", Ref(maker.Weight("100,4"))},
                                   {"indices", Ref(ids)},
                                   {"offsets", Ref(offsets)}},
                                  "B,4");
  const RowDependence found = FindRowDependence(maker.Return({pooled}));
  EXPECT_EQ(found.use, RowUse::kAlone) << found.why;
  // Offsets do not follow each other as rows do.
  EXPECT_FALSE(found.may_coalesce);
}

// Meta's DLRM with learned weights of pooling: a weight per id.
TEST(RowDependenceTest, AGatherFromAWeightFollowsTheIdsOfBags) {
  for (const int64_t dim : {0, 1}) {
    Maker maker;
    const ValueId ids = maker.Ids("N,2");
    const ValueId offsets = maker.Ids("B");
    const ValueId weights =
        maker.Op("gather.default",
                 {{"self", Ref(maker.Weight(dim == 0 ? "100,2" : "N,100"))},
                  {"dim", dim},
                  {"index", Ref(ids)}},
                 "N,2");
    const ValueId column = maker.Op(
        "select.int",
        {{"self", Ref(weights)}, {"dim", int64_t{1}}, {"index", int64_t{0}}},
        "N");
    const ValueId id = maker.Op(
        "select.int",
        {{"self", Ref(ids)}, {"dim", int64_t{1}}, {"index", int64_t{0}}}, "N",
        base::DType::kInt64);
    const ValueId pooled = maker.Op("embedding_bag.padding_idx",
                                    {{"weight", Ref(maker.Weight("100,4"))},
                                     {"indices", Ref(id)},
                                     {"offsets", Ref(offsets)},
                                     {"per_sample_weights", Ref(column)}},
                                    "B,4");
    const RowDependence found = FindRowDependence(maker.Return({pooled}));
    // Along dimension 1 a place of the weight belongs to a place of the ids.
    EXPECT_EQ(found.use, dim == 0 ? RowUse::kAlone : RowUse::kTogether)
        << found.why;
  }
}

TEST(RowDependenceTest, WhatAllRowsShareMayBeCutNotPutTogether) {
  Maker maker;
  const ValueId x = maker.Input("B,4");
  const ValueId user = maker.Input("1,4");
  const ValueId out =
      maker.Op("mul.Tensor", {{"self", Ref(x)}, {"other", Ref(user)}}, "B,4");
  const RowDependence found = FindRowDependence(maker.Return({out}));
  EXPECT_EQ(found.use, RowUse::kAlone);
  EXPECT_TRUE(found.may_split);
  EXPECT_FALSE(found.may_coalesce);
  EXPECT_THAT(found.why, HasSubstr("shared by all rows"));
}

// Positions 0, 1, … of a history are looked up on the CN: the result crosses.
TEST(RowDependenceTest, WhatIsMadeOfSizesAloneHindersNoRequest) {
  Maker maker;
  const ValueId history = maker.Input("B,T,4");
  const ValueId steps = maker.Op("arange.default", {{"end", int64_t{50}}}, "T",
                                 base::DType::kInt64);
  const ValueId positions = maker.Op(
      "embedding.default",
      {{"weight", Ref(maker.Weight("50,4"))}, {"indices", Ref(steps)}}, "T,4");
  const ValueId out =
      maker.Op("add.Tensor",
               {{"self", Ref(history)}, {"other", Ref(positions)}}, "B,T,4");
  const Graph graph = maker.Return({out});
  SplitPlan plan;
  plan.stages = {Stage::kCnPre, Stage::kCnPre, Stage::kHn};
  ComputeCrossings(graph, plan);
  MarkRows(graph, plan);
  EXPECT_EQ(plan.up.size(), 2u);
  EXPECT_TRUE(plan.hn_rows.may_coalesce) << plan.hn_rows.why;

  // Sizes of another input belong to its request.
  Maker other;
  const ValueId x = other.Input("B,T,4");
  const ValueId user = other.Input("T", base::DType::kInt64);
  const ValueId own = other.Op(
      "embedding.default",
      {{"weight", Ref(other.Weight("50,4"))}, {"indices", Ref(user)}}, "T,4");
  const Graph of_user = other.Return({other.Op(
      "add.Tensor", {{"self", Ref(x)}, {"other", Ref(own)}}, "B,T,4")});
  plan.stages = {Stage::kCnPre, Stage::kHn};
  ComputeCrossings(of_user, plan);
  MarkRows(of_user, plan);
  EXPECT_FALSE(plan.hn_rows.may_coalesce);
  EXPECT_THAT(plan.hn_rows.why,
              HasSubstr("the result of aten.embedding.default ("));
}

TEST(RowDependenceTest, OperatorsOfOthersAreNotTrusted) {
  Maker maker;
  const ValueId x = maker.Input("B,4");
  Graph graph = maker.Return({maker.Op("secret", {{"self", Ref(x)}}, "B,4")});
  graph.nodes[0].op = "mylib.secret.default";
  const RowDependence found = FindRowDependence(graph);
  EXPECT_EQ(found.use, RowUse::kUnknown);
  EXPECT_FALSE(found.may_split);
  EXPECT_THAT(found.why, HasSubstr("mylib.secret.default) has no rule"));
}

TEST(RowDependenceTest, RowsAcrossAxesNeverMeet) {
  Maker maker;
  const ValueId a = maker.Op("unsqueeze.default",
                             {{"self", Ref(maker.Input("B"))}, Dim(0)}, "1,B");
  const ValueId b = maker.Op("unsqueeze.default",
                             {{"self", Ref(maker.Input("B"))}, Dim(1)}, "B,1");
  const ValueId pairs =
      maker.Op("sub.Tensor", {{"self", Ref(a)}, {"other", Ref(b)}}, "B,B");
  EXPECT_EQ(FindRowDependence(maker.Return({pairs})).use, RowUse::kTogether);
}

// Mixing on the CN leaves the HN part free; mixing on the HN binds it.
TEST(RowDependenceTest, ThePartOnTheHnIsJudgedAlone) {
  Maker maker;
  const ValueId x = maker.Input("B,4");
  const ValueId centred =
      maker.Op("softmax.int", {{"self", Ref(x)}, Dim(0)}, "B,4");
  const ValueId out = maker.Op(
      "linear.default",
      {{"input", Ref(centred)}, {"weight", Ref(maker.Weight("1,4"))}}, "B,1");
  const Graph graph = maker.Return({out});
  SplitPlan plan;
  plan.stages = {Stage::kCnPre, Stage::kHn};
  ComputeCrossings(graph, plan);
  MarkRows(graph, plan);
  EXPECT_EQ(plan.rows.use, RowUse::kTogether);
  EXPECT_TRUE(plan.hn_rows.may_coalesce) << plan.hn_rows.why;

  plan.stages = {Stage::kHn, Stage::kHn};
  ComputeCrossings(graph, plan);
  MarkRows(graph, plan);
  EXPECT_FALSE(plan.hn_rows.may_coalesce);

  plan.stages = {Stage::kCnPre, Stage::kCnPre};
  ComputeCrossings(graph, plan);
  MarkRows(graph, plan);
  EXPECT_THAT(plan.hn_rows.why, HasSubstr("the plan has no HN part"));
}

TEST(RowDependenceTest, APlanThatClaimsTooMuchIsRefused) {
  Maker maker;
  const ValueId x = maker.Input("B,4");
  const Graph graph = maker.Return(
      {maker.Op("softmax.int", {{"self", Ref(x)}, Dim(0)}, "B,4")});
  SplitPlan plan;
  plan.stages = {Stage::kHn};
  ComputeCrossings(graph, plan);
  MarkRows(graph, plan);
  EXPECT_TRUE(ValidatePlan(graph, {}, plan).ok());
  plan.hn_rows = {
      .use = RowUse::kAlone, .may_split = true, .may_coalesce = true};
  const absl::Status status = ValidatePlan(graph, {}, plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("aten.softmax.int"));
}

TEST(RowDependenceTest, SurvivesStorage) {
  Maker maker;
  const ValueId x = maker.Input("B,4");
  Graph graph = maker.Return(
      {maker.Op("softmax.int", {{"self", Ref(x)}, Dim(0)}, "B,4")});
  graph.rows = FindRowDependence(graph);
  const absl::StatusOr<Graph> read = FromProto(ToProto(graph));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rows, graph.rows);

  const std::string path = ::testing::TempDir() + "/row_dependence_plan.pb";
  SplitPlan plan;
  plan.stages = {Stage::kHn};
  ComputeCrossings(graph, plan);
  MarkRows(graph, plan);
  ASSERT_TRUE(SavePlan(graph, plan, path).ok());
  const absl::StatusOr<SplitPlan> loaded = LoadPlan(graph, path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->rows, plan.rows);
  EXPECT_EQ(loaded->hn_rows, plan.hn_rows);
}

TEST(RowDependenceTest, StoredClaimsThatContradictThemselvesAreRefused) {
  proto::RowDependence stored;
  stored.set_use(2);
  stored.set_may_coalesce(true);
  EXPECT_EQ(FromProto(stored).status().code(),
            absl::StatusCode::kInvalidArgument);
  stored.set_use(9);
  EXPECT_EQ(FromProto(stored).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace refract::models
