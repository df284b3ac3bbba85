#include "models/passes/float_ids.h"

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
  Model& Join() {  // with itself
    const ValueList both = {last_, last_};
    last_ =
        Node_("aten.cat.default", {{"tensors", both}, {"dim", int64_t{1}}},
              graph_.values[last_].dtype, {SymExpr::Symbol("B"), SymExpr(2)});
    return *this;
  }
  Graph LookUp() {
    const ValueId found =
        Node_("aten.embedding.default",
              {{"weight", ValueRef{table_}}, {"indices", ValueRef{last_}}},
              DType::kFloat32, {SymExpr::Symbol("B"), SymExpr(1), SymExpr(4)});
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
  ASSERT_EQ(FindFloatIds(graph).size(), 1u);
  EXPECT_TRUE(CheckFloatIds(graph).ok());
}

TEST(FloatIdsTest, ALargerTableIsRefusedByName) {
  const Graph graph = Model(kLimit + 1).Column(7).Cast(DType::kInt64).LookUp();
  const absl::Status status = CheckFloatIds(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"big.weight", "column 7", "features", "16777216",
                           "16777217 rows", "float32"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(FloatIdsTest, SeenThroughViewsRoundingBoundsAndJoins) {
  for (const char* op :
       {"aten.round.default", "aten.clamp.default", "aten.view.default",
        "aten.squeeze.dim", "aten.nan_to_num.default"}) {
    const Graph graph = Model(kLimit * 2)
                            .Column(3)
                            .Step(op, {}, DType::kFloat32)
                            .Join()
                            .Cast(DType::kInt64)
                            .LookUp();
    EXPECT_FALSE(CheckFloatIds(graph).ok()) << op;
  }
}

TEST(FloatIdsTest, SeveralColumnsAtOnceAreOneUse) {
  const Graph graph = Model(kLimit * 2).Cast(DType::kInt64).LookUp();
  ASSERT_EQ(FindFloatIds(graph).size(), 1u);
  EXPECT_EQ(FindFloatIds(graph)[0].column, -1);
  EXPECT_FALSE(CheckFloatIds(graph).ok());
}

TEST(FloatIdsTest, ANegativeColumnIsCountedFromTheEnd) {
  const Graph graph = Model(10)
                          .Step("aten.select.int",
                                {{"dim", int64_t{-1}}, {"index", int64_t{-2}}},
                                DType::kFloat32, {SymExpr::Symbol("B")})
                          .Cast(DType::kInt64)
                          .LookUp();
  ASSERT_EQ(FindFloatIds(graph).size(), 1u);
  EXPECT_EQ(FindFloatIds(graph)[0].column, 28);
}

TEST(FloatIdsTest, EachTypeHasItsLimit) {
  const auto limit = [](DType dtype) {
    const auto found =
        FindFloatIds(Model(10, dtype).Cast(DType::kInt64).LookUp());
    return found.size() == 1 ? found[0].limit : -1;
  };
  EXPECT_EQ(limit(DType::kBFloat16), 256);
  EXPECT_EQ(limit(DType::kFloat16), 2048);
  EXPECT_EQ(limit(DType::kFloat32), kLimit);
  EXPECT_EQ(limit(DType::kFloat64), int64_t{1} << 53);
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

TEST(FloatIdsTest, IntegersAndComputedBucketsAreNotMeant) {
  EXPECT_TRUE(FindFloatIds(Model(kLimit * 2, DType::kInt64).LookUp()).empty());
  EXPECT_TRUE(FindFloatIds(Model(kLimit * 2)
                               .Column(1)
                               .Step("aten.mul.Tensor", {}, DType::kFloat32)
                               .Cast(DType::kInt64)
                               .LookUp())
                  .empty());
}

}  // namespace
}  // namespace refract::models
