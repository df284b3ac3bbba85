// Models are written in TorchScript, as a trace would leave them: with sizes
// computed, or written in as literals.

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/shapes/infer.h"
#include "tests/models/shapes/inferred_model_torch.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(InferShapesTest, RowsOfAllInputsAreOneSymbol) {
  Model model(R"(
    def forward(self, dense, ids):
      return torch.cat([torch.linear(dense, self.weight),
                        torch.embedding(self.table, ids)], 1)
  )");
  ASSERT_TRUE(
      model.Infer({{"dense", Floats({4, 13})}, {"ids", Ids({4})}}).ok());
  EXPECT_EQ(model.InputShape("dense"), "B, 13");
  EXPECT_EQ(model.InputShape("ids"), "B");
  EXPECT_EQ(model.OutputShape(), "B, 5");
  EXPECT_EQ(model.graph().batch_symbol, "B");
  EXPECT_EQ(model.graph().value(model.graph().outputs[0]).dtype,
            base::DType::kFloat32);
  EXPECT_EQ(model.graph().value(model.graph().inputs[1]).dtype,
            base::DType::kInt64);
}

TEST(InferShapesTest, OffsetsFollowTheRowsAndRaggedLengthsAreFree) {
  Model model(kBags);
  // Both bags hold 7 ids, and one of them as many as there are offsets.
  ASSERT_TRUE(model
                  .Infer({{"dense", Floats({4, 13})},
                          {"a", Ids({7})},
                          {"a_offsets", Longs({0, 2, 2, 5, 7})},
                          {"b", Ids({7})},
                          {"b_offsets", Longs({0, 0, 3, 4})}})
                  .ok());
  EXPECT_EQ(model.InputShape("dense"), "B, 13");
  EXPECT_EQ(model.InputShape("a_offsets"), "B + 1");
  EXPECT_EQ(model.InputShape("b_offsets"), "B");
  EXPECT_EQ(model.InputShape("a"), "N0");
  EXPECT_EQ(model.InputShape("b"), "N1");
  EXPECT_EQ(model.OutputShape(), "B");
  for (const SymbolRange& range : model.graph().symbols) {
    EXPECT_EQ(range.min, range.symbol == "B" ? 1 : 0) << range.symbol;
  }
}

TEST(InferShapesTest, OutputsOfTwoUntiedInputsFollowOneEach) {
  Model model(R"(
    def forward(self, x, y):
      return torch.relu(x), torch.sigmoid(y)
  )");
  // Both inputs have as many rows in the example, but no operator ties them.
  ASSERT_TRUE(
      model.Infer({{"x", Floats({4, 13})}, {"y", Floats({4, 5})}}).ok());
  EXPECT_EQ(model.OutputShape(0), "B, 13");
  EXPECT_EQ(model.OutputShape(1), "N0, 5");
}

TEST(FillShapesTest, FindsWhatTheExportDoesNotSay) {
  Model model(R"(
    def forward(self, x, ids):
      rows = torch.embedding(self.table, ids)
      return torch.sum(rows, 1), torch.cat([x, x], 1), torch.flatten(rows, 1)
  )");
  ASSERT_TRUE(model.Infer({{"x", Floats({4, 5})}, {"ids", Ids({4, 6})}}).ok());
  std::vector<std::string> wanted;
  for (size_t i = 0; i < 3; ++i) wanted.push_back(model.OutputShape(i));
  model.ForgetShapes();
  EXPECT_EQ(model.OutputShape(0), "?");
  model.Fill();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(model.OutputShape(i), wanted[i]);
}

TEST(InferShapesTest, HistoryLengthIsASymbolOfItsOwn) {
  Model model(R"(
    def forward(self, items, kinds, lengths):
      x = torch.cat([torch.embedding(self.table, items),
                     torch.embedding(self.table, kinds)], 2)
      mask = torch.arange(x.size(1)).unsqueeze(0) < lengths.unsqueeze(1)
      y = x * mask.unsqueeze(2)
      return y.sum(1), y.flatten(1)
  )");
  ASSERT_TRUE(model
                  .Infer({{"items", Ids({4, 5})},
                          {"kinds", Ids({4, 5})},
                          {"lengths", Longs({1, 0, 5, 2})}})
                  .ok());
  EXPECT_EQ(model.InputShape("items"), "B, T0");
  EXPECT_EQ(model.InputShape("kinds"), "B, T0");
  EXPECT_EQ(model.InputShape("lengths"), "B");
  EXPECT_EQ(model.OutputShape(0), "B, 6");
  EXPECT_EQ(model.OutputShape(1), "B, 6*T0");
}

