// Batches of one row, and sizes of zero and one.

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
