#include "models/passes/functionalize.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Builds a graph as an importer would, operator by operator.
class Builder {
 public:
  ValueId Input(const std::string& name,
                base::DType dtype = base::DType::kFloat32) {
    const ValueId id = graph.AddValue({.name = name, .dtype = dtype});
    graph.inputs.push_back(id);
    return id;
  }

  ValueId Weight(const std::string& name) {
    return graph.AddValue(
        {.name = name, .dtype = base::DType::kFloat32, .weight = name});
  }

  std::vector<ValueId> Add(const std::string& op,
                           std::vector<NamedArgument> args, int outputs,
                           base::DType dtype = base::DType::kFloat32) {
    Node node;
    node.name = absl::StrCat("n", graph.nodes.size());
    node.op = op;
    node.args = std::move(args);
    const auto id = static_cast<NodeId>(graph.nodes.size());
    for (int i = 0; i < outputs; ++i) {
      node.outputs.push_back(
          graph.AddValue({.name = absl::StrCat(node.name, "_", i),
                          .dtype = dtype,
                          .producer = id}));
    }
    node.output_is_list = outputs > 1;
    graph.nodes.push_back(node);
    return node.outputs;
  }

  ValueId One(const std::string& op, std::vector<NamedArgument> args,
              base::DType dtype = base::DType::kFloat32) {
    return Add(op, std::move(args), 1, dtype)[0];
  }

  void Output(ValueId id) {
    graph.output_names.push_back(absl::StrCat("output_", graph.outputs.size()));
    graph.outputs.push_back(id);
  }

  Graph graph;
};

std::vector<std::string> Ops(const Graph& graph) {
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes) ops.push_back(node.op);
  return ops;
}

// The graph as one nested expression per output: what it computes, without
// names or order. Literals are left out.
std::string Text(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (value.producer == kNoNode) return value.name;
  const Node& node = graph.nodes[value.producer];
  std::vector<std::string> inputs;
  for (ValueId input : InputsOf(node)) inputs.push_back(Text(graph, input));
  std::string output;
  if (node.outputs.size() > 1) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == id) output = absl::StrCat("#", i);
    }
  }
  return absl::StrCat(node.op.substr(5), output, "(",
                      absl::StrJoin(inputs, ", "), ")");
}

std::vector<std::string> Outputs(const Graph& graph) {
  std::vector<std::string> outputs;
  for (ValueId id : graph.outputs) outputs.push_back(Text(graph, id));
  return outputs;
}

TEST(FunctionalizeTest, WriteIsSeenByLaterReadsOnly) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const ValueId before = b.One("aten.neg.default", {{"self", ValueRef{y}}});
  const ValueId z = b.One("aten.relu_.default", {{"self", ValueRef{y}}});
  const ValueId after = b.One("aten.neg.default", {{"self", ValueRef{y}}});
  b.Output(before);
  b.Output(after);
  b.Output(z);
  b.Output(y);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(Outputs(b.graph),
              ElementsAre("neg.default(exp.default(x))",
                          "neg.default(relu.default(exp.default(x)))",
                          "relu.default(exp.default(x))",
                          "relu.default(exp.default(x))"));
}

TEST(FunctionalizeTest, WriteThroughAViewReachesTheBaseAndItsOtherViews) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const ValueId column = b.One(
      "aten.select.int",
      {{"self", ValueRef{y}}, {"dim", int64_t{1}}, {"index", int64_t{0}}});
  const ValueId other = b.One("aten.t.default", {{"self", ValueRef{y}}});
  b.One("aten.relu_.default", {{"self", ValueRef{column}}});
  b.Output(y);
  b.Output(other);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  const std::string base =
      "select_scatter.default(exp.default(x), "
      "relu.default(select.int(exp.default(x))))";
  EXPECT_THAT(Outputs(b.graph),
              ElementsAre(base, absl::StrCat("t.default(", base, ")")));
  // The scatter keeps where the view was.
  for (const Node& node : b.graph.nodes) {
    if (node.op != "aten.select_scatter.default") continue;
    EXPECT_EQ(std::get<int64_t>(*node.FindArg("dim")), 1);
    EXPECT_EQ(std::get<int64_t>(*node.FindArg("index")), 0);
  }
}

TEST(FunctionalizeTest, WriteIntoTheBaseReachesViewsOfViews) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const ValueId t = b.One("aten.t.default", {{"self", ValueRef{y}}});
  const ValueId row = b.One(
      "aten.select.int",
      {{"self", ValueRef{t}}, {"dim", int64_t{0}}, {"index", int64_t{0}}});
  b.One("aten.relu_.default", {{"self", ValueRef{y}}});
  b.Output(row);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(
      Outputs(b.graph),
      ElementsAre("select.int(t.default(relu.default(exp.default(x))))"));
}