TEST(InferShapesTest, ProductsOfSymbolsAreFound) {
  Model model(R"(
    def forward(self, items, other):
      x = torch.embedding(self.table, items)
      flat = x.reshape(-1, 3)
      y = flat.reshape(x.size(0), x.size(1), 3).sum(1)
      return y + other.sum(1, True), flat
  )");
  ASSERT_TRUE(
      model.Infer({{"items", Ids({4, 5})}, {"other", Floats({4, 2})}}).ok());
  EXPECT_EQ(model.InputShape("items"), "B, T0");
  EXPECT_EQ(model.OutputShape(1), "B*T0, 3");
}

TEST(InferShapesTest, LengthsOfSeveralFeaturesPerRowAreMultiples) {
  // Keyed jagged input: 2 features × B lengths, ids of all of them in a row.
  Model model(R"(
    def forward(self, dense, values, lengths):
      zero = torch.zeros([1], dtype=4)
      offsets = torch.cat([zero, torch.cumsum(lengths, 0)])
      x = torch.embedding_bag(self.table, values, offsets, False, 0, False,
                              None, True)[0]
      y = x.view(2, -1, 3).transpose(0, 1).reshape(-1, 6)
      return torch.cat([dense, y], 1)
  )");
  ASSERT_TRUE(model
                  .Infer({{"dense", Floats({4, 13})},
                          {"values", Ids({9})},
                          {"lengths", Longs({1, 0, 3, 2, 0, 0, 1, 2})}})
                  .ok());
  EXPECT_EQ(model.InputShape("dense"), "B, 13");
  EXPECT_EQ(model.InputShape("lengths"), "2*B");
  EXPECT_EQ(model.InputShape("values"), "N0");
  EXPECT_EQ(model.OutputShape(), "B, 19");
}

TEST(InferShapesTest, OffsetsOfAllTablesMayBeOneMatrix) {
  Model model(R"(
    def forward(self, dense, ids, offsets):
      x = torch.embedding_bag(self.table, ids[0], offsets[0])[0]
      y = torch.embedding_bag(self.table, ids[1], offsets[1])[0]
      return torch.cat([dense, x, y], 1)
  )");
  ASSERT_TRUE(
      model
          .Infer({{"dense", Floats({4, 13})},
                  {"ids", Ids({2, 9})},
                  {"offsets", Longs({0, 1, 1, 5, 0, 3, 7, 8}).view({2, 4})}})
          .ok());
  EXPECT_EQ(model.InputShape("dense"), "B, 13");
  EXPECT_EQ(model.InputShape("ids"), "2, T0");
  EXPECT_EQ(model.InputShape("offsets"), "2, B");
  EXPECT_EQ(model.OutputShape(), "B, 19");
}

// Meta's DLRM: a row of offsets for each list of ids.
TEST(InferShapesTest, OffsetsOfListsOfIdsMayBeOneMatrix) {
  Model model(R"(
    def forward(self, dense, offsets, a, b):
      x = torch.embedding_bag(self.table, a, offsets[0])[0]
      y = torch.embedding_bag(self.table, b, offsets[1])[0]
      return torch.cat([dense, x, y], 1)
  )");
  ASSERT_TRUE(
      model
          .Infer({{"dense", Floats({4, 13})},
                  {"offsets", Longs({0, 1, 1, 5, 0, 3, 3, 4}).view({2, 4})},
                  {"a", Ids({9})},
                  {"b", Ids({5})}})
          .ok());
  EXPECT_EQ(model.InputShape("offsets"), "2, B");
  EXPECT_EQ(model.InputShape("a"), "N0");
  EXPECT_EQ(model.InputShape("b"), "N1");
  EXPECT_EQ(model.OutputShape(), "B, 19");
}

