// Batches of one row, and sizes of zero and one.

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/substitute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/shapes/infer.h"
#include "tests/models/shapes/inferred_model_torch.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CheckRowsTest, BatchOfOneThatAgreesNeedsNoPadding) {
  Model model(kBags);
  ASSERT_TRUE(model
                  .Infer({{"dense", Floats({4, 13})},
                          {"a", Ids({7})},
                          {"a_offsets", Longs({0, 2, 2, 5, 7})},
                          {"b", Ids({7})},
                          {"b_offsets", Longs({0, 0, 3, 4})}})
                  .ok());
  ASSERT_TRUE(model.Check().ok());
  EXPECT_EQ(model.graph().min_batch, 1);
  EXPECT_THAT(model.notes, IsEmpty());
  // An exporter's guard is withdrawn.
  model.imported.graph.min_batch = 2;
  ASSERT_TRUE(model.Check().ok());
  EXPECT_EQ(model.graph().min_batch, 1);
  EXPECT_EQ(model.notes.size(), 1u);
}

// Meta's DLRM: offsets have a row for each table, and so have the ids, or each
// table has a list of them.
TEST(CheckRowsTest, MatricesOfOffsetsAreCutByRows) {
  constexpr char kBody[] = R"(
    def forward(self, dense, offsets, $0):
      x = torch.embedding_bag(self.table, $1, offsets[0])[0]
      y = torch.embedding_bag(self.table, $2, offsets[1])[0]
      return torch.cat([dense, x, y], 1)$3
  )";
  const at::Tensor offsets = Longs({0, 2, 2, 5, 0, 2, 6, 7}).view({2, 4});
  const Inputs lists = {{"dense", Floats({4, 13})},
                        {"offsets", offsets},
                        {"a", Ids({9})},
                        {"b", Ids({8})}};
  const Inputs matrix = {{"dense", Floats({4, 13})},
                         {"offsets", offsets},
                         {"ids", Ids({2, 9})}};
  for (const bool of_lists : {true, false}) {
    SCOPED_TRACE(of_lists);
    const auto body = [&](absl::string_view end) {
      return of_lists ? absl::Substitute(kBody, "a, b", "a", "b", end)
                      : absl::Substitute(kBody, "ids", "ids[0]", "ids[1]", end);
    };
    Model model(body(""));
    ASSERT_TRUE(model.Infer(of_lists ? lists : matrix).ok());
    model.imported.graph.min_batch = 2;
    ASSERT_TRUE(model.Check().ok());
    EXPECT_EQ(model.graph().min_batch, 1);
    EXPECT_THAT(model.notes, ElementsAre(HasSubstr("so it is served")));
    // The squeeze drops the batch of one row.
    Model squeezed(body("[:, :1].squeeze()"));
    ASSERT_TRUE(squeezed.Infer(of_lists ? lists : matrix).ok());
    ASSERT_TRUE(squeezed.Check().ok());
    EXPECT_EQ(squeezed.graph().min_batch, 2);
    // Rows that depend on each other.
    Model mixed(body(".sum(1).softmax(0)"));
    ASSERT_TRUE(mixed.Infer(of_lists ? lists : matrix).ok());
    ASSERT_TRUE(mixed.Check().ok());
    EXPECT_EQ(mixed.graph().rows.use, RowUse::kTogether);
  }
  // The first bags of the tables have 2 ids and 1: no matrix has these alone.
  Model uneven(absl::Substitute(kBody, "ids", "ids[0]", "ids[1]", ""));
  ASSERT_TRUE(
      uneven
          .Infer({{"dense", Floats({4, 13})},
                  {"offsets", Longs({0, 2, 2, 5, 0, 1, 6, 7}).view({2, 4})},
                  {"ids", Ids({2, 9})}})
          .ok());
  ASSERT_TRUE(uneven.Check().ok());
  EXPECT_THAT(uneven.notes, ElementsAre(HasSubstr("was not compared")));
}

TEST(CheckRowsTest, SqueezeThatTakesTheBatchAwayIsPadded) {
  Model model(R"(
    def forward(self, x):
      return torch.linear(x, self.weight)[:, :1].squeeze()
  )");
  ASSERT_TRUE(model.Infer({{"x", Floats({4, 13})}}).ok());
  ASSERT_TRUE(model.Check().ok());
  EXPECT_EQ(model.graph().min_batch, 2);
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_THAT(model.notes[0], HasSubstr("requests need 2 rows or more"));
}

