// Single operators on the emulated GPU against the CPU: views, reductions,
// element-wise operators, look-ups.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/cuda_plan/translate.h"
#include "tests/runtime/cuda_plan/expect_same.h"
#include "tests/runtime/cuda_plan/run_translation.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::DType;
using models::ValueId;
using runtime::testing::Bool;
using runtime::testing::Float;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::MakeTensor;
using runtime::testing::Must;
using runtime::testing::Ref;
using runtime::testing::Sym;
using runtime::testing::Views;
using testing::ExpectSame;
using ::testing::HasSubstr;
using testing::kMaxBatch;
using testing::Model;
using testing::OnDevice;
using testing::OptionsFor;
using testing::Seed;

TEST(TranslateTest, ViewsSlicesPermutationsAndConcatenations) {
  for (const Precision precision : {Precision::kFloat32, Precision::kFloat16}) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId x = m.In("x", {24});
    const ValueId deep =
        m.Op("aten.view.default", {Ref("self", x), Ints("size", {-1, 3, 8})},
             {3, 8});
    const ValueId turned =
        m.Op("aten.permute.default",
             {Ref("self", deep), Ints("dims", {0, 2, 1})}, {8, 3});
    // A copy, because the transposed tensor is not dense.
    const ValueId flat =
        m.Op("aten.reshape.default",
             {Ref("self", turned), Ints("shape", {-1, 24})}, {24});
    const ValueId odd = m.Op("aten.slice.Tensor",
                             {Ref("self", turned), Int("dim", 1),
                              Int("start", 1), Int("end", 8), Int("step", 3)},
                             {3, 3});
    const ValueId one =
        m.Op("aten.select.int",
             {Ref("self", deep), Int("dim", 1), Int("index", -1)}, {8});
    const auto halves =
        m.Nodes("aten.split_with_sizes.default",
                {Ref("self", deep), Ints("split_sizes", {1, 2}), Int("dim", 1)},
                {{DType::kFloat32, {Sym("b"), 1, 8}},
                 {DType::kFloat32, {Sym("b"), 2, 8}}});
    const ValueId cat = m.Op(
        "aten.cat.default",
        {List("tensors", {halves[1], deep, halves[0]}), Int("dim", 1)}, {6, 8});
    const ValueId wide =
        m.Op("aten.cat.default", {List("tensors", {deep, deep}), Int("dim", 2)},
             {3, 16});
    const ValueId lines =
        m.Op("aten.cat.default",
             {List("tensors", {one, x, one}), Int("dim", -1)}, {40});
    // Over the last dimension of three.
    const ValueId tokens = m.Layer(deep, 8, 5, {3}, "aten.relu.default");
    const ValueId scored = m.Layer(turned, 3, 4, {8});
    const ValueId repeated =
        m.Op("aten.repeat.default",
             {Ref("self", tokens), Ints("repeats", {1, 2, 3})}, {6, 15});
    const ValueId spread =
        m.Op("aten.expand.default",
             {Ref("self", m.Op("aten.unsqueeze.default",
                               {Ref("self", one), Int("dim", 1)}, {1, 8})),
              Ints("size", {-1, 3, -1})},
             {3, 8});
    const ValueId sum = m.Op("aten.mul.Tensor",
                             {Ref("self", spread), Ref("other", deep)}, {3, 8});
    for (const ValueId id :
         {flat, odd, one, cat, wide, lines, scored, repeated, sum}) {
      m.Output(id);
    }
    ExpectSame(m, precision);
  }
}