TEST(FunctionalizeTest, PartsOfASplitAreToldApart) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const auto parts =
      b.Add("aten.split_with_sizes.default",
            {{"self", ValueRef{y}},
             {"split_sizes", IntList{{.literal = 2}, {.literal = 3}}},
             {"dim", int64_t{1}}},
            2);
  b.One("aten.relu_.default", {{"self", ValueRef{parts[1]}}});
  b.Output(y);
  b.Output(parts[0]);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  const std::string base =
      "slice_scatter.default(exp.default(x), "
      "relu.default(split_with_sizes.default#1(exp.default(x))))";
  // The other part shares nothing with the one that is written.
  EXPECT_THAT(Outputs(b.graph),
              ElementsAre(base, "split_with_sizes.default#0(exp.default(x))"));
  for (const Node& node : b.graph.nodes) {
    if (node.op != "aten.slice_scatter.default") continue;
    EXPECT_EQ(std::get<int64_t>(*node.FindArg("start")), 2);
    EXPECT_EQ(std::get<int64_t>(*node.FindArg("end")), 5);
    EXPECT_EQ(std::get<int64_t>(*node.FindArg("dim")), 1);
  }
}

// GRU cells write into the gates that chunk() gives them.
TEST(FunctionalizeTest, PartsOfAChunkMayBeWrittenWhileTheWholeIsNotRead) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const auto parts = b.Add("aten.unsafe_chunk.default",
                           {{"self", ValueRef{y}}, {"chunks", int64_t{2}}}, 2);
  b.One("aten.sigmoid_.default", {{"self", ValueRef{parts[0]}}});
  b.One("aten.tanh_.default", {{"self", ValueRef{parts[1]}}});
  b.Output(parts[0]);
  b.Output(parts[1]);
  Graph whole = b.graph;
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(
      Outputs(b.graph),
      ElementsAre("sigmoid.default(unsafe_chunk.default#0(exp.default(x)))",
                  "tanh.default(unsafe_chunk.default#1(exp.default(x)))"));
  whole.outputs.push_back(y);
  whole.output_names.push_back("output_2");
  const absl::Status status = Functionalize(whole);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("unsafe_chunk"));
}

TEST(FunctionalizeTest, TensorReshapedInPlaceIsAViewOfWhatItWas) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const ValueId view = b.One("aten.slice.Tensor", {{"self", ValueRef{y}}});
  b.One("aten.squeeze_.dim", {{"self", ValueRef{y}}, {"dim", int64_t{1}}});
  b.One("aten.relu_.default", {{"self", ValueRef{y}}});
  b.Output(y);
  b.Output(view);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  const std::string squeezed = "relu.default(squeeze.dim(exp.default(x)))";
  EXPECT_THAT(
      Outputs(b.graph),
      ElementsAre(squeezed, absl::StrCat("slice.Tensor(reshape_as.default(",
                                         squeezed, ", exp.default(x)))")));
}

TEST(FunctionalizeTest, PermutationIsInverted) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const ValueId p = b.One(
      "aten.permute.default",
      {{"self", ValueRef{y}},
       {"dims", IntList{{.literal = 2}, {.literal = 0}, {.literal = -2}}}});
  b.One("aten.relu_.default", {{"self", ValueRef{p}}});
  b.Output(y);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  const Node& last = b.graph.nodes.back();
  ASSERT_EQ(last.op, "aten.permute.default");
  EXPECT_EQ(std::get<IntList>(*last.FindArg("dims")),
            (IntList{{.literal = 1}, {.literal = 2}, {.literal = 0}}));
}

TEST(FunctionalizeTest, CopyIsNewMemory) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const ValueId copy = b.One("aten.clone.default", {{"self", ValueRef{y}}});
  b.One("aten.relu_.default", {{"self", ValueRef{y}}});
  b.Output(copy);
  b.Output(y);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(Outputs(b.graph),
              ElementsAre("exp.default(x)", "relu.default(exp.default(x))"));
}

TEST(FunctionalizeTest, DetachAndDroppedDropoutAreTheirInput) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const ValueId d = b.One("aten.detach.default", {{"self", ValueRef{y}}});
  const ValueId e =
      b.One("aten.dropout.default",
            {{"input", ValueRef{d}}, {"p", 0.5}, {"train", false}});
  b.One("aten.relu_.default", {{"self", ValueRef{e}}});
  b.Output(y);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(Outputs(b.graph), ElementsAre("relu.default(exp.default(x))"));
}

