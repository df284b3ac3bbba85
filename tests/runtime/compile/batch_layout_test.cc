#include "runtime/compile/batch_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "models/rows/row_dependence.h"
#include "tests/runtime/testing/graph_builder.h"

namespace refract::runtime {
namespace {

using ::testing::ElementsAre;
using base::DType;
using testing::GraphBuilder;
using testing::MakeTensor;
using testing::Must;
using testing::Ref;
using testing::Sym;
using testing::ValuesOf;

// Two entries of `history` and one of `dense` for each row.
class ItemsOfSeveralEntriesTest : public ::testing::Test {
 protected:
  ItemsOfSeveralEntriesTest() {
    const auto history =
        builder_.Input("history", DType::kFloat32, {Sym("b") * 2});
    const auto dense = builder_.Input("dense", DType::kFloat32, {Sym("b"), 2});
    const auto items =
        builder_.Node("aten.view.default", {Ref("self", history)},
                      {DType::kFloat32, {Sym("b"), 2}});
    builder_.Output(builder_.Node("aten.mul.Tensor",
                                  {Ref("self", items), Ref("other", dense)},
                                  {DType::kFloat32, {Sym("b"), 2}}));
    builder_.graph().batch_symbol = "b";
  }
  BatchLayout Layout() {
    return {builder_.graph(), Part::Whole(builder_.graph()),
            models::FindRowDependence(builder_.graph())};
  }

  GraphBuilder builder_;
  const base::Tensor history_ = MakeTensor<float>({4}, {1, 2, 3, 4});
  const base::Tensor dense_ = MakeTensor<float>({2, 2}, {10, 20, 30, 40});
  const base::Tensor other_history_ = MakeTensor<float>({2}, {5, 6});
  const base::Tensor other_dense_ = MakeTensor<float>({1, 2}, {50, 60});
  const std::vector<base::TensorView> two_ = {history_.view(), dense_.view()};
  const std::vector<base::TensorView> one_ = {other_history_.view(),
                                              other_dense_.view()};
  RowBuffers buffers_;
};

TEST_F(ItemsOfSeveralEntriesTest, AreJoinedItemByItem) {
  const BatchLayout layout = Layout();
  ASSERT_EQ(layout.why_not(), "");
  EXPECT_EQ(layout.Rows(two_), 2);
  EXPECT_EQ(layout.MergeKey(two_), layout.MergeKey(one_));
  const auto joined = Must(layout.Gather({two_, one_}, buffers_));
  EXPECT_EQ(joined[0].dims, base::Dims({6}));
  EXPECT_THAT(ValuesOf<float>(joined[0]), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(joined[1].dims, base::Dims({3, 2}));
}

TEST_F(ItemsOfSeveralEntriesTest, AreCutBetweenItems) {
  const BatchLayout layout = Layout();
  const auto second = Must(layout.Slice(two_, 1, 1, buffers_));
  EXPECT_EQ(second[0].dims, base::Dims({2}));
  EXPECT_THAT(ValuesOf<float>(second[0]), ElementsAre(3, 4));
  EXPECT_THAT(ValuesOf<float>(second[1]), ElementsAre(30, 40));
}

TEST_F(ItemsOfSeveralEntriesTest, HaveNoRowsUnlessInputsAgree) {
  const BatchLayout layout = Layout();
  EXPECT_EQ(layout.Rows({history_.view(), other_dense_.view()}), std::nullopt);
  const base::Tensor three = MakeTensor<float>({3}, {1, 2, 3});
  EXPECT_EQ(layout.Rows({three.view(), other_dense_.view()}), std::nullopt);
}

// A result is cut by the number of rows, so it must have an entry for each.
TEST_F(ItemsOfSeveralEntriesTest, AreNoResults) {
  builder_.Output(builder_.graph().inputs[0]);
  EXPECT_THAT(Layout().why_not(), ::testing::HasSubstr("output 'history'"));
}

}  // namespace
}  // namespace refract::runtime