// Rows of x beyond those that order picks do no harm, so x alone may grow.
TEST(InferShapesTest, RowsThatMayOnlyGrowAreRowsOfTheBatch) {
  Model model(R"(
    def forward(self, x, order):
      return torch.index_select(x, 0, torch.argsort(order)).sum(1)
  )");
  ASSERT_TRUE(
      model.Infer({{"x", Floats({4, 13})}, {"order", Longs({3, 1, 2, 0})}})
          .ok());
  EXPECT_EQ(model.InputShape("x"), "B, 13");
  EXPECT_EQ(model.InputShape("order"), "B");
  EXPECT_EQ(model.OutputShape(), "B");
}

TEST(InferShapesTest, OneUserForManyItemsStaysOne) {
  Model model(R"(
    def forward(self, user, items):
      u = torch.linear(user, self.weight).expand(items.size(0), -1)
      return (u * torch.linear(items, self.weight)).sum(1)
  )");
  ASSERT_TRUE(
      model.Infer({{"user", Floats({1, 13})}, {"items", Floats({5, 13})}})
          .ok());
  EXPECT_EQ(model.InputShape("user"), "1, 13");
  EXPECT_EQ(model.InputShape("items"), "B, 13");
  EXPECT_EQ(model.OutputShape(), "B");
}

// squeeze() drops the column of one user, and not two columns.
TEST(InferShapesTest, OneUserWhomSqueezeDropsStaysOne) {
  Model model(R"(
    def forward(self, history, weights, item):
      user = (torch.embedding(self.table, history) * weights).sum(1)
      return torch.mm(torch.embedding(self.table, item), user.t()).squeeze(1)
  )");
  const Inputs sample = {{"history", Ids({1, 6})},
                         {"weights", Floats({1, 6, 1})},
                         {"item", Ids({5})}};
  ASSERT_TRUE(model.Infer(sample).ok());
  EXPECT_EQ(model.InputShape("history"), "1, T0");
  EXPECT_EQ(model.InputShape("item"), "B");
  EXPECT_EQ(model.OutputShape(), "B");
}

// One user moved to two rows would meet two items.
TEST(InferShapesTest, TwoItemsOfOneUserAreTheBatch) {
  Model model(R"(
    def forward(self, user, history, items):
      u = torch.linear(user, self.weight) + torch.linear(history, self.weight)
      return (u.expand(items.size(0), -1) *
              torch.linear(items, self.weight)).sum(1)
  )");
  ASSERT_TRUE(model
                  .Infer({{"user", Floats({1, 13})},
                          {"history", Floats({1, 13})},
                          {"items", Floats({2, 13})}})
                  .ok());
  EXPECT_EQ(model.InputShape("user"), "1, 13");
  EXPECT_EQ(model.InputShape("items"), "B, 13");
}

TEST(InferShapesTest, ASampleOfOneRowIsEnough) {
  Model model(R"(
    def forward(self, a, b):
      return (a + b).sum(1)
  )");
  ASSERT_TRUE(
      model.Infer({{"a", Floats({1, 13})}, {"b", Floats({1, 13})}}).ok());
  EXPECT_EQ(model.InputShape("a"), "B, 13");
  EXPECT_EQ(model.InputShape("b"), "B, 13");
  EXPECT_EQ(model.OutputShape(), "B");
}

TEST(InferShapesTest, SizesThatDataDecidesStayUnknown) {
  Model model(R"(
    def forward(self, x, ids):
      picked = x[ids > 4]
      return x.sum(1) + picked.sum(), picked
  )");
  ASSERT_TRUE(
      model.Infer({{"x", Floats({4, 13})}, {"ids", Longs({9, 1, 2, 7})}}).ok());
  EXPECT_EQ(model.OutputShape(0), "B");
  EXPECT_EQ(model.OutputShape(1), "?, 13");
}

// The example's ids are the same ones in every probe, and all its values are
// positive.
TEST(InferShapesTest, SizesThatDataDecideOnlyInOtherRequestsStayUnknown) {
  Model model(R"(
    def forward(self, x, ids):
      different = torch._unique2(ids)[0]
      positive = x[x.sum(1) > 0]
      return x.sum(1), torch.embedding(self.table, different), positive
  )");
  ASSERT_TRUE(
      model.Infer({{"x", at::ones({4, 13})}, {"ids", Longs({3, 1, 1, 2, 3})}})
          .ok());
  EXPECT_EQ(model.OutputShape(0), "B");
  EXPECT_EQ(model.OutputShape(1), "?, 3");
  EXPECT_EQ(model.OutputShape(2), "?, 13");
}

