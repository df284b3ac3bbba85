#include "models/graph/op_traits.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/index_ranges.h"

namespace refract::models {
namespace {

Node MakeNode(std::string op, std::vector<NamedArgument> args) {
  Node node;
  node.name = "n";
  node.op = std::move(op);
  node.args = std::move(args);
  return node;
}

// A graph that is built by hand; nodes have one output.
class GraphMaker {
 public:
  ValueId Input(std::string name) {
    const ValueId id = Add(std::move(name));
    graph_.inputs.push_back(id);
    return id;
  }
  ValueId Weight(std::string name, std::vector<SymExpr> shape) {
    const ValueId id = Add("p_" + name);
    graph_.values[id].weight = std::move(name);
    graph_.values[id].has_shape = true;
    graph_.values[id].shape = std::move(shape);
    return id;
  }
  ValueId Call(std::string op, std::vector<NamedArgument> args) {
    const ValueId id = Add("v" + std::to_string(graph_.nodes.size()));
    graph_.values[id].producer = static_cast<NodeId>(graph_.nodes.size());
    Node node = MakeNode(std::move(op), std::move(args));
    node.name = "n" + std::to_string(graph_.nodes.size());
    node.outputs = {id};
    graph_.nodes.push_back(std::move(node));
    return id;
  }
  std::vector<ValueId> CallForList(std::string op, size_t count,
                                   std::vector<NamedArgument> args) {
    std::vector<ValueId> results = {Call(std::move(op), std::move(args))};
    const NodeId node = graph_.values[results[0]].producer;
    while (results.size() < count) {
      results.push_back(Add(absl::StrCat("v", node, "_", results.size())));
      graph_.values[results.back()].producer = node;
    }
    graph_.nodes[node].outputs = results;
    return results;
  }
  const Graph& graph() const { return graph_; }
  void SetShape(ValueId id, std::vector<SymExpr> shape) {
    graph_.values[id].dtype = base::DType::kInt64;
    graph_.values[id].has_shape = true;
    graph_.values[id].shape = std::move(shape);
  }
  void SetDType(ValueId id, base::DType dtype) {
    graph_.values[id].dtype = dtype;
  }

