// Random graphs on the emulated GPU, and operators that are refused by name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "runtime/cuda_plan/translate.h"
#include "tests/runtime/cuda_plan/expect_same.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using runtime::testing::Bool;
using runtime::testing::Float;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::Ref;
using runtime::testing::Sym;
using testing::ExpectRefused;
using testing::ExpectSame;
using testing::Model;
using testing::Seed;

// Values of [b, 8], [b, 2, 4] and [b, 4, 2], combined at random.
class RandomModel : public Model {
 public:
  explicit RandomModel(unsigned seed) : Model(seed), random_(seed) {
    for (int i = 0; i < 3; ++i) flat_.push_back(In(absl::StrCat("x", i), {8}));
    deep_.push_back(In("y", {2, 4}));
    for (int i = 0; i < 16; ++i) Add();
    for (int i = 0; i < 3; ++i) Output(Pick(flat_));
    Output(Pick(deep_));
  }

 private:
  ValueId Pick(const std::vector<ValueId>& from) {
    return from[random_() % from.size()];
  }
  void Add() {
    const ValueId x = Pick(flat_);
    const ValueId y = Pick(deep_);
    switch (random_() % 14) {
      case 0:
        flat_.push_back(Layer(x, 8, 8, {}, "aten.tanh.default"));
        break;
      case 1:
        deep_.push_back(Layer(y, 4, 4, {2}, "aten.relu.default"));
        break;
      case 2:
        flat_.push_back(Op("aten.mul.Tensor",
                           {Ref("self", x), Ref("other", Pick(flat_))}, {8}));
        break;
      case 3:
        flat_.push_back(Op("aten.view.default",
                           {Ref("self", y), Ints("size", {-1, 8})}, {8}));
        break;
      case 4:
        deep_.push_back(Op("aten.view.default",
                           {Ref("self", x), Ints("size", {-1, 2, 4})}, {2, 4}));
        break;
      case 5: {
        const ValueId turned =
            Op("aten.transpose.int",
               {Ref("self", y), Int("dim0", 1), Int("dim1", 2)}, {4, 2});
        flat_.push_back(Op("aten.reshape.default",
                           {Ref("self", turned), Ints("shape", {-1, 8})}, {8}));
        break;
      }
      case 6: {
        const ValueId cat =
            Op("aten.cat.default",
               {List("tensors", {x, Pick(flat_), Pick(flat_)}), Int("dim", 1)},
               {24});
        flat_.push_back(Layer(cat, 24, 8, {}));
        break;
      }
      case 7: {
        const ValueId cut =
            Op("aten.slice.Tensor",
               {Ref("self", x), Int("dim", 1), Int("start", 2), Int("end", 7)},
               {5});
        const ValueId rest = Op("aten.slice.Tensor",
                                {Ref("self", Pick(flat_)), Int("dim", 1),
                                 Int("start", 5), Int("end", INT64_MAX)},
                                {3});
        flat_.push_back(Op("aten.cat.default",
                           {List("tensors", {cut, rest}), Int("dim", 1)}, {8}));
        break;
      }
      case 8: {
        const ValueId turned = Op(
            "aten.transpose.int",
            {Ref("self", Pick(deep_)), Int("dim0", 1), Int("dim1", 2)}, {4, 2});
        const ValueId square = Op(
            "aten.bmm.default", {Ref("self", y), Ref("mat2", turned)}, {2, 2});
        const ValueId weights = Op(
            "aten.softmax.int", {Ref("self", square), Int("dim", 2)}, {2, 2});
        deep_.push_back(Op("aten.bmm.default",
                           {Ref("self", weights), Ref("mat2", Pick(deep_))},
                           {2, 4}));
        break;
      }
      case 9:
        deep_.push_back(Op(
            "aten.stack.default",
            {List(
                 "tensors",
                 {Op("aten.select.int",
                     {Ref("self", y), Int("dim", 1), Int("index", 1)}, {4}),
                  Op("aten.select.int",
                     {Ref("self", Pick(deep_)), Int("dim", 1), Int("index", 0)},
                     {4})}),
             Int("dim", 1)},
            {2, 4}));
        break;
      case 10:
        flat_.push_back(Op("aten.layer_norm.default",
                           {Ref("input", x), Ints("normalized_shape", {8}),
                            Float("eps", 1e-1)},
                           {8}));
        break;
      case 11: {
        const ValueId mean = Op(
            "aten.mean.dim",
            {Ref("self", y), Ints("dim", {1}), Bool("keepdim", true)}, {1, 4});
        deep_.push_back(Op("aten.sub.Tensor",
                           {Ref("self", y), Ref("other", mean)}, {2, 4}));
        break;
      }
      case 12:
        flat_.push_back(Op("aten.sigmoid.default", {Ref("self", x)}, {8}));
        break;
      default: {
        const ValueId product =
            Op("aten.mul.Tensor", {Ref("self", x), Ref("other", x)}, {8});
        flat_.push_back(Op(
            "aten.tanh.default",
            {Ref("self",
                 Op("aten.add.Tensor",
                    {Ref("self", product), Ref("other", Pick(flat_))}, {8}))},
            {8}));
      }
    }
  }