TEST(InferShapesTest, CastsThatChangeNothingGo) {
  Model model(R"(
    def forward(self, x, y):
      z = x * 2
      z.add_(y)
      return z.float()
  )");
  ASSERT_TRUE(
      model.Infer({{"x", Floats({4, 13})}, {"y", Floats({4, 13})}}).ok());
  std::vector<std::string> ops;
  for (const Node& node : model.graph().nodes) ops.push_back(node.op);
  EXPECT_THAT(ops, ElementsAre("aten.mul.Scalar", "aten.add.Tensor"));
}

TEST(InferShapesTest, SpecialisedTracesAreRefusedByTheOperatorAtFault) {
  struct Case {
    std::string body;
    std::string culprit;
  };
  const std::vector<Case> cases = {
      {"x.view([4, -1]).sum(1)", "aten.view.default, size=[4, -1]"},
      {"torch.linear(x.reshape([4, 13]), self.weight)",
       "aten.reshape.default, shape=[4, 13]"},
      {"torch.cat(x.split([1, 3]), 0)", "split"},
      {"x + torch.arange(4).unsqueeze(1)", "aten.arange.default, end=4"},
      {"x[:, :1].expand(4, 13) * x", "aten.expand.default, size=[4, 13]"},
      {"torch.cat([x, torch.zeros([4, 2])], 1)",
       "aten.zeros.default, size=[4, 2]"},
      {"torch.constant_pad_nd(x, [0, 0, 0, 2])[:4].sum(1)",
       "aten.slice.Tensor, dim=0, end=4"},
      {"x.view([2, 2, 13]).sum(1).repeat_interleave(2, 0)",
       "aten.view.default, size=[2, 2, 13]"},
      {"torch.linear(x.view([4, -1]).view([-1, 13]), self.weight).view([4, 2])",
       "aten.view.default, size=[4, "},
      {"torch.bmm(x.view([4, 13, 1]), x.view([4, 1, 13])).flatten(1)",
       "aten.view.default, size=[4, 13, 1]"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.body);
    Model model(absl::StrCat("\n    def forward(self, x):\n      return ",
                             c.body, "\n"));
    const absl::Status status = model.Infer({{"x", Floats({4, 13})}});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("specialised to its batch of 4"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.culprit));
  }
}

