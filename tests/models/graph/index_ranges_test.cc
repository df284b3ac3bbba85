#include "models/graph/index_ranges.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::models {
namespace {

using base::DType;
using ::testing::HasSubstr;

// Features [B, 30] → steps → ids → a table of `rows`.
class Model {
 public:
  explicit Model(int64_t rows, DType dtype = DType::kFloat32) {
    input_ = Add("features", dtype, {SymExpr::Symbol("B"), SymExpr(30)});
    graph_.inputs = {input_};
    table_ = Add("table", DType::kFloat32, {SymExpr(rows), SymExpr(4)});
    graph_.values[table_].weight = "big.weight";
    last_ = input_;
  }
  Model& Step(std::string op, std::vector<NamedArgument> args, DType dtype,
              std::vector<SymExpr> shape = {SymExpr::Symbol("B"), SymExpr(1)}) {
    args.insert(args.begin(), {"self", ValueRef{last_}});
    last_ = Node_(std::move(op), std::move(args), dtype, std::move(shape));
    return *this;
  }
  Model& Column(int64_t first) {
    return Step("aten.slice.Tensor",
                {{"dim", int64_t{1}}, {"start", first}, {"end", first + 1}},
                DType::kFloat32);
  }
  Model& Cast(DType dtype) {
    return Step("aten.to.dtype", {{"dtype", dtype}}, dtype);
  }
  Model& Join() { return Join({last_, last_}); }  // with itself
  Model& Join(ValueList values, std::string op = "aten.cat.default") {
    last_ = Node_(
        std::move(op), {{"tensors", std::move(values)}, {"dim", int64_t{1}}},
        graph_.values[last_].dtype, {SymExpr::Symbol("B"), SymExpr(2)});
    return *this;
  }
  ValueId last() const { return last_; }
  // Truth values made of other values.
  ValueId Mask(ValueId from) {
    return Node_("aten.gt.Scalar",
                 {{"self", ValueRef{from}}, {"other", int64_t{0}}},
                 DType::kBool, {SymExpr::Symbol("B"), SymExpr(1)});
  }
  Model& Where(ValueId condition, ValueId self) {
    last_ =
        Node_("aten.where.ScalarOther",
              {{"condition", ValueRef{condition}},
               {"self", ValueRef{self}},
               {"other", int64_t{0}}},
              graph_.values[self].dtype, {SymExpr::Symbol("B"), SymExpr(1)});
    return *this;
  }
  Graph LookUp() {
    return LookUp("aten.embedding.default",
                  {{"weight", ValueRef{table_}}, {"indices", ValueRef{last_}}});
  }
  // The table's elements, by an operator of PyTorch for tensors.
  Graph Gather(std::string op, std::vector<NamedArgument> args) {
    args.insert(args.begin(), {"self", ValueRef{table_}});
    args.push_back({"index", ValueRef{last_}});
    return LookUp(std::move(op), std::move(args));
  }
  Graph LookUp(std::string op, std::vector<NamedArgument> args) {
    const ValueId found = Node_(std::move(op), std::move(args), DType::kFloat32,
                                {SymExpr::Symbol("B"), SymExpr(1), SymExpr(4)});
    graph_.outputs = {found};
    graph_.output_names = {"output_0"};
    EXPECT_TRUE(ValidateGraph(graph_).ok());
    return graph_;
  }

 private:
  ValueId Add(std::string name, DType dtype, std::vector<SymExpr> shape) {
    Value value;
    value.name = std::move(name);
    value.dtype = dtype;
    value.has_shape = true;
    value.shape = std::move(shape);
    return graph_.AddValue(value);
  }
  ValueId Node_(std::string op, std::vector<NamedArgument> args, DType dtype,
                std::vector<SymExpr> shape) {
    const std::string number = std::to_string(graph_.nodes.size());
    const ValueId id = Add(absl::StrCat("v", number), dtype, std::move(shape));
    graph_.values[id].producer = static_cast<NodeId>(graph_.nodes.size());
    Node node;
    node.name = absl::StrCat("n", number);
    node.op = std::move(op);
    node.args = std::move(args);
    node.outputs = {id};
    graph_.nodes.push_back(node);
    return id;
  }