TEST(FunctionalizeTest, InputMayBeWritten) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.relu_.default", {{"self", ValueRef{x}}});
  b.Output(y);
  b.Output(x);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(Outputs(b.graph),
              ElementsAre("relu.default(x)", "relu.default(x)"));
}

TEST(FunctionalizeTest, WriteKeepsTheDtypeOfWhatIsWritten) {
  Builder b;
  const ValueId x = b.Input("x", base::DType::kFloat16);
  const ValueId same = b.Input("same", base::DType::kFloat16);
  const ValueId wide = b.Input("wide", base::DType::kFloat32);
  const ValueId unknown = b.Input("unknown", base::DType::kUnknown);
  for (ValueId other : {same, wide, unknown}) {
    const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}},
                            base::DType::kFloat16);
    b.Output(b.One("aten.add_.Tensor",
                   {{"self", ValueRef{y}}, {"other", ValueRef{other}}},
                   base::DType::kFloat16));
  }
  const ValueId y =
      b.One("aten.exp.default", {{"self", ValueRef{x}}}, base::DType::kFloat16);
  b.Output(b.One("aten.lt_.Scalar", {{"self", ValueRef{y}}, {"other", 0.0}},
                 base::DType::kFloat16));
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(
      Outputs(b.graph),
      ElementsAre(
          "add.Tensor(exp.default(x), same)",
          "type_as.default(add.Tensor(exp.default(x), wide), "
          "exp.default(x))",
          "type_as.default(add.Tensor(exp.default(x), unknown), "
          "exp.default(x))",
          "type_as.default(lt.Scalar(exp.default(x)), exp.default(x))"));
}

TEST(FunctionalizeTest, CopyOfATensorOfTheSameKindIsThatTensor) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.Input("y");
  for (ValueId id : {x, y}) {
    b.graph.values[id].has_shape = true;
    b.graph.values[id].shape = {SymExpr(2)};
  }
  b.Output(b.One("aten.copy_.default",
                 {{"self", ValueRef{x}}, {"src", ValueRef{y}}}));
  // Unknown shapes may need broadcasting.
  const ValueId z = b.Input("z");
  b.Output(b.One("aten.copy_.default",
                 {{"self", ValueRef{z}}, {"src", ValueRef{y}}}));
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(Outputs(b.graph), ElementsAre("y", "copy.default(z, y)"));
}

TEST(FunctionalizeTest, ChecksAndUnusedResultsGo) {
  Builder b;
  const ValueId x = b.Input("x");
  b.Add("aten._assert_tensor_metadata.default", {{"a", ValueRef{x}}}, 0);
  b.Add("aten.sym_constrain_range_for_size.default", {{"size", int64_t{1}}}, 0);
  b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const auto both = b.Add("aten.sort.default", {{"self", ValueRef{x}}}, 2);
  b.Output(both[0]);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(Ops(b.graph), ElementsAre("aten.sort.default"));
  EXPECT_EQ(b.graph.nodes[0].outputs[1], kNoValue);
  EXPECT_EQ(b.graph.values.size(), 2u);
}

TEST(FunctionalizeTest, UnusedInputStaysInTheSignature) {
  Builder b;
  b.Input("unused");
  const ValueId x = b.Input("x");
  b.Output(b.One("aten.exp.default", {{"self", ValueRef{x}}}));
  ASSERT_TRUE(Functionalize(b.graph).ok());
  ASSERT_EQ(b.graph.inputs.size(), 2u);
  EXPECT_EQ(b.graph.value(b.graph.inputs[0]).name, "unused");
}

// A transposed tensor's contiguous() is a copy, another's is the tensor itself.
TEST(FunctionalizeTest, UndecidedSharingMattersOnlyWhenBothAreRead) {
  for (const bool read_both : {false, true}) {
    Builder b;
    const ValueId x = b.Input("x");
    const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
    const ValueId t = b.One("aten.t.default", {{"self", ValueRef{y}}});
    const ValueId c = b.One("aten.contiguous.default", {{"self", ValueRef{t}}});
    const ValueId z = b.One("aten.relu_.default", {{"self", ValueRef{c}}});
    b.Output(z);
    if (read_both) b.Output(y);
    const absl::Status status = Functionalize(b.graph);
    if (read_both) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(status.message(), HasSubstr("may or may not share"));
    } else {
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_THAT(Outputs(b.graph),
                  ElementsAre("relu.default(t.default(exp.default(x)))"));
    }
  }
}