// Constants beside the scores may have as many entries as a batch that is run.
TEST(CheckRowsTest, ConstantsAreNoRows) {
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE(size);
    Model model(absl::Substitute(R"(
      def forward(self, x):
        return x.sum(1), self.weight[0, :$0] * 2
    )",
                                 size));
    ASSERT_TRUE(model.Infer({{"x", Floats({4, 13})}}).ok());
    ASSERT_TRUE(model.Check().ok());
    EXPECT_NE(model.graph().rows.use, RowUse::kTogether);
    EXPECT_EQ(model.graph().min_batch, 1);
    EXPECT_THAT(model.notes, IsEmpty());
  }
}

TEST(CheckRowsTest, FailureForOneRowIsPadded) {
  Model model(R"(
    def forward(self, x):
      y = x.squeeze()
      return torch.bmm(y.unsqueeze(1), y.unsqueeze(2)).flatten()
  )");
  ASSERT_TRUE(model.Infer({{"x", Floats({4, 13})}}).ok());
  ASSERT_TRUE(model.Check().ok());
  EXPECT_EQ(model.graph().min_batch, 2);
}

TEST(CheckRowsTest, RowsThatDependOnEachOtherAreNoted) {
  for (const std::string body :
       {"torch.softmax(x.sum(1), 0)", "x.sum(1) - x.mean()",
        "x.sum(1) / x.size(0)"}) {
    SCOPED_TRACE(body);
    Model model(
        absl::StrCat("\n    def forward(self, x):\n      return ", body, "\n"));
    ASSERT_TRUE(model.Infer({{"x", Floats({4, 13})}}).ok());
    ASSERT_TRUE(model.Check().ok());
    EXPECT_EQ(model.graph().min_batch, 1);
    EXPECT_EQ(model.graph().rows.use, RowUse::kTogether);
    EXPECT_THAT(model.graph().rows.why, HasSubstr("rows depend on each other"));
  }
}

// Items are the rows, and counts divide them among users: a request of chosen
// items needs other counts.
TEST(CheckRowsTest, ItemsOfSeveralUsersAreNotChosen) {
  Model model(R"(
    def forward(self, users, items, counts):
      x = torch.repeat_interleave(torch.embedding(self.table, users), counts, 0)
      return torch.cat([x, torch.embedding(self.table, items)], 1).sum(1)
  )");
  ASSERT_TRUE(model
                  .Infer({{"users", Ids({4})},
                          {"items", Ids({9})},
                          {"counts", Longs({2, 3, 0, 4})}})
                  .ok());
  EXPECT_EQ(model.InputShape("items"), "B");
  const absl::Status checked = model.Check();
  ASSERT_TRUE(checked.ok()) << checked;
  EXPECT_THAT(model.notes, ElementsAre(HasSubstr("was not compared")));
}

TEST(CheckRowsTest, LargerMinimumIsLeftAlone) {
  Model model(R"(
    def forward(self, x):
      return x.sum(1)
  )");
  ASSERT_TRUE(model.Infer({{"x", Floats({4, 13})}}).ok());
  model.imported.graph.min_batch = 4;
  ASSERT_TRUE(model.Check().ok());
  EXPECT_EQ(model.graph().min_batch, 4);
}

TEST(RelaxSmallSizesTest, BagsMayHoldOneIdInAllOrNone) {
  Model model(kBags);
  ASSERT_TRUE(model
                  .Infer({{"dense", Floats({4, 13})},
                          {"a", Ids({7})},
                          {"a_offsets", Longs({0, 2, 2, 5, 7})},
                          {"b", Ids({9})},
                          {"b_offsets", Longs({0, 0, 3, 4})}})
                  .ok());
  ASSERT_TRUE(model.LimitAndRelax().ok());
  EXPECT_EQ(model.MinOf("N0"), 0);
  EXPECT_EQ(model.MinOf("N1"), 0);
  EXPECT_THAT(model.notes, IsEmpty());
}