TEST(TranslateTest, ReductionsNormsAndAttention) {
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBFloat16}) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId x = m.In("x", {3, 12});
    const ValueId mask = m.In("mask", {1, 1, 3}, DType::kBool);
    m.Output(
        m.Op("aten.sum.dim_IntList", {Ref("self", x), Ints("dim", {1})}, {12}));
    m.Output(m.Op("aten.mean.dim",
                  {Ref("self", x), Ints("dim", {2}), Bool("keepdim", true)},
                  {3, 1}));
    m.Output(
        m.Op("aten.softmax.int", {Ref("self", x), Int("dim", 1)}, {3, 12}));
    m.Output(m.Op("aten.layer_norm.default",
                  {Ref("input", x), Ints("normalized_shape", {12}),
                   Ref("weight", m.Floats("g", {12})),
                   Ref("bias", m.Floats("h", {12})), Float("eps", 1e-3)},
                  {3, 12}));
    std::vector<ValueId> heads;
    for (int i = 0; i < 3; ++i) {
      const ValueId y = m.Layer(x, 12, 12, {3});
      const ValueId cut =
          m.Op("aten.view.default",
               {Ref("self", y), Ints("size", {-1, 3, 2, 6})}, {3, 2, 6});
      heads.push_back(m.Op("aten.transpose.int",
                           {Ref("self", cut), Int("dim0", 1), Int("dim1", 2)},
                           {2, 3, 6}));
    }
    const ValueId open = m.Op(
        "aten.scaled_dot_product_attention.default",
        {Ref("query", heads[0]), Ref("key", heads[1]), Ref("value", heads[2])},
        {2, 3, 6});
    const ValueId causal =
        m.Op("aten.scaled_dot_product_attention.default",
             {Ref("query", open), Ref("key", heads[1]), Ref("value", heads[2]),
              Bool("is_causal", true)},
             {2, 3, 6});
    const ValueId back =
        m.Op("aten.transpose.int",
             {Ref("self", causal), Int("dim0", 1), Int("dim1", 2)}, {3, 2, 6});
    m.Output(m.Op("aten.reshape.default",
                  {Ref("self", back), Ints("shape", {-1, 36})}, {36}));
    // Written as single operators, with a mask of small numbers instead of −∞,
    // so that no row is hidden completely.
    const ValueId scores = m.Op(
        "aten.matmul.default",
        {Ref("self", heads[0]),
         Ref("other",
             m.Op("aten.transpose.int",
                  {Ref("self", heads[1]), Int("dim0", -2), Int("dim1", -1)},
                  {2, 6, 3}))},
        {2, 3, 3});
    const ValueId hidden =
        m.Op("aten.masked_fill.Scalar",
             {Ref("self", scores), Ref("mask", mask), Float("value", -9.0)},
             {2, 3, 3});
    const ValueId weights = m.Op(
        "aten._softmax.default",
        {Ref("self", hidden), Int("dim", -1), Bool("half_to_float", false)},
        {2, 3, 3});
    m.Output(m.Op("aten.matmul.default",
                  {Ref("self", weights), Ref("other", heads[2])}, {2, 3, 6}));
    ExpectSame(m, precision);
  }
}

// Completely hidden histories give zeros; NaN is visible through a mask.
TEST(TranslateTest, AttentionToNothingAndToNan) {
  Model m;
  const ValueId query = m.In("query", {1, 3, 4});
  const ValueId key = m.In("key", {1, 3, 4});
  const ValueId mask = m.In("mask", {1, 1, 3}, DType::kBool);
  const float none = -std::numeric_limits<float>::infinity();
  const ValueId added =
      m.Weight<float>("added", {3, 3}, {none, none, none, 0, none, 1, 2, 3, 4});
  const ValueId few =
      m.Op("aten.sqrt.default",
           {Ref("self",
                m.Op("aten.add.Tensor",
                     {Ref("self", m.In("y", {1, 3, 1})), Float("other", 0.9)},
                     {1, 3, 1}))},
           {1, 3, 1});
  const ValueId spoilt =
      m.Op("aten.mul.Tensor", {Ref("self", key), Ref("other", few)}, {1, 3, 4});
  for (const ValueId hides : {mask, added}) {
    for (const ValueId seen : {key, spoilt}) {
      m.Output(m.Op("aten.scaled_dot_product_attention.default",
                    {Ref("query", query), Ref("key", seen), Ref("value", key),
                     Ref("attn_mask", hides)},
                    {1, 3, 4}));
    }
  }
  m.Output(m.Op("aten.scaled_dot_product_attention.default",
                {Ref("query", query), Ref("key", spoilt), Ref("value", key),
                 Bool("is_causal", true)},
                {1, 3, 4}));
  ExpectSame(m);
}