 private:
  ValueId Add(std::string name) {
    Value value;
    value.name = std::move(name);
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }
  Graph graph_;
};

NamedArgument Ref(std::string name, ValueId id) {
  return {std::move(name), ValueRef{id}};
}

TEST(ClassOfTest, KnowsOperatorsOfEveryClass) {
  const std::pair<const char*, OpClass> cases[] = {
      {"aten.embedding.default", OpClass::kEmbedding},
      {"aten.embedding_bag.padding_idx", OpClass::kEmbedding},
      {"aten._embedding_bag_forward_only.default", OpClass::kEmbedding},
      {"fbgemm.int_nbit_split_embedding_codegen_lookup_function.default",
       OpClass::kEmbedding},
      {"aten.linear.default", OpClass::kDense},
      {"aten.addmm.default", OpClass::kDense},
      {"aten.scaled_dot_product_attention.default", OpClass::kDense},
      {"aten.relu.default", OpClass::kElementwise},
      {"aten.add.Tensor", OpClass::kElementwise},
      {"aten._to_copy.default", OpClass::kElementwise},
      {"aten.dropout.default", OpClass::kElementwise},
      {"aten.sum.dim_IntList", OpClass::kReduction},
      {"aten.permute.default", OpClass::kView},
      {"aten.split_with_sizes.default", OpClass::kView},
      {"aten.cat.default", OpClass::kDataMovement},
      {"aten.arange.start", OpClass::kDataMovement},
      {"aten._softmax.default", OpClass::kNormalization},
      {"aten._native_batch_norm_legit_no_training.default",
       OpClass::kNormalization},
      {"aten.sym_size.int", OpClass::kSize},
      {"py.floordiv", OpClass::kSize},
      {"aten.topk.default", OpClass::kCpuOnly},
      {"aten.item.default", OpClass::kCpuOnly},
      {"aten.bernoulli.p", OpClass::kRandom},
      {"aten._native_batch_norm_legit_functional.default", OpClass::kRowMixing},
      {"aten.no_such_operator.default", OpClass::kUnknown},
      {"mylib.thing.default", OpClass::kUnknown},
      {"prim.If", OpClass::kUnknown},
      {"", OpClass::kUnknown},
  };
  for (const auto& [op, expected] : cases) {
    EXPECT_EQ(Name(ClassOf(op)), Name(expected)) << op;
  }
}

TEST(ClassOfTest, OverloadsThatMeanSomethingElse) {
  EXPECT_EQ(ClassOf("aten.max.dim"), OpClass::kReduction);
  EXPECT_EQ(ClassOf("aten.max.other"), OpClass::kElementwise);
  EXPECT_EQ(ClassOf("aten.mul.Tensor"), OpClass::kElementwise);
  EXPECT_EQ(ClassOf("aten.mul.Scalar"), OpClass::kElementwise);
  EXPECT_EQ(ClassOf("aten.mul.int"), OpClass::kSize);
  EXPECT_EQ(ClassOf("aten.repeat_interleave.self_int"), OpClass::kDataMovement);
  EXPECT_EQ(ClassOf("aten.repeat_interleave.self_Tensor"), OpClass::kCpuOnly);
}

TEST(ClassOfTest, OnlyOperatorsThatAGpuRunsWellMayRunOnTheHn) {
  for (const OpClass op_class :
       {OpClass::kDense, OpClass::kElementwise, OpClass::kReduction,
        OpClass::kView, OpClass::kDataMovement, OpClass::kNormalization,
        OpClass::kSize, OpClass::kRowMixing}) {
    EXPECT_TRUE(MayRunOnHn(op_class)) << Name(op_class);
  }
  for (const OpClass op_class : {OpClass::kUnknown, OpClass::kEmbedding,
                                 OpClass::kCpuOnly, OpClass::kRandom}) {
    EXPECT_FALSE(MayRunOnHn(op_class)) << Name(op_class);
  }
}

TEST(ClassOfTest, GatherFromAWeightByComputedIdsIsALookUp) {
  GraphMaker maker;
  const ValueId ids = maker.Input("ids");
  const ValueId table = maker.Weight("table", {100, 8});
  const ValueId triangle = maker.Weight("triangle", {6});
  const ValueId flat = maker.Call("aten.view.default", {Ref("self", table)});
  maker.Call("aten.index_select.default",
             {Ref("self", table), Ref("index", ids)});
  maker.Call("aten.index.Tensor",
             {Ref("self", flat), {"indices", ValueList{kNoValue, ids}}});
  // Constant rows of a constant, and constant columns of an activation.
  const ValueId constant =
      maker.Call("aten.index_select.default",
                 {Ref("self", table), Ref("index", triangle)});
  const ValueId sum = maker.Call("aten.add.Tensor", {Ref("self", constant)});
  maker.Call("aten.index.Tensor",
             {Ref("self", sum), {"indices", ValueList{kNoValue, triangle}}});

  const Graph& graph = maker.graph();
  EXPECT_EQ(ClassOf(graph, graph.nodes[0]), OpClass::kView);
  EXPECT_EQ(ClassOf(graph, graph.nodes[1]), OpClass::kEmbedding);
  EXPECT_EQ(ClassOf(graph, graph.nodes[2]), OpClass::kEmbedding);
  EXPECT_EQ(ClassOf(graph, graph.nodes[3]), OpClass::kDataMovement);
  EXPECT_EQ(ClassOf(graph, graph.nodes[5]), OpClass::kDataMovement);
}

TEST(IsRandomTest, DropoutIsRandomOnlyWhereItDrops) {
  const auto dropout = [](bool train, double p) {
    return MakeNode("aten.dropout.default", {{"p", p}, {"train", train}});
  };
  EXPECT_TRUE(IsRandom(dropout(true, 0.5)));
  EXPECT_FALSE(IsRandom(dropout(false, 0.5)));
  EXPECT_FALSE(IsRandom(dropout(true, 0.0)));
  EXPECT_TRUE(IsRandom(MakeNode("aten.native_dropout.default", {{"p", 0.5}})));
  const std::string rrelu = "aten.rrelu_with_noise_functional.default";
  EXPECT_FALSE(IsRandom(MakeNode(rrelu, {{"training", false}})));
  EXPECT_TRUE(IsRandom(MakeNode(rrelu, {{"training", true}})));
  EXPECT_FALSE(IsRandom(MakeNode("aten.relu.default", {})));
  EXPECT_TRUE(IsRandom(MakeNode("aten.rand.default", {})));
  EXPECT_FALSE(
      IsRandom(MakeNode("aten.scaled_dot_product_attention.default", {})));
  EXPECT_TRUE(IsRandom(MakeNode("aten.scaled_dot_product_attention.default",
                                {{"dropout_p", 0.1}})));
}

TEST(MixesRowsTest, BatchNormalisationMixesRowsUnlessItHasStatistics) {
  const auto norm = [](bool training, Argument mean) {
    return MakeNode("aten.batch_norm.default",
                    {{"running_mean", mean}, {"training", training}});
  };
  EXPECT_TRUE(MixesRows(norm(true, ValueRef{3})));
  EXPECT_FALSE(MixesRows(norm(false, ValueRef{3})));
  EXPECT_TRUE(MixesRows(norm(false, None{})));
  EXPECT_FALSE(MixesRows(MakeNode("aten.layer_norm.default", {})));
}

TEST(FindIdInputsTest, FollowsViewsCastsAndColumns) {
  GraphMaker maker;
  const ValueId ids = maker.Input("ids");
  const ValueId bags = maker.Input("bags");
  const ValueId offsets = maker.Input("offsets");
  maker.Input("dense");
  const ValueId users = maker.Weight("users", {1000, 16});
  const ValueId items = maker.Weight("items", {50, 16});
  const ValueId column = maker.Call(
      "aten.select.int",
      {Ref("self", ids), {"dim", int64_t{1}}, {"index", int64_t{0}}});
  const ValueId cast = maker.Call(
      "aten.to.dtype", {Ref("self", column), {"dtype", base::DType::kInt64}});
  maker.Call("aten.embedding.default",
             {Ref("weight", users), Ref("indices", cast)});
  maker.Call(
      "aten.embedding_bag.padding_idx",
      {Ref("weight", items), Ref("indices", bags), Ref("offsets", offsets)});
  // The same column again must not be listed twice.
  maker.Call("aten.embedding.default",
             {Ref("weight", users), Ref("indices", column)});

  const std::vector<IdInput> found = FindIdInputs(maker.graph());
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].input, ids);
  EXPECT_EQ(found[0].table, "users");
  EXPECT_EQ(found[0].rows, 1000);
  EXPECT_FALSE(found[0].is_offsets);
  EXPECT_EQ(found[1].input, bags);
  EXPECT_EQ(found[1].table, "items");
  EXPECT_EQ(found[1].rows, 50);
  EXPECT_FALSE(found[1].is_offsets);
  EXPECT_EQ(found[2].input, offsets);
  EXPECT_TRUE(found[2].is_offsets);
  EXPECT_EQ(found[2].ids, bags);
  EXPECT_FALSE(found[2].include_last_offset);
}

