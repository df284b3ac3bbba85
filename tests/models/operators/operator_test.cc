// Walks the operator table: every record has what its rules need, every
// enumerator is some record's.

#include "models/operators/operator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_split.h"

namespace refract::models {
namespace {

bool IsProduct(RowRule rule) {
  return rule == RowRule::kMatmul || rule == RowRule::kAddMatmul ||
         rule == RowRule::kInner || rule == RowRule::kOuter;
}

TEST(OperatorTableTest, NamesAreUniqueAndFindable) {
  std::set<absl::string_view> names;
  for (const Operator& op : AtenOperators()) {
    EXPECT_TRUE(names.insert(op.name).second) << op.name;
    EXPECT_FALSE(op.name.empty());
    EXPECT_EQ(FindOperator(op.name), &op) << op.name;
  }
  EXPECT_GT(names.size(), 400u);
}

TEST(OperatorTableTest, ArithmeticOfDenseOperatorsIsSaid) {
  for (const Operator& op : AtenOperators()) {
    SCOPED_TRACE(op.name);
    // The class decides the cost of all others.
    EXPECT_EQ(op.op_class == OpClass::kDense, op.cost != CostRule::kOfClass);
    if (op.cost == CostRule::kDotProducts) {
      EXPECT_NE(op.factors[0], "");
    }
    if (IsProduct(op.rows)) {
      EXPECT_NE(op.factors[0], "");
      EXPECT_NE(op.factors[1], "");
    }
  }
}

TEST(OperatorTableTest, ElementwiseOperatorsKeepRowsApart) {
  const std::set<absl::string_view> otherwise = {
      "addr",
      "cross",
      "diff",
      "dist",
      "glu",
      "ger",
      "outer",
      "quantize_per_channel",
      "fake_quantize_per_channel_affine"};
  for (const Operator& op : AtenOperators()) {
    if (op.op_class != OpClass::kElementwise) continue;
    EXPECT_EQ(op.rows == RowRule::kPointwise, !otherwise.contains(op.name))
        << op.name;
  }
}

TEST(OperatorTableTest, LoweringsHaveTheCodesTheyCompute) {
  for (const Operator& op : AtenOperators()) {
    SCOPED_TRACE(op.name);
    switch (op.lowering) {
      case Lowering::kUnary:
        EXPECT_TRUE(op.element || op.integer);
        if (op.element) {
          EXPECT_LT(*op.element, kFirstBinaryCode);
        }
        if (op.integer) {
          EXPECT_LT(*op.integer, IntegerCode::kAdd);
        }
        break;
      case Lowering::kBinary:
        EXPECT_TRUE(op.element || op.integer);
        if (op.element) {
          EXPECT_GE(*op.element, kFirstBinaryCode);
          EXPECT_LT(*op.element, ElementCode::kSelect);
        }
        if (op.integer) {
          EXPECT_GE(*op.integer, IntegerCode::kAdd);
          EXPECT_LT(*op.integer, IntegerCode::kClamp);
        }
        break;
      case Lowering::kAddProduct:
        EXPECT_TRUE(op.element && *op.element >= kFirstBinaryCode);
        break;
      case Lowering::kLogical:
        EXPECT_TRUE(op.element && op.integer);
        break;
      case Lowering::kReverseSubtract:
        EXPECT_TRUE(op.integer);
        break;
      default:
        EXPECT_FALSE(op.element || op.integer);
        break;
    }
    if (op.lowering == Lowering::kNone) {
      EXPECT_EQ(op.overloads, "");
    }
  }
}

TEST(OperatorTableTest, EveryEnumeratorIsSomeOperators) {
  std::set<int> aliasings, rules, costs, lowerings;
  for (const Operator& op : AtenOperators()) {
    aliasings.insert(static_cast<int>(op.aliasing));
    rules.insert(static_cast<int>(op.rows));
    costs.insert(static_cast<int>(op.cost));
    lowerings.insert(static_cast<int>(op.lowering));
  }
  EXPECT_EQ(aliasings.size(), static_cast<size_t>(Aliasing::kOverlapping) + 1);
  EXPECT_EQ(rules.size(), static_cast<size_t>(RowRule::kFusedAttention) + 1);
  EXPECT_EQ(costs.size(), static_cast<size_t>(CostRule::kRecurrent) + 1);
  EXPECT_EQ(lowerings.size(), static_cast<size_t>(Lowering::kMaskedFill) + 1);
}

TEST(OperatorTableTest, CodesHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const char* name : kElementNames) {
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumElementCodes));
}

TEST(OperatorOfTest, OverloadsMayMeanSomethingElse) {
  EXPECT_EQ(OperatorOf("aten.max.dim").op_class, OpClass::kReduction);
  EXPECT_EQ(OperatorOf("aten.max.other").op_class, OpClass::kElementwise);
  EXPECT_EQ(OperatorOf("aten.repeat_interleave.Tensor").op_class,
            OpClass::kCpuOnly);
  EXPECT_EQ(OperatorOf("aten.add.Tensor").rows, RowRule::kPointwise);
  // Python's numbers: no tensor, so no rule.
  EXPECT_EQ(OperatorOf("aten.add.int").op_class, OpClass::kSize);
  EXPECT_EQ(OperatorOf("aten.add.int").lowering, Lowering::kNone);
  EXPECT_EQ(OperatorOf("other.add.Tensor").op_class, OpClass::kUnknown);
  EXPECT_EQ(OperatorOf("aten.nobody_knows.default").op_class,
            OpClass::kUnknown);
}

TEST(LoweringOfTest, IsForTheOverloadsOfTheRecord) {
  EXPECT_EQ(LoweringOf("aten.view.default"), Lowering::kReshape);
  EXPECT_EQ(LoweringOf("aten.view.dtype"), Lowering::kNone);
  EXPECT_EQ(LoweringOf("aten.squeeze.dims"), Lowering::kSqueeze);
  EXPECT_EQ(LoweringOf("aten.relu.default"), Lowering::kUnary);
  EXPECT_EQ(LoweringOf("aten.mul.Scalar"), Lowering::kBinary);
  EXPECT_EQ(LoweringOf("mul"), Lowering::kNone);
}

}  // namespace
}  // namespace refract::models