TEST(FunctionalizeTest, ReshapeOfARowMajorTensorIsAView) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId y = b.One("aten.exp.default", {{"self", ValueRef{x}}});
  const ValueId flat =
      b.One("aten.reshape.default",
            {{"self", ValueRef{y}}, {"shape", IntList{{.literal = -1}}}});
  b.One("aten.relu_.default", {{"self", ValueRef{flat}}});
  b.Output(y);
  ASSERT_TRUE(Functionalize(b.graph).ok());
  EXPECT_THAT(Outputs(b.graph),
              ElementsAre("reshape_as.default(relu.default(reshape.default("
                          "exp.default(x))), exp.default(x))"));
}

TEST(FunctionalizeTest, WhatCannotBeRewrittenIsRefusedByName) {
  struct Case {
    std::string what;
    std::string message;
    void (*build)(Builder& b, ValueId x);
  };
  const std::vector<Case> cases = {
      {"weight", "writes into the weight w",
       [](Builder& b, ValueId) {
         const ValueId w = b.Weight("w");
         b.Output(b.One("aten.add_.Scalar",
                        {{"self", ValueRef{w}}, {"other", int64_t{1}}}));
       }},
      {"expand", "aten.expand.default",
       [](Builder& b, ValueId x) {
         const ValueId e =
             b.One("aten.expand.default",
                   {{"self", ValueRef{x}}, {"size", IntList{{.literal = 2}}}});
         b.Output(b.One("aten.relu_.default", {{"self", ValueRef{e}}}));
       }},
      {"out", "aten.add.out",
       [](Builder& b, ValueId x) {
         b.Output(b.One("aten.add.out", {{"self", ValueRef{x}},
                                         {"other", ValueRef{x}},
                                         {"out", ValueRef{x}}}));
       }},
      {"resize", "aten.resize_.default",
       [](Builder& b, ValueId x) {
         b.Output(
             b.One("aten.resize_.default",
                   {{"self", ValueRef{x}}, {"size", IntList{{.literal = 2}}}}));
       }},
      {"no result", "custom.log.default",
       [](Builder& b, ValueId x) {
         b.Add("custom.log.default", {{"self", ValueRef{x}}}, 0);
         b.Output(x);
       }},
  };
  for (const Case& c : cases) {
    Builder b;
    const ValueId x = b.Input("x");
    c.build(b, x);
    const absl::Status status = Functionalize(b.graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << c.what;
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.what;
    EXPECT_THAT(status.message(), HasSubstr("n0")) << c.what;
  }
}

TEST(FunctionalizeTest, InvalidGraphIsRefused) {
  Builder b;
  b.Output(b.One("aten.exp.default", {{"self", ValueRef{77}}}));
  EXPECT_EQ(Functionalize(b.graph).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckRunnableTest, NamesWhatAnswersOtherwiseOnEveryCall) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId mean = b.Weight("mean");
  EXPECT_TRUE(CheckRunnable(b.graph).ok());
  Builder random = b;
  random.One("aten.rand_like.default", {{"self", ValueRef{x}}});
  EXPECT_THAT(CheckRunnable(random.graph).message(),
              HasSubstr("aten.rand_like.default"));
  Builder dropout = b;
  dropout.One("aten.dropout.default",
              {{"input", ValueRef{x}}, {"p", 0.5}, {"train", true}});
  EXPECT_THAT(CheckRunnable(dropout.graph).message(),
              HasSubstr("aten.dropout.default"));
  for (const bool training : {false, true}) {
    Builder norm = b;
    norm.One("aten.batch_norm.default", {{"input", ValueRef{x}},
                                         {"running_mean", ValueRef{mean}},
                                         {"running_var", ValueRef{mean}},
                                         {"training", training}});
    EXPECT_EQ(CheckRunnable(norm.graph).ok(), !training);
  }
}

TEST(RemoveNoOpCastsTest, RemovesCastsToTheSameDtypeOnly) {
  Builder b;
  const ValueId x = b.Input("x");
  const ValueId same = b.One("aten.type_as.default",
                             {{"self", ValueRef{x}}, {"other", ValueRef{x}}});
  const ValueId wide =
      b.One("aten.to.dtype",
            {{"self", ValueRef{same}}, {"dtype", base::DType::kFloat64}},
            base::DType::kFloat64);
  const ValueId unknown = b.One("aten.type_as.default",
                                {{"self", ValueRef{x}}, {"other", ValueRef{x}}},
                                base::DType::kUnknown);
  b.Output(same);
  b.Output(wide);
  b.Output(unknown);
  RemoveNoOpCasts(b.graph);
  EXPECT_TRUE(ValidateGraph(b.graph).ok());
  EXPECT_THAT(Outputs(b.graph),
              ElementsAre("x", "to.dtype(x)", "type_as.default(x, x)"));
}

}  // namespace
}  // namespace refract::models