TEST(FindIdInputsTest, TellsTheColumnThatEachTableReads) {
  GraphMaker maker;
  const ValueId ids = maker.Input("ids");
  const auto read = [&](const std::string& table, ValueId column) {
    maker.Call(
        "aten.embedding.default",
        {Ref("weight", maker.Weight(table, {10, 4})), Ref("indices", column)});
  };
  read("selected", maker.Call("aten.select.int", {Ref("self", ids),
                                                  {"dim", int64_t{1}},
                                                  {"index", int64_t{3}}}));
  read("sliced", maker.Call("aten.slice.Tensor", {Ref("self", ids),
                                                  {"dim", int64_t{1}},
                                                  {"start", int64_t{5}},
                                                  {"end", int64_t{6}}}));
  // Two columns at once, a row, and everything: none of them is one column.
  read("two", maker.Call("aten.slice.Tensor", {Ref("self", ids),
                                               {"dim", int64_t{1}},
                                               {"start", int64_t{5}},
                                               {"end", int64_t{7}}}));
  read("row", maker.Call("aten.select.int", {Ref("self", ids),
                                             {"dim", int64_t{0}},
                                             {"index", int64_t{3}}}));
  read("all", ids);
  std::vector<std::pair<std::string, int64_t>> columns;
  for (const IdInput& found : FindIdInputs(maker.graph())) {
    EXPECT_EQ(found.input, ids);
    columns.emplace_back(found.table, found.column);
  }
  using ::testing::Pair;
  EXPECT_THAT(columns, ::testing::ElementsAre(
                           Pair("selected", 3), Pair("sliced", 5),
                           Pair("two", -1), Pair("row", -1), Pair("all", -1)));
}

