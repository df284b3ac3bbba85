#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/shapes/infer.h"

namespace refract::models {
namespace {

SymExpr Size(absl::string_view text) { return *SymExpr::Parse(text); }

// Inputs x [B, 5] and `vector` [s], a tensor `pooled` [`rows`, 8] that is made
// of it, and what puts x and it side by side.
struct Model {
  Model(absl::string_view vector, absl::string_view rows,
        std::vector<std::string> of_pooled = {"8"}) {
    graph.batch_symbol = "B";
    graph.symbols = {{.symbol = "B", .min = 1, .max = 4096},
                     {.symbol = "s", .min = 2}};
    x = Add("x", base::DType::kFloat32, {"B", "5"});
    lengths = Add("lengths", base::DType::kInt64, {std::string(vector)});
    graph.inputs = {x, lengths};
    of_pooled.insert(of_pooled.begin(), std::string(rows));
    pooled = Add("pooled", base::DType::kFloat32, of_pooled);
    joined = Add("joined", base::DType::kFloat32, {"B", "13"});
  }

  ValueId Add(const std::string& name, base::DType dtype,
              const std::vector<std::string>& shape) {
    Value value;
    value.name = name;
    value.dtype = dtype;
    value.has_shape = true;
    for (const std::string& size : shape) value.shape.push_back(Size(size));
    return graph.AddValue(std::move(value));
  }

  void Put(const std::string& op, std::vector<NamedArgument> args) {
    Node node;
    node.name = op;
    node.op = op;
    node.args = std::move(args);
    node.outputs = {joined};
    graph.nodes.push_back(std::move(node));
  }

  std::string LengthsAfter() {
    TieSizes({}, graph, notes);
    return graph.value(lengths).shape[0].ToString();
  }

  Graph graph;
  std::vector<std::string> notes;
  ValueId x, lengths, pooled, joined;
};

void PutCat(Model& model) {
  model.Put("aten.cat.default", {{"tensors", ValueList{model.x, model.pooled}},
                                 {"dim", int64_t{1}}});
}

TEST(TieSizesTest, LengthsOfSeveralFeaturesAreAsManyBatches) {
  Model model("s", "s//3");
  PutCat(model);
  EXPECT_EQ(model.LengthsAfter(), "3*B");
  EXPECT_EQ(model.graph.value(model.pooled).shape[0].ToString(), "B");
  ASSERT_EQ(model.graph.symbols.size(), 1u);
  EXPECT_EQ(model.graph.symbols[0].min, 1);
  EXPECT_EQ(model.graph.symbols[0].max, 4096);
  EXPECT_EQ(model.graph.min_batch, 1);
}

TEST(TieSizesTest, OffsetsHaveOneMore) {
  Model model("s", "(s - 1)//4");
  PutCat(model);
  EXPECT_EQ(model.LengthsAfter(), "4*B + 1");
  Model one("s", "s - 1");
  PutCat(one);
  EXPECT_EQ(one.LengthsAfter(), "B + 1");
}

TEST(TieSizesTest, RangesAreTheTightest) {
  Model model("s", "s//3");
  model.graph.symbols[1].max = 300;
  model.graph.symbols[1].min = 30;
  PutCat(model);
  EXPECT_EQ(model.LengthsAfter(), "3*B");
  EXPECT_EQ(model.graph.symbols[0].min, 10);
  EXPECT_EQ(model.graph.symbols[0].max, 100);
  // An exporter's "2 and more" is no limit of the model: smaller ones are
  // padded.
  Model equal("s", "s");
  PutCat(equal);
  EXPECT_EQ(equal.LengthsAfter(), "B");
  EXPECT_EQ(equal.graph.symbols[0].min, 1);
  EXPECT_EQ(equal.graph.min_batch, 2);
}

TEST(TieSizesTest, MatrixProductsOfBatchesTie) {
  Model model("s", "s//2", {"8", "4"});
  model.graph.values[model.x].shape = {Size("B"), Size("5"), Size("8")};
  model.Put("aten.bmm.default",
            {{"self", ValueRef{model.x}}, {"mat2", ValueRef{model.pooled}}});
  EXPECT_EQ(model.LengthsAfter(), "2*B");
}

TEST(TieSizesTest, VectorsThatAreSplitAlikeAreEquallyLong) {
  const auto size_of_weights = [](int64_t last, int64_t axis) {
    Model model("s", "5");
    const ValueId weights = model.Add("weights", base::DType::kFloat32, {"w"});
    model.graph.inputs.push_back(weights);
    model.graph.symbols.push_back({.symbol = "w", .min = 3, .max = 50});
    const auto split = [&](ValueId vector, int64_t end, int64_t dim) {
      model.Put(
          "aten.split_with_sizes.default",
          {{"self", ValueRef{vector}},
           {"split_sizes", IntList{{.value = model.pooled}, {.literal = end}}},
           {"dim", dim}});
    };
    split(model.lengths, 4, 0);
    split(weights, last, axis);
    TieSizes({}, model.graph, model.notes);
    const SymbolRange& range = model.graph.symbols[1];
    return absl::StrCat(
        model.graph.value(weights).shape[0].ToString(), " of ",
        model.graph.symbols.size(), ", ", range.min, " to ",
        range.max == INT64_MAX ? "any" : absl::StrCat(range.max));
  };
  EXPECT_EQ(size_of_weights(4, 0), "s of 2, 3 to 50");
  EXPECT_EQ(size_of_weights(5, 0), "w of 3, 2 to any");
  EXPECT_EQ(size_of_weights(4, 1), "w of 3, 2 to any");
}

TEST(TieSizesTest, WhatMayDifferIsLeft) {
  {  // along the dimension that cat() joins
    Model model("s", "s//3", {"5"});
    model.Put("aten.cat.default",
              {{"tensors", ValueList{model.x, model.pooled}}});
    EXPECT_EQ(model.LengthsAfter(), "s");
  }
  {  // broadcast: it may be 1
    Model model("s", "s//3", {"5"});
    model.Put("aten.add.Tensor",
              {{"self", ValueRef{model.x}}, {"other", ValueRef{model.pooled}}});
    EXPECT_EQ(model.LengthsAfter(), "s");
  }
  {  // no affine size
    Model model("s", "s*s");
    PutCat(model);
    EXPECT_EQ(model.LengthsAfter(), "s");
  }
  {  // rows of a matrix, not lengths
    Model model("s", "s//3");
    model.graph.values[model.lengths].shape.push_back(Size("2"));
    PutCat(model);
    EXPECT_EQ(model.LengthsAfter(), "s");
  }
  {  // vectors: cat() lets empty ones pass
    Model model("s", "s//3", {});
    model.graph.values[model.x].shape = {Size("B")};
    PutCat(model);
    EXPECT_EQ(model.LengthsAfter(), "s");
  }
  {  // the vector's size is made of another one's
    Model model("2*s", "s");
    PutCat(model);
    EXPECT_EQ(model.LengthsAfter(), "2*s");
  }
}

// item [B], history [s, 6] and `by_row` [s, 6, 8] that is made of it; what `op`
// takes of that for each item; and `user` [u], which nothing reads.
struct Gathered {
  explicit Gathered(const std::string& op = "aten.gather.default",
                    int64_t dim = 1) {
    graph.batch_symbol = "B";
    graph.symbols = {{.symbol = "B", .min = 1},
                     {.symbol = "s", .min = 2},
                     {.symbol = "u", .min = 2}};
    item = Add("item", base::DType::kInt64, {"B"});
    history = Add("history", base::DType::kInt64, {"s", "6"});
    user = Add("user", base::DType::kInt64, {"u"});
    graph.inputs = {item, history, user};
    const ValueId by_row =
        Add("by_row", base::DType::kFloat32, {"s", "6", "8"});
    const ValueId place = Add("place", base::DType::kInt64, {"B", "1", "8"});
    const ValueId taken = Add("taken", base::DType::kFloat32, {"B", "1", "8"});
    Put("aten.embedding.default", {{"indices", ValueRef{history}}}, by_row);
    Put("aten.view.default", {{"self", ValueRef{item}}}, place);
    Put(op,
        {{"self", ValueRef{by_row}}, {"dim", dim}, {"index", ValueRef{place}}},
        taken);
    graph.outputs = {taken};
  }