// Two tables share the bags of a request's ids: quotients and remainders.
TEST(RelaxSmallSizesTest, BagsMayHoldComputedIds) {
  Model model(R"(
    def forward(self, ids, offsets):
      x = torch.embedding_bag(self.table, ids // 7, offsets)[0]
      y = torch.embedding_bag(self.table, (ids ^ (ids >> 3)) % 7, offsets)[0]
      return (x * y).sum(1)
  )");
  const at::Tensor offsets = Longs({0, 2, 2, 5});
  ASSERT_TRUE(model.Infer({{"ids", Ids({12}, 70)}, {"offsets", offsets}}).ok());
  EXPECT_EQ(model.InputShape("ids"), "N0");
  EXPECT_EQ(model.InputShape("offsets"), "B");
  ASSERT_TRUE(model.LimitAndRelax(/*with_sample=*/true).ok());
  EXPECT_EQ(model.MinOf("N0"), 0);
  ASSERT_TRUE(model.Check().ok());
  EXPECT_EQ(model.graph().min_batch, 1);
  EXPECT_NE(model.graph().rows.use, RowUse::kTogether);
  EXPECT_THAT(model.notes, IsEmpty());
}

// Crosses of two lists, and lengths instead of offsets.
TEST(RelaxSmallSizesTest, BagsMayHoldCrosses) {
  Model model(R"(
    def forward(self, a, b, lengths):
      offsets = torch.cumsum(lengths, 0) - lengths
      return torch.embedding_bag(self.table, (a * 3 + b) % 10, offsets)[0]
  )");
  ASSERT_TRUE(model
                  .Infer({{"a", Ids({12}, 70)},
                          {"b", Ids({12}, 30)},
                          {"lengths", Longs({2, 0, 3, 7})}})
                  .ok());
  EXPECT_EQ(model.InputShape("a"), "N0");
  EXPECT_EQ(model.InputShape("b"), "N0");
  EXPECT_EQ(model.InputShape("lengths"), "B");
  ASSERT_TRUE(model.LimitAndRelax(/*with_sample=*/true).ok());
  EXPECT_EQ(model.MinOf("N0"), 0);
}

TEST(RelaxSmallSizesTest, StepsMayBeOneButNotNone) {
  Model model(R"(
    def forward(self, ids):
      return torch.embedding(self.table, ids).mean(1)
  )");
  ASSERT_TRUE(model.Infer({{"ids", Ids({4, 6})}}).ok());
  ASSERT_EQ(model.InputShape("ids"), "B, T0");
  ASSERT_TRUE(model.LimitAndRelax().ok());
  EXPECT_EQ(model.MinOf("T0"), 1);
}

TEST(RelaxSmallSizesTest, SizeThatSqueezeDropsKeepsItsLimit) {
  Model model(R"(
    def forward(self, ids):
      h = torch.embedding(self.table, ids)
      return h.sum(2).squeeze().unsqueeze(1).sum(2)
  )");
  ASSERT_TRUE(model.Infer({{"ids", Ids({4, 6})}}).ok());
  ASSERT_EQ(model.InputShape("ids"), "B, T0");
  ASSERT_TRUE(model.LimitAndRelax().ok());
  EXPECT_EQ(model.MinOf("T0"), 2);
  EXPECT_THAT(model.notes,
              ElementsAre("the export guards dimension 1 of ids >= 2"));
}

// A model that pools its bags by code of its own runs only with lengths that
// add up to its ids.
TEST(RelaxSmallSizesTest, SampleTellsWhichVectorsBelongTogether) {
  Model model(R"(
    def forward(self, dense, lengths, ids):
      rows = torch.repeat_interleave(torch.arange(lengths.size(0)), lengths)
      zeros = torch.zeros([lengths.size(0), 3])
      pooled = zeros.index_add(0, rows, torch.embedding(self.table, ids))
      return torch.cat([dense, pooled], 1).sum(1)
  )");
  ASSERT_TRUE(model
                  .Infer({{"dense", Floats({4, 13})},
                          {"lengths", Longs({2, 0, 3, 2})},
                          {"ids", Ids({7})}})
                  .ok());
  ASSERT_EQ(model.InputShape("ids"), "N0");
  ASSERT_TRUE(model.LimitAndRelax(/*with_sample=*/true).ok());
  EXPECT_EQ(model.MinOf("N0"), 0);
  EXPECT_THAT(model.notes, IsEmpty());
}

// Places are lengths less one: zeros are none, ones are.
TEST(RelaxSmallSizesTest, OnesAreTriedWhereZerosFail) {
  Model model(R"(
    def forward(self, ids, lengths):
      h = torch.embedding(self.table, ids)
      at = (lengths - 1).view(-1, 1, 1).expand(-1, -1, 3)
      return h.gather(1, at).squeeze(1)
  )");
  ASSERT_TRUE(
      model.Infer({{"ids", Ids({4, 6})}, {"lengths", Longs({1, 6, 2, 3})}})
          .ok());
  ASSERT_EQ(model.InputShape("ids"), "B, T0");
  ASSERT_TRUE(model.LimitAndRelax().ok());
  EXPECT_EQ(model.MinOf("T0"), 1);
}

}  // namespace
}  // namespace refract::models