// DeepCTR-Torch: one matrix of floats with ids, lists of ids and dense
// features.
TEST(FindIdInputsTest, TellsEachColumnOfASlice) {
  GraphMaker maker;
  const SymExpr batch = SymExpr::Symbol("b");
  const ValueId packed = maker.Input("packed");
  maker.SetShape(packed, {batch, SymExpr(9)});
  const auto slice = [&](ValueId of, int64_t dim, int64_t start, int64_t end) {
    return maker.Call(
        "aten.slice.Tensor",
        {Ref("self", of), {"dim", dim}, {"start", start}, {"end", end}});
  };
  const auto read = [&](const std::string& table, ValueId columns) {
    maker.Call(
        "aten.embedding.default",
        {Ref("weight", maker.Weight(table, {10, 4})), Ref("indices", columns)});
  };
  const auto cast = [&](ValueId of) {
    const ValueId result = maker.Call(
        "aten.to.dtype", {Ref("self", of), {"dtype", base::DType::kInt64}});
    maker.SetShape(result, {batch, SymExpr(9)});
    return result;
  };
  read("list", cast(slice(packed, 1, 2, 4)));
  // Columns of what has the input's elements in their places.
  const ValueId all = slice(cast(packed), 0, 0, INT64_MAX);
  maker.SetShape(all, {batch, SymExpr(9)});
  read("last", slice(all, 1, -2, INT64_MAX));
  read("whole", slice(packed, 1, 0, 9));
  std::vector<std::pair<std::string, int64_t>> columns;
  for (const IdInput& found : FindIdInputs(maker.graph())) {
    EXPECT_EQ(found.input, packed);
    columns.emplace_back(found.table, found.column);
  }
  using ::testing::Pair;
  EXPECT_THAT(columns, ::testing::ElementsAre(Pair("list", 2), Pair("list", 3),
                                              Pair("last", 7), Pair("last", 8),
                                              Pair("whole", -1)));
}

// Meta's DLRM: ids and offsets are matrices [tables, items].
TEST(FindIdInputsTest, TellsTheRowOfAFeatureMajorMatrix) {
  GraphMaker maker;
  const ValueId ids = maker.Input("ids");
  const ValueId offsets = maker.Input("offsets");
  const ValueId columns = maker.Input("columns");
  for (const ValueId input : {ids, offsets, columns}) {
    maker.SetShape(input, {SymExpr(2), SymExpr::Symbol("b")});
  }
  const auto part = [&](ValueId of, int64_t dim, int64_t index) {
    return maker.Call("aten.select.int",
                      {Ref("self", of), {"dim", dim}, {"index", index}});
  };
  // −1 is the last row.
  for (const int64_t row : {0, -1}) {
    maker.Call("aten.embedding_bag.padding_idx",
               {Ref("weight", maker.Weight(row == 0 ? "a" : "b", {10, 4})),
                Ref("indices", part(ids, 0, row)),
                Ref("offsets", part(offsets, 0, row))});
  }
  // A row and a column share an element: the row counts as the whole matrix.
  maker.Call("aten.embedding.default",
             {Ref("weight", maker.Weight("c", {9, 4})),
              Ref("indices", part(columns, 0, 1))});
  maker.Call("aten.embedding.default",
             {Ref("weight", maker.Weight("d", {9, 4})),
              Ref("indices", part(columns, 1, 0))});
  std::vector<std::tuple<ValueId, std::string, int64_t, int64_t>> parts;
  for (const IdInput& found : FindIdInputs(maker.graph())) {
    parts.emplace_back(found.input, found.table, found.row, found.column);
    EXPECT_EQ(found.ids, found.is_offsets ? ids : kNoValue);
  }
  using testing::FieldsAre;
  EXPECT_THAT(parts, ::testing::ElementsAre(FieldsAre(ids, "a", 0, -1),
                                            FieldsAre(offsets, "a", 0, -1),
                                            FieldsAre(ids, "b", 1, -1),
                                            FieldsAre(offsets, "b", 1, -1),
                                            FieldsAre(columns, "c", -1, -1),
                                            FieldsAre(columns, "d", -1, 0)));

  // Rows of a batch are items, not features.
  maker.SetShape(ids, {SymExpr::Symbol("b"), SymExpr::Symbol("b")});
  EXPECT_EQ(FindIdInputs(maker.graph())[0].row, -1);
}