  ValueId Add(const std::string& name, base::DType dtype,
              const std::vector<std::string>& shape) {
    Value value;
    value.name = name;
    value.dtype = dtype;
    value.has_shape = true;
    for (const std::string& size : shape) value.shape.push_back(Size(size));
    return graph.AddValue(std::move(value));
  }

  void Put(const std::string& op, std::vector<NamedArgument> args,
           ValueId output) {
    Node node;
    node.name = op;
    node.op = op;
    node.args = std::move(args);
    node.outputs = {output};
    graph.nodes.push_back(std::move(node));
  }

  // The leading sizes of history and user, with a sample of these rows; of
  // none when empty.
  std::string After(const std::vector<int64_t>& rows) {
    std::vector<NamedTensor> sample;
    for (size_t i = 0; i < rows.size(); ++i) {
      NamedTensor named;
      named.name = graph.value(graph.inputs[i]).name;
      named.tensor.dims = {rows[i]};
      sample.push_back(named);
    }
    TieSizes(sample, graph, notes);
    return graph.value(history).shape[0].ToString() + " " +
           graph.value(user).shape[0].ToString();
  }

  Graph graph;
  std::vector<std::string> notes;
  ValueId item, history, user;
};

TEST(TieSizesTest, RowsThatAreGatheredByRowAreTheBatchs) {
  Gathered model;
  EXPECT_EQ(model.After({4, 4, 4}), "B B");
  ASSERT_EQ(model.graph.symbols.size(), 1u);
  EXPECT_EQ(model.notes.size(), 2u);
  EXPECT_EQ(Gathered("aten.scatter.src").After({4, 4, 7}), "B u");
}

TEST(TieSizesTest, WithoutSampleWhatNothingReadsIsLeft) {
  EXPECT_EQ(Gathered().After({}), "B u");
}

TEST(TieSizesTest, SampleWithMoreRowsToGatherFromLeavesThem) {
  EXPECT_EQ(Gathered().After({4, 5, 5}), "s u");
}

TEST(TieSizesTest, GatheringAlongTheRowsIsNotByRow) {
  EXPECT_EQ(Gathered("aten.gather.default", 0).After({4, 4, 7}), "s u");
  EXPECT_EQ(Gathered("aten.gather.default", -3).After({4, 4, 7}), "s u");
}

TEST(TieSizesTest, RowsThatAnotherSizeIsMadeOfAreLeft) {
  Gathered model;
  model.graph.values[model.user].shape = {Size("s + 1")};
  EXPECT_EQ(model.After({4, 4, 5}), "s s + 1");
}

}  // namespace
}  // namespace refract::models