TEST(InferShapesTest, SpecialisedTraceOfSeveralInputsIsRefused) {
  Model model(R"(
    def forward(self, dense, ids):
      x = torch.cat([torch.linear(dense, self.weight),
                     torch.embedding(self.table, ids)], 1)
      return x.view([4, 5]).sum(1)
  )");
  const absl::Status status =
      model.Infer({{"dense", Floats({4, 13})}, {"ids", Ids({4})}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("aten.view.default, size=[4, 5]"));
}

// Works for even batches only; a neighbour of the traced batch shows this.
TEST(InferShapesTest, TraceThatPairsRowsIsRefused) {
  Model model(R"(
    def forward(self, x):
      return x.view([-1, 2, 13]).flip(1).reshape([-1, 13]).sum(1)
  )");
  const absl::Status status = model.Infer({{"x", Floats({4, 13})}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("aten.view.default"));
}

TEST(InferShapesTest, RowsThatDependOnEachOtherAreNoSpecialisation) {
  Model model(R"(
    def forward(self, x):
      return torch.softmax(x.sum(1), 0)
  )");
  ASSERT_TRUE(model.Infer({{"x", Floats({4, 13})}}).ok());
  EXPECT_EQ(model.OutputShape(), "B");
}

TEST(InferShapesTest, SampleThatDoesNotFitIsRefusedByName) {
  const std::string body = R"(
    def forward(self, x, y):
      return torch.linear(x, self.weight) + y
  )";
  const at::Tensor x = Floats({4, 13});
  const at::Tensor y = Floats({4, 2});
  EXPECT_THAT(Model(body).Infer({{"x", x}}).message(),
              HasSubstr("input y is missing"));
  EXPECT_THAT(Model(body).Infer({{"x", x}, {"y", y}, {"z", y}}).message(),
              HasSubstr("no input z"));
  EXPECT_THAT(Model(body).Infer({{"x", x}, {"x", x}, {"y", y}}).message(),
              HasSubstr("x is given twice"));
  const absl::Status status = Model(body).Infer({{"x", y}, {"y", y}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("the model fails on the example request"));
  EXPECT_THAT(status.message(), HasSubstr("aten.linear.default"));
}

// The steps of a history may add up to the number of another feature's ids. The
// operator shows which offsets divide the ids.
TEST(InferShapesTest, LengthsThatAddUpToOtherIdsDivideNothing) {
  Model model(R"(
    def forward(self, ids: Tensor, offsets: Tensor, steps: Tensor) -> Tensor:
      x = torch.embedding_bag(self.table, ids, offsets)[0]
      return x.sum(1) + steps
  )");
  ASSERT_TRUE(model
                  .Infer({{"ids", Ids({7})},
                          {"offsets", Longs({0, 1, 5, 6, 6})},
                          {"steps", Longs({1, 1, 1, 1, 3})}})
                  .ok());
  const absl::Status checked = model.Check();
  EXPECT_TRUE(checked.ok()) << checked;
  EXPECT_THAT(model.notes, ::testing::IsEmpty());
}

TEST(InferShapesTest, WeightedIdsThatAreAsManyAsRowsStayApart) {
  Model model(R"(
    def forward(self, dense, ids, offsets, weights):
      x = torch.embedding_bag(self.table, ids, offsets, False, 0, False,
                              weights, False)[0]
      return torch.cat([dense, x], 1).sum(1)
  )");
  ASSERT_TRUE(model
                  .Infer({{"dense", Floats({4, 13})},
                          {"ids", Ids({4})},
                          {"offsets", Longs({0, 1, 2, 3})},
                          {"weights", Floats({4})}})
                  .ok());
  EXPECT_EQ(model.InputShape("dense"), "B, 13");
  EXPECT_EQ(model.InputShape("offsets"), "B");
  EXPECT_EQ(model.InputShape("ids"), "N0");
  EXPECT_EQ(model.InputShape("weights"), "N0");
}

// Meta's DLRM: one id per table and item, and bags that begin at each of them.
TEST(InferShapesTest, IdsOfAllTablesMayBeOneMatrix) {
  for (const int64_t batch : {33, 7, 3, 2}) {
    Model model(R"(
      def forward(self, dense, ids):
        offsets = torch.arange(ids.size(1))
        x = torch.embedding_bag(self.table, ids[0], offsets)[0]
        y = torch.embedding_bag(self.table, ids[1], offsets)[0]
        return torch.cat([dense, x, y], 1)
    )");
    const absl::Status status =
        model.Infer({{"dense", Floats({batch, 13})}, {"ids", Ids({2, batch})}});
    ASSERT_TRUE(status.ok()) << batch << ": " << status;
    EXPECT_EQ(model.InputShape("dense"), "B, 13");
    EXPECT_EQ(model.InputShape("ids"), "2, B");
    EXPECT_EQ(model.OutputShape(), "B, 19");
  }
}

TEST(InferShapesTest, WeightsOfIdsFollowTheIdsOfTheirTable) {
  for (const int64_t more : {0, 1}) {  // ids of the second table
    Model model(R"(
      def forward(self, dense, v0, v1, o0, o1, w0, w1):
        x = torch.embedding_bag(self.table, v0, o0, False, 0, False, w0)[0]
        y = torch.embedding_bag(self.table, v1, o1, False, 0, False, w1)[0]
        return torch.cat([dense, x, y], 1).sum(1)
    )");
    const absl::Status status = model.Infer({{"dense", Floats({4, 13})},
                                             {"v0", Ids({9})},
                                             {"v1", Ids({9 + more})},
                                             {"o0", Longs({0, 1, 2, 8})},
                                             {"o1", Longs({0, 3, 4, 8})},
                                             {"w0", Floats({9})},
                                             {"w1", Floats({9 + more})}});
    ASSERT_TRUE(status.ok()) << more << ": " << status;
    EXPECT_EQ(model.InputShape("dense"), "B, 13");
    EXPECT_EQ(model.InputShape("o1"), "B");
    EXPECT_EQ(model.InputShape("v0"), model.InputShape("w0"));
    EXPECT_EQ(model.InputShape("v1"), model.InputShape("w1"));
    EXPECT_NE(model.InputShape("v0"), model.InputShape("v1"));
  }
}

// SASRec: padding on the left, and a table with as many positions as steps.
TEST(InferShapesTest, StepsWithoutFurtherPositionsAreFixed) {
  Model model(R"(
    def forward(self, steps):
      place = torch.arange(1, steps.size(1) + 1).unsqueeze(0) * (steps != 0)
      x = torch.embedding(self.table, steps) + torch.embedding(self.table, place)
      return x.sum(1)
  )");
  at::Tensor steps = at::ones({4, 9}, at::kLong);
  steps.slice(1, 0, 3).zero_();
  const absl::Status status = model.Infer({{"steps", steps}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(model.InputShape("steps"), "B, 9");
}

// Entries name their row: there may be fewer rows in another request.
TEST(InferShapesTest, NumbersOfRowsStayBelowTheRows) {
  for (const std::string sum :
       {"zeros.index_add(0, row, x)",
        "zeros.scatter_add(0, row.unsqueeze(1).expand(-1, 3), x)"}) {
    SCOPED_TRACE(sum);
    Model model(absl::StrCat(R"(
      def forward(self, ids, row, dense):
        x = torch.embedding(self.table, ids)
        zeros = torch.zeros([dense.size(0), 3])
        return torch.cat([dense, )",
                             sum, "], 1)\n"));
    const absl::Status status =
        model.Infer({{"ids", Ids({9})},
                     {"row", Longs({0, 0, 0, 1, 3, 3, 3, 3, 4})},
                     {"dense", Floats({5, 13})}});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(model.InputShape("dense"), "B, 13");
    EXPECT_EQ(model.InputShape("row"), model.InputShape("ids"));
    EXPECT_EQ(model.OutputShape(), "B, 16");
  }
}

// Candidates name their user, and a table of fixed size as well.
TEST(InferShapesTest, NumbersOfRowsDoNotGrow) {
  Model model(R"(
    def forward(self, users, user, dense):
      x = torch.embedding(self.table, users)[user]
      return torch.cat([dense, x, self.table.t()[:, user].t()], 1)
  )");
  const absl::Status status =
      model.Infer({{"users", Ids({4})},
                   {"user", Longs({3, 0, 2, 1, 1, 0, 3})},
                   {"dense", Floats({7, 13})}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(model.InputShape("user"), "B");
  EXPECT_EQ(model.InputShape("users"), "N0");
  EXPECT_EQ(model.OutputShape(), "B, 19");
}

// The model makes a padded matrix of the ids of all rows.
TEST(InferShapesTest, LengthsOfPaddedRowsAddUpToTheIds) {
  Model model(R"(
    def forward(self, ids, lengths):
      mask = torch.arange(12).unsqueeze(0) < lengths.unsqueeze(1)
      zeros = torch.zeros([lengths.size(0), 12], dtype=4)
      padded = zeros.masked_scatter(mask, ids)
      return torch.embedding(self.table, padded).sum(1)
  )");
  const absl::Status status =
      model.Infer({{"ids", Ids({9})}, {"lengths", Longs({2, 0, 3, 3, 1})}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(model.InputShape("lengths"), "B");
  EXPECT_EQ(model.OutputShape(), "B, 3");
}

// Rows of at most 4 ids: fewer rows cannot hold the example's ids.
TEST(InferShapesTest, RowsOfFewStepsHoldAllIds) {
  Model model(R"(
    def forward(self, ids, lengths):
      mask = torch.arange(4).unsqueeze(0) < lengths.unsqueeze(1)
      zeros = torch.zeros([lengths.size(0), 4], dtype=4)
      padded = zeros.masked_scatter(mask, ids)
      both = torch.masked_select(padded, mask) + ids
      return torch.embedding(self.table, padded).sum(1), both
  )");
  const absl::Status status =
      model.Infer({{"ids", Ids({13})}, {"lengths", Longs({4, 1, 4, 4, 0})}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(model.InputShape("lengths"), "B");
}

TEST(InferShapesTest, TopKOverTheBatchNeedsItsRows) {
  Model model(R"(
    def forward(self, x):
      return torch.topk(torch.linear(x, self.weight).sum(1), 3)
  )");
  const absl::Status status = model.Infer({{"x", Floats({6, 13})}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(model.InputShape("x"), "B, 13");
  EXPECT_EQ(model.OutputShape(0), "3");
  EXPECT_EQ(model.OutputShape(1), "3");
  EXPECT_EQ(model.graph().min_batch, 3);
}

}  // namespace
}  // namespace refract::models
