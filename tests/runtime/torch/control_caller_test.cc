#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/control_region.h"
#include "models/graph/script_region.h"
#include "runtime/torch/caller.h"
#include "runtime/torch/loop_limits.h"
#include "tests/runtime/torch/execute.h"

namespace refract::runtime::aten {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

base::Tensor Floats(const std::vector<int64_t>& dims,
                    const std::vector<float>& values) {
  base::Tensor tensor = *base::Tensor::Allocate(base::DType::kFloat32, dims);
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

// A graph of tensors: `inputs` of them, and one node after the other.
class GraphBuilder {
 public:
  explicit GraphBuilder(int inputs) {
    for (int i = 0; i < inputs; ++i) graph_.inputs.push_back(AddValue());
  }
  models::ValueId input(int i) const { return graph_.inputs[i]; }
  models::ValueId Add(const std::string& op,
                      std::vector<models::NamedArgument> args) {
    models::Node node;
    node.name = absl::StrCat("n", graph_.nodes.size());
    node.op = op;
    node.args = std::move(args);
    const models::ValueId result = AddValue();
    graph_.values[result].producer =
        static_cast<models::NodeId>(graph_.nodes.size());
    node.outputs = {result};
    graph_.nodes.push_back(std::move(node));
    return result;
  }
  std::string Pack(const std::vector<models::ValueId>& outputs) {
    graph_.outputs = outputs;
    graph_.output_names.clear();
    for (size_t i = 0; i < outputs.size(); ++i) {
      graph_.output_names.push_back(absl::StrCat("o", i));
    }
    return models::PackGraph(graph_);
  }

 private:
  models::ValueId AddValue() {
    models::Value value;
    value.name = absl::StrCat("v", graph_.values.size());
    return graph_.AddValue(std::move(value));
  }
  models::Graph graph_;
};

models::Node Region(const std::string& kind, models::StringList graphs,
                    int inputs, int outputs, int64_t carried = 0,
                    int64_t mapped = 0) {
  models::Node node;
  node.name = "region";
  node.op = std::string(models::kControlRegionOp);
  node.args = {{std::string(models::kControlKindArg), kind},
               {std::string(models::kControlCarriedArg), carried},
               {std::string(models::kControlMappedArg), mapped},
               {std::string(models::kRegionOperatorsArg), models::StringList{}},
               {std::string(models::kControlGraphsArg), std::move(graphs)}};
  for (int i = 0; i < inputs; ++i) {
    node.args.push_back({absl::StrCat("input_", i), models::ValueRef{i}});
  }
  for (int i = 0; i < outputs; ++i) node.outputs.push_back(100 + i);
  return node;
}

std::vector<float> FloatsOf(const Result& result) {
  EXPECT_EQ(result.operand.kind, Operand::Kind::kTensor);
  const auto values = result.operand.tensor.as<float>();
  return {values.begin(), values.end()};
}

// t + 1, or a view of u.
models::Node Cond() {
  GraphBuilder taken(2);
  GraphBuilder other(2);
  const models::ValueId sum =
      taken.Add("aten.add.Tensor",
                {{"self", models::ValueRef{0}}, {"other", int64_t{1}}});
  const models::ValueId view = other.Add(
      "aten.view.default", {{"self", models::ValueRef{1}},
                            {"size", models::IntList{{.literal = -1}}}});
  return Region("cond", {taken.Pack({sum}), other.Pack({view})}, 3, 1);
}

TEST(ControlCallerTest, CondRunsTheBranchThatThePredicateTakes) {
  const base::Tensor t = Floats({2}, {1, 2});
  const base::Tensor u = Floats({1, 2}, {7, 8});
  const base::Tensor yes = Floats({}, {0.5});
  const base::Tensor no = Floats({1}, {0});
  auto results = Execute(Cond(), {Of(yes), Of(t), Of(u)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(FloatsOf((*results)[0]), ElementsAre(2, 3));
  results = Execute(Cond(), {Of(no), Of(t), Of(u)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(FloatsOf((*results)[0]), ElementsAre(7, 8));
  EXPECT_NE((*results)[0].operand.tensor.data, u.data())
      << "a result is never an operand's memory";
}

TEST(ControlCallerTest, CondTakesNumbers) {
  const base::Tensor t = Floats({2}, {1, 2});
  const base::Tensor u = Floats({1, 2}, {7, 8});
  Operand size;
  size.kind = Operand::Kind::kInt;
  size.i = 0;
  auto results = Execute(Cond(), {size, Of(t), Of(u)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(FloatsOf((*results)[0]), ElementsAre(7, 8));
  // The condition as a constant of the export.
  models::Node node = Cond();
  for (models::NamedArgument& arg : node.args) {
    if (arg.name == "input_0") arg.value = true;
    if (arg.name == "input_1") arg.value = models::ValueRef{0};
    if (arg.name == "input_2") arg.value = models::ValueRef{1};
  }
  results = Execute(node, {Of(t), Of(u)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(FloatsOf((*results)[0]), ElementsAre(2, 3));
}

// while i < limit: i, t = i + 1, t * 2 + i
models::Node While() {
  GraphBuilder more(3);
  GraphBuilder body(3);
  const models::ValueId less =
      more.Add("aten.lt.Tensor",
               {{"self", models::ValueRef{0}}, {"other", models::ValueRef{2}}});
  const models::ValueId i =
      body.Add("aten.add.Tensor",
               {{"self", models::ValueRef{0}}, {"other", int64_t{1}}});
  const models::ValueId twice =
      body.Add("aten.mul.Tensor",
               {{"self", models::ValueRef{1}}, {"other", int64_t{2}}});
  const models::ValueId t = body.Add(
      "aten.add.Tensor",
      {{"self", models::ValueRef{twice}}, {"other", models::ValueRef{0}}});
  return Region("while_loop", {more.Pack({less}), body.Pack({i, t})}, 3, 2, 2);
}

TEST(ControlCallerTest, WhileLoopCarriesValuesUntilTheConditionFails) {
  const base::Tensor i = Floats({}, {0});
  const base::Tensor t = Floats({2}, {1, -1});
  for (const auto& [limit, expected] :
       std::vector<std::pair<float, std::vector<float>>>{
           // t: 1 → 2 → 5 → 12, -1 → -2 → -3 → -4
           {0, {1, -1}},
           {1, {2, -2}},
           {3, {12, -4}}}) {
    const base::Tensor end = Floats({}, {limit});
    const auto results = Execute(While(), {Of(i), Of(t), Of(end)});
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_THAT(FloatsOf((*results)[0]), ElementsAre(limit));
    EXPECT_EQ(FloatsOf((*results)[1]), expected);
  }
  EXPECT_EQ(t.view().as<float>()[0], 1) << "operands stay what they are";
}

TEST(ControlCallerTest, LoopThatNeverEndsIsEnded) {
  const base::Tensor i = Floats({}, {0});
  const base::Tensor t = Floats({1}, {1});
  const base::Tensor end = Floats({}, {1e9});  // float32 counts to 2^24 only
  const ScopedLoopCheck check([] { return absl::OkStatus(); },
                              /*max_rounds=*/1000);
  const auto results = Execute(While(), {Of(i), Of(t), Of(end)});
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(results.status().message()),
              HasSubstr("region: a loop has not ended after 1000 rounds"));
}

TEST(ControlCallerTest, RoundsEndWithTheRequestThatTheyRunFor) {
  const base::Tensor i = Floats({}, {0});
  const base::Tensor t = Floats({1}, {1});
  const base::Tensor end = Floats({}, {100});
  int asked = 0;
  const auto late_at = [&asked](int round) {
    asked = 0;
    return [&asked, round] {
      return asked++ == round ? absl::DeadlineExceededError("too late")
                              : absl::OkStatus();
    };
  };
  {
    const ScopedLoopCheck check(late_at(7));
    const auto results = Execute(While(), {Of(i), Of(t), Of(end)});
    EXPECT_EQ(results.status(),
              absl::DeadlineExceededError("region: too late"));
    EXPECT_EQ(asked, 8);
    {
      const ScopedLoopCheck inner(late_at(1000));
      EXPECT_TRUE(Execute(While(), {Of(i), Of(t), Of(end)}).ok());
      EXPECT_EQ(asked, 101);  // each round, and the end
    }
    EXPECT_TRUE(Execute(While(), {Of(i), Of(t), Of(end)}).ok())
        << "the outer check is there again, and said it once";
  }
  asked = 0;
  EXPECT_TRUE(Execute(While(), {Of(i), Of(t), Of(end)}).ok());
  EXPECT_EQ(asked, 0);

  GraphBuilder body(1);
  const models::ValueId twice =
      body.Add("aten.mul.Tensor",
               {{"self", models::ValueRef{0}}, {"other", int64_t{2}}});
  const models::Node map =
      Region("map", {body.Pack({twice})}, 1, 1, 0, /*mapped=*/1);
  const base::Tensor x = Floats({5}, {1, 2, 3, 4, 5});
  const ScopedLoopCheck check(late_at(3));
  EXPECT_EQ(Execute(map, {Of(x)}).status(),
            absl::DeadlineExceededError("region: too late"));
}

TEST(ControlCallerTest, MapStacksWhatEachElementGives) {
  GraphBuilder body(3);
  const models::ValueId sum =
      body.Add("aten.add.Tensor",
               {{"self", models::ValueRef{0}}, {"other", models::ValueRef{1}}});
  const models::ValueId scaled = body.Add(
      "aten.mul.Tensor",
      {{"self", models::ValueRef{sum}}, {"other", models::ValueRef{2}}});
  const models::ValueId total =
      body.Add("aten.sum.default", {{"self", models::ValueRef{0}}});
  const models::Node node =
      Region("map", {body.Pack({scaled, total})}, 3, 2, 0, /*mapped=*/2);
  const base::Tensor x = Floats({3, 2}, {1, 2, 3, 4, 5, 6});
  const base::Tensor y = Floats({3, 2}, {0, 0, 1, 1, 2, 2});
  const base::Tensor scale = Floats({}, {10});
  auto results = Execute(node, {Of(x), Of(y), Of(scale)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT((*results)[0].operand.tensor.dims, ElementsAre(3, 2));
  EXPECT_THAT(FloatsOf((*results)[0]), ElementsAre(10, 20, 40, 50, 70, 80));
  EXPECT_THAT(FloatsOf((*results)[1]), ElementsAre(3, 7, 11));

  const base::Tensor fewer = Floats({2, 2}, {0, 0, 1, 1});
  results = Execute(node, {Of(x), Of(fewer), Of(scale)});
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(results.status().message()),
              HasSubstr("maps over have 3 and 2 elements"));
  const base::Tensor none = Floats({0, 2}, {});
  results = Execute(node, {Of(none), Of(none), Of(scale)});
  EXPECT_THAT(std::string(results.status().message()),
              HasSubstr("maps over are empty"));
}

TEST(ControlCallerTest, ScanCarriesAndStacks) {
  GraphBuilder body(2);
  const models::ValueId sum =
      body.Add("aten.add.Tensor",
               {{"self", models::ValueRef{0}}, {"other", models::ValueRef{1}}});
  const models::ValueId before =
      body.Add("aten.neg.default", {{"self", models::ValueRef{0}}});
  const models::Node node = Region("scan", {body.Pack({sum, before})}, 2, 2,
                                   /*carried=*/1, /*mapped=*/1);
  const base::Tensor start = Floats({}, {100});
  const base::Tensor x = Floats({3}, {1, 2, 3});
  const auto results = Execute(node, {Of(start), Of(x)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(FloatsOf((*results)[0]), ElementsAre(106));
  EXPECT_THAT(FloatsOf((*results)[1]), ElementsAre(-100, -101, -103));
}

TEST(ControlCallerTest, AnErrorNamesTheRegionAndTheOperator) {
  GraphBuilder taken(2);
  const models::ValueId product =
      taken.Add("aten.mm.default",
                {{"self", models::ValueRef{0}}, {"mat2", models::ValueRef{1}}});
  const std::string graph = taken.Pack({product});
  const base::Tensor t = Floats({2}, {1, 2});
  const auto results =
      Execute(Region("cond", {graph, graph}, 3, 1), {Of(t), Of(t), Of(t)});
  // A predicate must have one element.
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(results.status().message()), HasSubstr("region"));
  const base::Tensor yes = Floats({}, {1});
  const auto wrong =
      Execute(Region("cond", {graph, graph}, 3, 1), {Of(yes), Of(t), Of(t)});
  EXPECT_THAT(std::string(wrong.status().message()),
              HasSubstr("region: n0 (aten.mm.default)"));
}

TEST(ControlCallerTest, RefusesNodesThatNoImporterMakes) {
  const std::string graph = GraphBuilder(2).Pack({0});
  const std::vector<std::pair<models::Node, std::string>> cases = {
      {Region("goto", {graph, graph}, 3, 1), "\"goto\" is not known"},
      {Region("cond", {graph}, 3, 1), "has 1 graphs"},
      {Region("cond", {graph, graph}, 2, 1), "2 inputs and 1 outputs, not 1"},
      {Region("cond", {graph, "AAAA"}, 3, 1), "damaged"},
      {Region("cond", {graph, "%"}, 3, 1), "damaged"},
      {Region("while_loop", {graph, graph}, 2, 1, 2), "2 inputs and 1 outputs"},
      {Region("map", {graph}, 2, 1, 0, 0), "2 inputs and 1 outputs"},
      {Region("map", {graph}, 2, 1, 0, -1), "mapped = -1"},
      {Region("scan", {graph}, 2, 1, 1 << 30, 1), "carried"},
  };
  for (const auto& [node, text] : cases) {
    const auto caller = Caller::Create(node);
    EXPECT_EQ(caller.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(caller.status().message()), HasSubstr(text));
  }
}

}  // namespace
}  // namespace refract::runtime::aten
