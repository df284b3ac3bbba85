#include "runtime/stable_inputs.h"

#include <array>
#include <cstring>

#include "gtest/gtest.h"
#include "tests/cpu_node/small_model.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;

base::TensorView View(DType dtype, int64_t count, const void* data) {
  base::TensorView view;
  view.dtype = dtype;
  view.dims = {count};
  view.data = static_cast<const std::byte*>(data);
  view.bytes = static_cast<size_t>(count) * base::SizeOf(dtype);
  return view;
}

class StableInputsTest : public ::testing::Test {
 protected:
  std::array<int64_t, 3> ids_ = {1, 2, 3};
  std::array<float, 2> numbers_ = {0.5f, 0.25f};
  std::array<uint8_t, 5> flags_ = {1, 0, 1, 1, 0};
  std::vector<base::TensorView> inputs_ = {
      View(DType::kInt64, 3, ids_.data()),
      View(DType::kFloat32, 2, numbers_.data()),
      View(DType::kBool, 5, flags_.data()),
      View(DType::kInt32, 0, nullptr),
  };
};

TEST_F(StableInputsTest, WhatCanBeAnIndexIsCopied) {
  const StableInputs stable(inputs_, false);
  ASSERT_EQ(stable.views().size(), inputs_.size());
  ids_ = {7, 8, 9};
  flags_ = {};
  numbers_ = {4.0f, 4.0f};
  EXPECT_EQ(stable.views()[0].as<int64_t>()[2], 3);
  EXPECT_EQ(stable.views()[2].as<uint8_t>()[3], 1);
  EXPECT_EQ(stable.views()[1].data, inputs_[1].data);
  EXPECT_EQ(stable.views()[3].bytes, 0u);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    EXPECT_EQ(stable.views()[i].dtype, inputs_[i].dtype);
    EXPECT_EQ(stable.views()[i].dims, inputs_[i].dims);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(stable.views()[i].data) %
                  base::kTensorAlignBytes,
              i == 1 ? reinterpret_cast<uintptr_t>(inputs_[1].data) %
                           base::kTensorAlignBytes
                     : 0u);
  }
}

TEST_F(StableInputsTest, EverythingIsCopiedWhereItIsAskedFor) {
  const StableInputs stable(inputs_, true);
  numbers_ = {4.0f, 4.0f};
  EXPECT_EQ(stable.views()[1].as<float>()[0], 0.5f);
  EXPECT_EQ(stable.views()[1].as<float>()[1], 0.25f);
}

TEST(SizesDependOnDataTest, ShapesThatTheInputsTellAreNoData) {
  models::Graph graph = testing_models::MakeGraph();
  EXPECT_FALSE(SizesDependOnData(graph, Part::Whole(graph)));
  // A size that depends on data, as the result of nonzero.
  models::Graph counted = graph;
  models::Value& rows = counted.values[counted.nodes[0].outputs[0]];
  rows.shape[0] = SymExpr::Symbol("u0");
  EXPECT_TRUE(SizesDependOnData(counted, Part::Whole(counted)));
  models::Graph unknown = graph;
  unknown.values[unknown.nodes[0].outputs[0]].shape[0] = SymExpr();
  EXPECT_TRUE(SizesDependOnData(unknown, Part::Whole(unknown)));
  models::Graph shapeless = graph;
  shapeless.values[shapeless.nodes[0].outputs[0]].has_shape = false;
  EXPECT_TRUE(SizesDependOnData(shapeless, Part::Whole(shapeless)));
}

}  // namespace
}  // namespace refract::runtime