// TorchRec's KeyedJaggedTensor: the ids of each table follow those of the table
// before, and lengths say how many ids each bag has.
TEST(FindIdInputsTest, TellsThePieceOfEachTableAndTheInputOfItsLengths) {
  GraphMaker maker;
  const ValueId ids = maker.Input("ids");
  const ValueId lengths = maker.Input("lengths");
  maker.SetShape(ids, {SymExpr::Symbol("n")});
  maker.SetShape(lengths, {SymExpr::Symbol("b") + SymExpr::Symbol("b")});
  const ValueId rows = maker.Call("aten.view.default", {Ref("self", lengths)});
  maker.SetShape(rows, {SymExpr(2), SymExpr::Symbol("b")});
  const ValueId ends = maker.Call("aten.cumsum.default",
                                  {Ref("self", rows), {"dim", int64_t{1}}});
  const std::vector<ValueId> pieces =
      maker.CallForList("aten.split_with_sizes.default", 2, {Ref("self", ids)});
  for (int64_t k = 0; k < 2; ++k) {
    const ValueId offsets =
        maker.Call("aten.select.int",
                   {Ref("self", ends), {"dim", int64_t{0}}, {"index", k}});
    maker.Call("aten.embedding_bag.padding_idx",
               {Ref("weight", maker.Weight(k == 0 ? "a" : "b", {10, 4})),
                Ref("indices", pieces[k]), Ref("offsets", offsets)});
  }
  const std::vector<IdInput> found = FindIdInputs(maker.graph());
  ASSERT_EQ(found.size(), 2u);
  for (int64_t k = 0; k < 2; ++k) {
    EXPECT_EQ(found[k].input, ids);
    EXPECT_EQ(found[k].table, k == 0 ? "a" : "b");
    EXPECT_EQ(found[k].piece, k);
    EXPECT_EQ(found[k].pieces, 2);
    EXPECT_EQ(found[k].lengths, lengths);
  }
  // Lengths of item after item are of no use to readers.
  maker.SetShape(rows, {SymExpr::Symbol("b"), SymExpr(2)});
  EXPECT_EQ(FindIdInputs(maker.graph())[0].lengths, kNoValue);
}

TEST(FindIdInputsTest, LengthsOfTwoInputsAreNoInput) {
  GraphMaker maker;
  const ValueId ids = maker.Input("ids");
  const ValueId some = maker.Input("some");
  const ValueId more = maker.Input("more");
  for (const ValueId input : {ids, some, more}) {
    maker.SetShape(input, {SymExpr::Symbol("n")});
  }
  const ValueId sum =
      maker.Call("aten.add.Tensor", {Ref("self", some), Ref("other", more)});
  for (const ValueId lengths : {sum, some}) {
    const ValueId ends = maker.Call(
        "aten.cumsum.default", {Ref("self", lengths), {"dim", int64_t{0}}});
    maker.Call("aten.embedding_bag.padding_idx",
               {Ref("weight", maker.Weight(lengths == sum ? "a" : "b", {9, 4})),
                Ref("indices", ids), Ref("offsets", ends)});
  }
  const std::vector<IdInput> found = FindIdInputs(maker.graph());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].lengths, kNoValue);
  EXPECT_EQ(found[1].lengths, some);
}