TEST(TranslateTest, ElementsOfEveryKind) {
  Model m;
  const ValueId x = m.In("x", {7});
  const ValueId y = m.In("y", {1});
  for (const char* op : {"neg", "abs", "relu", "sigmoid", "tanh", "exp",
                         "square", "erf", "silu", "gelu", "leaky_relu", "elu",
                         "hardtanh", "relu6", "hardsigmoid", "softplus"}) {
    m.Output(
        m.Op(absl::StrCat("aten.", op, ".default"), {Ref("self", x)}, {7}));
  }
  const ValueId positive = m.Op("aten.exp.default", {Ref("self", x)}, {7});
  for (const char* op : {"log", "log1p", "sqrt", "rsqrt", "reciprocal"}) {
    m.Output(m.Op(absl::StrCat("aten.", op, ".default"),
                  {Ref("self", positive)}, {7}));
  }
  m.Output(m.Op("aten.pow.Tensor_Scalar",
                {Ref("self", positive), Float("exponent", 1.7)}, {7}));
  for (const char* op : {"add", "sub", "mul", "div"}) {
    m.Output(m.Op(absl::StrCat("aten.", op, ".Tensor"),
                  {Ref("self", x), Ref("other", y)}, {7}));
  }
  const ValueId less = m.Op("aten.lt.Tensor", {Ref("self", x), Ref("other", y)},
                            {7}, DType::kBool);
  m.Output(less);
  m.Output(m.Op("aten.where.self",
                {Ref("condition", less), Ref("self", x), Ref("other", y)},
                {7}));
  m.Output(m.Op("aten.to.dtype",
                {Ref("self", less), {"dtype", DType::kFloat32}}, {7}));
  m.Output(m.Op("aten.prelu.default",
                {Ref("self", x), Ref("weight", m.Floats("slope", {7}))}, {7}));
  // A slope per channel of several elements; the logarithms of 0 are −∞.
  const ValueId z =
      m.Op("aten.relu.default", {Ref("self", m.In("z", {6, 5}))}, {6, 5});
  const ValueId low = m.Op("aten.log.default", {Ref("self", z)}, {6, 5});
  m.Output(m.Op("aten.prelu.default",
                {Ref("self", low), Ref("weight", m.Floats("slopes", {6}))},
                {6, 5}));
  // A number that an exporter wrote as a tensor of another type.
  const double tenth = 0.1;
  m.Output(m.Op(
      "aten.mul.Tensor",
      {Ref("self", x), Ref("other", m.RawWeight("tenth", DType::kFloat64, {},
                                                &tenth, sizeof(tenth)))},
      {7}));
  ExpectSame(m);
}

TEST(TranslateTest, LookUpsAndTheirPolicies) {
  for (const models::IdPolicy policy :
       {models::IdPolicy::kError, models::IdPolicy::kZeroRow,
        models::IdPolicy::kDefaultRow}) {
    Model m;
    const ValueId ids = m.In("ids", {3}, DType::kInt64);
    m.Output(
        m.Op("aten.embedding.default",
             {Ref("weight", m.Floats("table", {5, 4})), Ref("indices", ids)},
             {3, 4}));
    m.graph().batch_symbol = "b";
    ExpectSame(m);
    TranslateOptions options = OptionsFor(Precision::kFloat32);
    options.compile.config.default_id_policy = policy;
    const models::Graph& graph = m.graph();
    const Part part = Part::Whole(graph);
    const auto weights = m.Weights();
    auto device = Must(OnDevice::Load(
        Must(Translate(graph, part, weights, options)), kMaxBatch, Seed()));
    const auto cpu =
        Must(Program::Compile(graph, part, weights, options.compile));
    const std::vector<int64_t> wrong = {0, 4, 2, 5, 1, -1};
    const std::vector<int64_t> right = {0, 4, 2};
    for (const auto& [values, rows] :
         {std::pair{wrong, int64_t{2}}, {right, int64_t{1}}}) {
      const std::vector<base::Tensor> inputs = [&] {
        std::vector<base::Tensor> list;
        list.push_back(MakeTensor<int64_t>({rows, 3}, values));
        return list;
      }();
      RunContext context(*cpu);
      std::vector<base::TensorView> want;
      const absl::Status ran =
          cpu->Run(Views(inputs), {nullptr}, context, want);
      const auto got = device->Run(Views(inputs), rows);
      ASSERT_EQ(got.ok(), ran.ok()) << got.status() << ran;
      if (ran.ok()) {
        EXPECT_EQ(testing::Difference((*got)[0], want[0]), 0);
      } else {
        EXPECT_THAT(std::string(got.status().message()),
                    HasSubstr("2 ids are outside their tables"));
      }
    }
  }
}

// User features: one row for all items.
TEST(TranslateTest, InputsWithoutRows) {
  Model m;
  const ValueId user = m.Input("user", DType::kFloat32, {1, 6});
  const ValueId items = m.In("items", {6});
  const ValueId rows =
      m.Node("aten.sym_size.int", {Ref("self", items), Int("dim", 0)},
             {DType::kInt64, {}, models::ValueKind::kSymInt});
  m.graph().values[rows].sym_value = Sym("b");
  const ValueId all =
      m.Op("aten.expand.default",
           {Ref("self", user),
            {"size", models::IntList{{0, rows}, {6, models::kNoValue}}}},
           {6});
  const ValueId product =
      m.Op("aten.mul.Tensor", {Ref("self", items), Ref("other", all)}, {6});
  const ValueId both =
      m.Op("aten.cat.default", {List("tensors", {all, product}), Int("dim", 1)},
           {12});
  m.Output(m.Layer(both, 12, 3, {}));
  ExpectSame(m);
}

TEST(TranslateTest, InputsAndConstantsAsOutputs) {
  Model m;
  const ValueId x = m.In("x", {3});
  m.Output(x);
  m.Output(m.Floats("w", {2, 3}));
  m.Output(x);
  ExpectSame(m);
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