  Graph graph_;
  ValueId input_, table_, last_;
};

constexpr int64_t kLimit = int64_t{1} << 24;

TEST(FloatIdsTest, ATableThatFloatsCanAddressIsFine) {
  const Graph graph = Model(kLimit).Column(7).Cast(DType::kInt64).LookUp();
  EXPECT_TRUE(CheckFloatIds(graph).ok());
}

TEST(FloatIdsTest, ALargerTableIsRefusedByName) {
  const Graph graph = Model(kLimit + 1).Column(7).Cast(DType::kInt64).LookUp();
  const absl::Status status = CheckFloatIds(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "table big.weight has 16777217 rows, but its ids come from column "
            "7 of input features as float32, which names whole numbers only up "
            "to 16777216 (node n2); give the model ids as integers");
}

TEST(FloatIdsTest, SeenThroughViewsRoundingBoundsAndJoins) {
  for (const char* op :
       {"aten.round.default",      "aten.floor.default",
        "aten.ceil.default",       "aten.trunc.default",
        "aten.fix.default",        "aten.abs.default",
        "aten.relu.default",       "aten.clamp.default",
        "aten.clip.default",       "aten.clamp_min.default",
        "aten.clamp_max.default",  "aten.view.default",
        "aten.squeeze.dim",        "aten.nan_to_num.default",
        "aten.repeat.default",     "aten.tile.default",
        "aten.expand.default",     "aten.index_select.default",
        "aten.flip.default",       "aten.roll.default",
        "aten.clone.default",      "aten.contiguous.default",
        "aten.copy.default",       "aten.type_as.default",
        "aten._to_copy.default",   "aten.lift_fresh_copy.default",
        "aten.masked_fill.Scalar", "aten.index.Tensor"}) {
    const Graph graph = Model(kLimit * 2)
                            .Column(3)
                            .Step(op, {}, DType::kFloat32)
                            .Join()
                            .Cast(DType::kInt64)
                            .LookUp();
    EXPECT_FALSE(CheckFloatIds(graph).ok()) << op;
  }
}

TEST(FloatIdsTest, SeenThroughEveryJoin) {
  for (const char* op :
       {"aten.cat.default", "aten.stack.default", "aten.concat.default",
        "aten.hstack.default", "aten.column_stack.default"}) {
    // The ids are a later operand.
    Model model(kLimit * 2);
    const ValueId input = model.last();
    const ValueId ids = model.Column(3).Cast(DType::kInt64).last();
    const ValueId mask = model.Mask(input);
    const Graph graph = model.Join({mask, ids}, op).LookUp();
    EXPECT_THAT(std::string(CheckFloatIds(graph).message()),
                HasSubstr("column 3 of input features"))
        << op;
  }
}

TEST(FloatIdsTest, WhatChoosesBetweenIdsIsNone) {
  Model model(kLimit * 2);
  const ValueId mask = model.Mask(model.last());
  const ValueId ids = model.Column(3).last();
  EXPECT_FALSE(
      CheckFloatIds(model.Where(mask, ids).Cast(DType::kInt64).LookUp()).ok());
  // Floats are a condition here, and nothing else.
  Model integers(kLimit * 2, DType::kInt64);
  const ValueId input = integers.last();
  const ValueId condition = integers.Cast(DType::kFloat32).last();
  EXPECT_TRUE(CheckFloatIds(integers.Where(condition, input).LookUp()).ok());
}

// A mask keeps ids or makes them 0.
TEST(FloatIdsTest, AMaskIsNoArithmetic) {
  Model model(kLimit * 2);
  const ValueId mask = model.Mask(model.last());
  const Graph graph =
      model.Column(3)
          .Cast(DType::kInt64)
          .Step("aten.mul.Tensor", {{"other", ValueRef{mask}}}, DType::kInt64)
          .LookUp();
  EXPECT_FALSE(CheckFloatIds(graph).ok());
}

TEST(FloatIdsTest, SeveralColumnsAtOnceAreOneUse) {
  const Graph graph = Model(kLimit * 2).Cast(DType::kInt64).LookUp();
  EXPECT_THAT(std::string(CheckFloatIds(graph).message()),
              HasSubstr("its ids come from input features as"));
}

TEST(FloatIdsTest, ANegativeColumnIsCountedFromTheEnd) {
  const Graph graph = Model(kLimit * 2)
                          .Step("aten.select.int",
                                {{"dim", int64_t{-1}}, {"index", int64_t{-2}}},
                                DType::kFloat32, {SymExpr::Symbol("B")})
                          .Cast(DType::kInt64)
                          .LookUp();
  EXPECT_THAT(std::string(CheckFloatIds(graph).message()),
              HasSubstr("column 28 of input features"));
}

TEST(FloatIdsTest, EachTypeHasItsLimit) {
  for (const auto& [dtype, limit] : std::vector<std::pair<DType, int64_t>>{
           {DType::kBFloat16, 256},
           {DType::kFloat16, 2048},
           {DType::kFloat32, kLimit},
           {DType::kFloat64, int64_t{1} << 53}}) {
    const auto check = [dtype = dtype](int64_t rows) {
      return CheckFloatIds(Model(rows, dtype).Cast(DType::kInt64).LookUp());
    };
    EXPECT_TRUE(check(limit).ok()) << limit;
    EXPECT_THAT(std::string(check(limit + 1).message()),
                HasSubstr(absl::StrCat("only up to ", limit)));
  }
}

TEST(FloatIdsTest, TheNarrowestTypeOnTheWayCounts) {
  const Graph graph = Model(5000, DType::kInt64)
                          .Cast(DType::kFloat16)
                          .Cast(DType::kFloat32)
                          .Cast(DType::kInt64)
                          .LookUp();
  const absl::Status status = CheckFloatIds(graph);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2048"));
}

// Ids that reach a look-up on two ways are too narrow if either way is, in
// whatever order the ways are.
TEST(FloatIdsTest, EachWayToALookUpCounts) {
  for (const bool narrow_first : {false, true}) {
    Model model(5000, DType::kInt64);
    const ValueId ids = model.last();
    const ValueId narrow =
        model.Cast(DType::kFloat16).Cast(DType::kInt64).last();
    EXPECT_FALSE(CheckFloatIds(model
                                   .Join(narrow_first ? ValueList{narrow, ids}
                                                      : ValueList{ids, narrow})
                                   .LookUp())
                     .ok());
    Model shifted(kLimit * 2);
    const ValueId floats = shifted.Cast(DType::kInt64).last();
    const ValueId next =
        shifted.Step("aten.add.Tensor", {{"other", int64_t{1}}}, DType::kInt64)
            .last();
    EXPECT_FALSE(CheckFloatIds(shifted
                                   .Join(narrow_first ? ValueList{next, floats}
                                                      : ValueList{floats, next})
                                   .LookUp())
                     .ok());
  }
}

TEST(FloatIdsTest, IntegersAndComputedBucketsAreNotMeant) {
  EXPECT_TRUE(CheckFloatIds(Model(kLimit * 2, DType::kInt64).LookUp()).ok());
  for (const auto& [op, other] : std::vector<std::pair<std::string, Argument>>{
           {"aten.mul.Tensor", None{}},
           {"aten.mul.Tensor", int64_t{3}},
           {"aten.add.Tensor", int64_t{1}},
           {"aten.add.Tensor", 0.5}}) {
    EXPECT_TRUE(CheckFloatIds(Model(kLimit * 2)
                                  .Column(1)
                                  .Step(op, {{"other", other}}, DType::kFloat32)
                                  .Cast(DType::kInt64)
                                  .LookUp())
                    .ok())
        << op;
  }
}

TEST(FloatIdsTest, EveryFormOfALookUp) {
  const auto ids = [] {
    return Model(kLimit + 1).Column(7).Cast(DType::kInt64);
  };
  EXPECT_FALSE(CheckFloatIds(ids().Gather("aten.index_select.default",
                                          {{"dim", int64_t{0}}}))
                   .ok());
  EXPECT_FALSE(
      CheckFloatIds(ids().Gather("aten.gather.default", {{"dim", int64_t{0}}}))
          .ok());
  EXPECT_FALSE(CheckFloatIds(ids().Gather("aten.take.default", {})).ok());
  // The table has four columns.
  EXPECT_TRUE(
      CheckFloatIds(ids().Gather("aten.gather.default", {{"dim", int64_t{1}}}))
          .ok());
}

// Rounding, joins and choices leave the range of an input as it is.
TEST(IndexRangesTest, OfWhatIsRoundedJoinedOrChosen) {
  Model model(50);
  const ValueId input = model.last();
  const ValueId mask = model.Mask(input);
  const ValueId column = model.Column(3).last();
  model.Where(mask, column).Step("aten.round.default", {}, DType::kFloat32);
  const ValueId rounded = model.last();
  const Graph graph = model.Join({rounded, rounded}, "aten.hstack.default")
                          .Cast(DType::kInt64)
                          .LookUp();
  const std::vector<IndexRange> found = FindIndexRanges(graph);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].input, input);
  EXPECT_EQ(found[0].least, 0);
  EXPECT_EQ(found[0].end.constant(), 50);
}

// The same input as an index and, beside it, shifted: both ranges hold.
TEST(IndexRangesTest, OfEachWayToALookUp) {
  for (const bool shifted_first : {false, true}) {
    Model model(50, DType::kInt64);
    const ValueId input = model.last();
    const ValueId shifted =
        model.Step("aten.sub.Tensor", {{"other", int64_t{2}}}, DType::kInt64)
            .last();
    const std::vector<IndexRange> found =
        FindIndexRanges(model
                            .Join(shifted_first ? ValueList{shifted, input}
                                                : ValueList{input, shifted})
                            .LookUp());
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].least, 2);
    EXPECT_EQ(found[0].end.constant(), 50);
  }
}

}  // namespace
}  // namespace refract::models