TEST(FindIdInputsTest, TellsWhetherBagsHaveAllIdsOfAnInputOrOfARow) {
  using Extent = IdInput::Extent;
  GraphMaker maker;
  const ValueId offsets = maker.Input("offsets");
  const ValueId matrix = maker.Input("matrix");
  const ValueId row = maker.Input("row");  // a matrix of one row
  const ValueId list = maker.Input("list");
  const SymExpr n = SymExpr::Symbol("n");
  maker.SetShape(matrix, {SymExpr(2), n});
  maker.SetShape(row, {SymExpr(1), n});
  maker.SetShape(list, {n});
  const auto select = [&](ValueId of) {
    const int64_t zero = 0;
    const ValueId part = maker.Call(
        "aten.select.int", {Ref("self", of), {"dim", zero}, {"index", zero}});
    maker.SetShape(part, {n});
    return part;
  };
  const ValueId flat = maker.Call("aten.view.default", {Ref("self", matrix)});
  maker.SetShape(flat, {n + n});
  const ValueId first = maker.Call(
      "aten.slice.Tensor", {Ref("self", list), {"end", int64_t{3}}});
  maker.SetShape(first, {SymExpr(3)});
  const ValueId twice =
      maker.Call("aten.cat.default", {{"tensors", ValueList{list, list}}});
  maker.SetShape(twice, {n + n});
  const std::vector<std::pair<ValueId, Extent>> cases = {
      {select(matrix), Extent::kRow}, {select(row), Extent::kRow},
      {list, Extent::kAll},           {flat, Extent::kAll},
      {first, Extent::kPart},         {twice, Extent::kPart}};
  for (const auto& [ids, extent] : cases) {
    maker.Call("aten.embedding_bag.padding_idx",
               {Ref("weight", maker.Weight(absl::StrCat("t", ids), {10, 4})),
                Ref("indices", ids), Ref("offsets", offsets)});
  }
  size_t k = 0;
  for (const IdInput& found : FindIdInputs(maker.graph())) {
    if (!found.is_offsets) continue;
    EXPECT_EQ(found.ids_extent, cases[k].second) << k;
    ++k;
  }
  EXPECT_EQ(k, cases.size());
}

TEST(FindIdInputsTest, TellsWhetherTheLastOffsetClosesABag) {
  GraphMaker maker;
  const ValueId ids = maker.Input("ids");
  const ValueId offsets = maker.Input("offsets");
  maker.Call("aten.embedding_bag.padding_idx",
             {Ref("weight", maker.Weight("table", {10, 4})),
              Ref("indices", ids),
              Ref("offsets", offsets),
              {"include_last_offset", true}});
  const std::vector<IdInput> found = FindIdInputs(maker.graph());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[1].is_offsets);
  EXPECT_EQ(found[1].ids, ids);
  EXPECT_TRUE(found[1].include_last_offset);
}

// The cross of two lists has as many ids as each, and so have its remainders;
// the concatenation of the lists has more.
TEST(FindIdInputsTest, OffsetsCountNumbersOfWhichIdsAreMade) {
  for (const char* const op : {"aten.bitwise_xor.Tensor", "aten.cat.default"}) {
    GraphMaker maker;
    const ValueId a = maker.Input("a");
    const ValueId b = maker.Input("b");
    const bool cross = op == absl::string_view("aten.bitwise_xor.Tensor");
    const ValueId both = maker.Call(
        op, cross ? std::vector<NamedArgument>{Ref("self", a), Ref("other", b)}
                  : std::vector<NamedArgument>{{"tensors", ValueList{a, b}}});
    const ValueId made = maker.Call(
        "aten.remainder.Scalar", {Ref("self", both), {"other", int64_t{16}}});
    maker.Call("aten.embedding_bag.padding_idx",
               {Ref("weight", maker.Weight("table", {16, 4})),
                Ref("indices", made), Ref("offsets", maker.Input("offsets"))});
    const std::vector<IdInput> found = FindIdInputs(maker.graph());
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].ids, cross ? a : kNoValue);
  }
}

TEST(FindIdInputsTest, ArithmeticMakesOtherNumbersThanTheInputs) {
  GraphMaker maker;
  const ValueId ids = maker.Input("ids");
  const ValueId table = maker.Weight("table", {1000, 16});
  const ValueId hashed = maker.Call(
      "aten.remainder.Scalar", {Ref("self", ids), {"other", int64_t{1000}}});
  maker.Call("aten.embedding.default",
             {Ref("weight", table), Ref("indices", hashed)});
  EXPECT_TRUE(FindIdInputs(maker.graph()).empty());
}

TEST(FindIdInputsTest, JoinedInputsAllCount) {
  GraphMaker maker;
  const ValueId a = maker.Input("a");
  const ValueId b = maker.Input("b");
  const ValueId table = maker.Weight("table", {10, 4});
  const ValueId both =
      maker.Call("aten.cat.default", {{"tensors", ValueList{a, b}}});
  maker.Call("aten.index_select.default",
             {Ref("self", table), {"dim", int64_t{0}}, Ref("index", both)});
  std::vector<ValueId> inputs;
  for (const IdInput& found : FindIdInputs(maker.graph())) {
    inputs.push_back(found.input);
  }
  EXPECT_THAT(inputs, ::testing::ElementsAre(a, b));
}