  std::mt19937 random_;
  std::vector<ValueId> flat_, deep_;
};

TEST(TranslateTest, RandomGraphs) {
  for (unsigned i = 0; i < 4; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", Seed() + i));
    RandomModel model(Seed() + i);
    ExpectSame(model);
    if (HasFailure()) return;
  }
}

TEST(TranslateTest, RefusesOperatorsByName) {
  Model m;
  const ValueId x = m.In("x", {4});
  m.Output(m.Op("aten.cumsum.default", {Ref("self", x), Int("dim", 1)}, {4}));
  ExpectRefused(m,
                "operator aten.cumsum.default (node n0) of model m cannot run "
                "on cuda:0: the CUDA runtime has no kernel for it");
}

TEST(TranslateTest, RefusesWhatMixesRows) {
  const struct {
    const char* op;
    std::vector<models::NamedArgument> args;
    std::vector<SymExpr> dims;
    const char* why;
  } cases[] = {
      {"aten.softmax.int", {Int("dim", 0)}, {Sym("b"), 4}, "along the batch"},
      {"aten.sum.dim_IntList", {Ints("dim", {0})}, {4}, "along the batch"},
      {"aten.slice.Tensor",
       {Int("dim", 0), Int("start", 1), Int("end", INT64_MAX)},
       {Sym("b") - SymExpr(1), 4},
       "takes only some rows of the batch"},
      {"aten.select.int",
       {Int("dim", 0), Int("index", 0)},
       {4},
       "takes only some rows of the batch"},
  };
  for (const auto& c : cases) {
    Model m;
    std::vector<models::NamedArgument> args = c.args;
    args.insert(args.begin(), Ref("self", m.In("x", {4})));
    m.Output(m.Node(c.op, args, {DType::kFloat32, c.dims}));
    ExpectRefused(m, c.why);
  }
  Model m;
  const ValueId x = m.In("x", {4});
  const ValueId turned = m.Node("aten.t.default", {Ref("self", x)},
                                {DType::kFloat32, {4, Sym("b")}});
  m.Output(m.Op("aten.mm.default", {Ref("self", x), Ref("mat2", turned)},
                {Sym("b")}));
  ExpectRefused(m, "several dimensions");
}

TEST(TranslateTest, RefusesSizesOfOtherSymbolsAndOtherTypes) {
  Model steps;
  steps.Output(steps.Op("aten.relu.default",
                        {Ref("self", steps.In("x", {Sym("t")}))}, {Sym("t")}));
  ExpectRefused(steps, "input x: a size of x is t, and t differs from request");
  Model wide;
  wide.Output(wide.In("x", {4}, DType::kFloat64));
  ExpectRefused(wide, "input x: its element type is float64");
  Model bytes;
  bytes.Output(bytes.In("bytes", {4}, DType::kUInt8));
  ExpectRefused(bytes, "input bytes: its element type is uint8");
  Model turned;
  const ValueId x = turned.In("x", {4});
  turned.Output(turned.Node("aten.t.default", {Ref("self", x)},
                            {DType::kFloat32, {4, Sym("b")}}));
  ExpectRefused(turned, "its batch dimension is 1");
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