// zeros(B, 4).index_add(0, row, entries): every entry names a row of the batch.
TEST(FindIndexRangesTest, RowsThatEntriesAreAddedTo) {
  GraphMaker maker;
  const ValueId row = maker.Input("row");
  const ValueId zeros = maker.Input("zeros");
  maker.SetShape(row, {SymExpr::Symbol("n")});
  maker.SetShape(zeros, {SymExpr::Symbol("b"), 4});
  maker.Call("aten.index_add.default",
             {Ref("self", zeros), {"dim", int64_t{0}}, Ref("index", row)});
  const std::vector<IndexRange> found = FindIndexRanges(maker.graph());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].input, row);
  EXPECT_EQ(found[0].end, SymExpr::Symbol("b"));
  EXPECT_EQ(FindRowNumbers(maker.graph()), std::vector<ValueId>{row});
}

// RecBole's histories: states.gather(1, (length - 1).view(…).expand(…)), beside
// a table that is looked up at ids + 2.
TEST(FindIndexRangesTest, IntegersThatAreShiftedIndices) {
  GraphMaker maker;
  const SymExpr batch = SymExpr::Symbol("b");
  const ValueId length = maker.Input("length");
  const ValueId ids = maker.Input("ids");
  const ValueId product = maker.Input("product");
  const ValueId hashed = maker.Input("hashed");
  for (const ValueId input : {length, ids, product, hashed}) {
    maker.SetShape(input, {batch});
  }
  const ValueId states = maker.Input("states");
  maker.SetShape(states, {batch, SymExpr::Symbol("t") + 1, 8});
  const auto call = [&](const std::string& op, ValueId self,
                        std::vector<NamedArgument> args) {
    args.insert(args.begin(), Ref("self", self));
    return maker.Call("aten." + op, std::move(args));
  };
  const ValueId last = call("sub.Tensor", length, {{"other", int64_t{1}}});
  call("gather.default", states,
       {{"dim", int64_t{-2}}, Ref("index", call("view.default", last, {}))});
  // Another use of the same lengths: both ranges hold.
  maker.Call(
      "aten.embedding.default",
      {Ref("weight", maker.Weight("places", {7, 4})),
       Ref("indices", call("clamp.default", length, {{"min", int64_t{0}}}))});
  maker.Call(
      "aten.embedding.default",
      {Ref("weight", maker.Weight("items", {50, 4})),
       Ref("indices", call("add.Tensor", ids, {{"other", int64_t{2}}}))});
  // Offsets of fields in a table, and a mask.
  const ValueId mask = call("gt.Scalar", states, {{"other", int64_t{0}}});
  maker.SetDType(mask, base::DType::kBool);
  const ValueId field =
      call("add.Tensor", product, {Ref("other", maker.Weight("offsets", {1}))});
  maker.Call("aten.embedding.default",
             {Ref("weight", maker.Weight("fields", {50, 4})),
              Ref("indices", call("mul.Tensor", field, {Ref("other", mask)}))});
  // A remainder has a range of its own.
  maker.Call("aten.embedding.default",
             {Ref("weight", maker.Weight("hashed", {50, 4})),
              Ref("indices",
                  call("remainder.Scalar", hashed, {{"other", int64_t{50}}}))});
  const std::vector<IndexRange> found = FindIndexRanges(maker.graph());
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].input, length);
  EXPECT_EQ(found[0].least, 1);
  EXPECT_EQ(found[0].end.Evaluate({{"t", 5}}).value_or(-1), 7);
  EXPECT_EQ(found[0].end.Evaluate({{"t", 3}}).value_or(-1), 5);
  EXPECT_EQ(found[1].input, ids);
  EXPECT_EQ(found[1].least, 0);
  EXPECT_EQ(found[1].end.constant(), 48);
  EXPECT_EQ(found[2].input, product);
  EXPECT_EQ(found[2].least, 0);
  EXPECT_TRUE(found[2].end.is_unknown());
}

}  // namespace
}  // namespace refract::models
