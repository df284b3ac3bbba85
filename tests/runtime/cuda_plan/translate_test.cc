// Translated parts on the emulated GPU give what the CPU gives, and what cannot
// be translated is refused by name.

#include "runtime/cuda_plan/translate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/cuda_plan/run_translation.h"
#include "tests/runtime/testing/run.h"
#include "tests/runtime/testing/small_dlrm.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using runtime::testing::Bool;
using runtime::testing::Float;
using runtime::testing::GraphBuilder;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::MakeTensor;
using runtime::testing::Must;
using runtime::testing::RandomFloats;
using runtime::testing::Ref;
using runtime::testing::Sym;
using runtime::testing::Views;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OnDevice;

constexpr int64_t kMaxBatch = 40;
const int64_t kBatches[] = {1, 2, 33, kMaxBatch};

unsigned Seed() {
  static const unsigned seed = [] {
    const unsigned drawn = std::random_device()();
    std::printf("seed %u\n", drawn);
    return drawn;
  }();
  return seed;
}

TranslateOptions OptionsFor(Precision precision) {
  return {.model = std::string(1, 'm'),
          .device = std::string("cuda:0"),
          .precision = precision,
          .max_batch = kMaxBatch,
          .compile = {}};
}

// Rounding of the data, relative to the largest value; a few operators add up.
double Tolerance(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return 2e-5;
    case Precision::kTf32:
      return 2e-2;
    case Precision::kFloat16:
      return 2e-2;
    case Precision::kBFloat16:
      return 1.5e-1;
  }
  return 0;
}

base::Tensor Request(const models::Value& value, int64_t batch,
                     std::mt19937& random) {
  base::Dims dims;
  for (const SymExpr& size : value.shape) {
    dims.push_back(Must(size.Evaluate({{"b", batch}})));
  }
  base::Tensor tensor = Must(base::Tensor::Allocate(value.dtype, dims));
  const auto count = static_cast<size_t>(tensor.view().num_elements());
  if (value.dtype == DType::kFloat32) {
    const auto values = RandomFloats(count, random);
    std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  } else if (value.dtype == DType::kInt64) {
    for (int64_t& id : tensor.as<int64_t>()) id = random() % 5;
  } else {
    for (size_t i = 0; i < tensor.bytes(); ++i) {
      tensor.data()[i] = static_cast<std::byte>(random() % 2);
    }
  }
  return tensor;
}

// The part, translated, beside the CPU's at several batches. Gives the program.
void ExpectSame(GraphBuilder& builder, const Part& part, Precision precision,
                cuda::Program* program = nullptr) {
  const models::Graph& graph = builder.graph();
  std::mt19937 random(Seed());
  const auto weights = builder.Weights();
  const TranslateOptions options = OptionsFor(precision);
  const auto cpu = Must(Program::Compile(graph, part, weights, {}));
  auto translation = Translate(graph, part, weights, options);
  ASSERT_TRUE(translation.ok()) << translation.status();
  std::string steps;
  for (const std::string& line : translation->steps)
    absl::StrAppend(&steps, line, "\n");
  SCOPED_TRACE(steps);
  if (program != nullptr) *program = translation->program;
  auto device =
      Must(OnDevice::Load(*std::move(translation), kMaxBatch, Seed()));
  for (const int64_t batch : kBatches) {
    std::vector<base::Tensor> inputs;
    for (const ValueId id : part.inputs) {
      inputs.push_back(Request(graph.value(id), batch, random));
    }
    RunContext context(*cpu);
    std::vector<base::TensorView> want;
    ASSERT_TRUE(cpu->Run(Views(inputs),
                         std::vector<std::byte*>(part.outputs.size(), nullptr),
                         context, want)
                    .ok());
    const auto got = device->Run(Views(inputs), batch);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(got->size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(testing::Difference((*got)[i], want[i]), Tolerance(precision))
          << "output " << i << ", batch " << batch << ", seed " << Seed();
    }
  }
  EXPECT_THAT(device->violations(), IsEmpty());
}

void ExpectSame(GraphBuilder& builder,
                Precision precision = Precision::kFloat32,
                cuda::Program* program = nullptr) {
  builder.graph().batch_symbol = "b";
  const Part part = Part::Whole(builder.graph());
  ExpectSame(builder, part, precision, program);
}

constexpr Precision kPrecisions[] = {Precision::kFloat32, Precision::kTf32,
                                     Precision::kFloat16, Precision::kBFloat16};

class Model : public GraphBuilder {
 public:
  explicit Model(unsigned seed = Seed()) : random_(seed) {}
  ValueId Floats(const std::string& name, std::vector<int64_t> dims) {
    size_t count = 1;
    for (const int64_t dim : dims) count *= static_cast<size_t>(dim);
    return Weight<float>(name, std::move(dims), RandomFloats(count, random_));
  }
  ValueId In(const std::string& name, std::vector<SymExpr> rest,
             DType dtype = DType::kFloat32) {
    rest.insert(rest.begin(), Sym("b"));
    return Input(name, dtype, std::move(rest));
  }
  ValueId Op(const std::string& op, std::vector<models::NamedArgument> args,
             std::vector<SymExpr> rest, DType dtype = DType::kFloat32) {
    rest.insert(rest.begin(), Sym("b"));
    return Node(op, std::move(args), {dtype, std::move(rest)});
  }
  // linear(x) + bias, then `after` where it is not empty.
  ValueId Layer(ValueId x, int64_t in, int64_t out, std::vector<SymExpr> lead,
                const std::string& after = "") {
    const std::string name = absl::StrCat("w", graph().nodes.size());
    std::vector<SymExpr> dims = lead;
    dims.push_back(out);
    const ValueId y =
        Op("aten.linear.default",
           {Ref("input", x), Ref("weight", Floats(name, {out, in})),
            Ref("bias", Floats(absl::StrCat(name, "b"), {out}))},
           dims);
    return after.empty() ? y : Op(after, {Ref("self", y)}, dims);
  }

 private:
  std::mt19937 random_;
};

TEST(TranslateTest, TheHnPartOfASmallDlrmInEveryType) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    runtime::testing::SmallDlrm dlrm(Seed());
    const models::SplitPlan plan = dlrm.Plan();
    ExpectSame(dlrm.builder(), Part::Hn(dlrm.builder().graph(), plan),
               precision);
  }
}

// As DLRM writes it: bottom, vectors, all pairs below the diagonal, top.
TEST(TranslateTest, InteractionsAreWrittenWhereTheNextLayerReadsThem) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId dense = m.In("dense", {13});
    std::vector<ValueId> vectors = {
        m.Layer(dense, 13, 16, {}, "aten.relu.default")};
    for (int i = 0; i < 4; ++i) {
      vectors.push_back(m.In(absl::StrCat("e", i), {16}));
    }
    const ValueId stack =
        m.Op("aten.stack.default", {List("tensors", vectors), Int("dim", 1)},
             {5, 16});
    const ValueId turned =
        m.Op("aten.transpose.int",
             {Ref("self", stack), Int("dim0", 1), Int("dim1", 2)}, {16, 5});
    const ValueId products = m.Op(
        "aten.bmm.default", {Ref("self", stack), Ref("mat2", turned)}, {5, 5});
    const ValueId flat =
        m.Op("aten.view.default",
             {Ref("self", products), Ints("size", {-1, 25})}, {25});
    const std::vector<int64_t> places = {5, 10, 11, 15, 16, 17, 20, 21, 22, 23};
    const ValueId pairs =
        m.Op("aten.index_select.default",
             {Ref("self", flat), Int("dim", 1),
              Ref("index", m.Weight<int64_t>("places", {10}, places))},
             {10});
    const ValueId joined =
        m.Op("aten.cat.default",
             {List("tensors", {vectors[0], pairs}), Int("dim", 1)}, {26});
    m.Output(m.Layer(joined, 26, 3, {}, "aten.sigmoid.default"));
    cuda::Program program;
    ExpectSame(m, precision, &program);
    // Bottom, interaction, top, sigmoid; and casts of what comes as float32.
    EXPECT_EQ(program.ops.size(), precision == Precision::kFloat16 ||
                                          precision == Precision::kBFloat16
                                      ? 9u
                                      : 4u);
  }
}

TEST(TranslateTest, OtherPairsThanTheUsualOnes) {
  Model m;
  std::vector<ValueId> vectors;
  for (int i = 0; i < 3; ++i) {
    vectors.push_back(m.In(absl::StrCat("e", i), {6}));
  }
  const ValueId stack = m.Op("aten.stack.default",
                             {List("tensors", vectors), Int("dim", 1)}, {3, 6});
  const ValueId turned =
      m.Op("aten.permute.default",
           {Ref("self", stack), Ints("dims", {0, 2, 1})}, {6, 3});
  const ValueId products = m.Op(
      "aten.bmm.default", {Ref("self", stack), Ref("mat2", turned)}, {3, 3});
  const ValueId flat = m.Op("aten.flatten.using_ints",
                            {Ref("self", products), Int("start_dim", 1)}, {9});
  m.Output(m.Op("aten.index_select.default",
                {Ref("self", flat), Int("dim", 1),
                 Ref("index", m.Weight<int64_t>("places", {4}, {1, 2, 5, 0}))},
                {4}));
  ExpectSame(m);
}

TEST(TranslateTest, CrossLayers) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId x0 = m.In("x", {10});
    ValueId x = x0;
    for (int layer = 0; layer < 2; ++layer) {
      const ValueId low =
          m.Op("aten.linear.default",
               {Ref("input", x),
                Ref("weight", m.Floats(absl::StrCat("v", layer), {4, 10}))},
               {4});
      const ValueId y = m.Layer(low, 4, 10, {});
      const ValueId xy =
          m.Op("aten.mul.Tensor", {Ref("self", x0), Ref("other", y)}, {10});
      x = m.Op("aten.add.Tensor", {Ref("self", xy), Ref("other", x)}, {10});
    }
    m.Output(x);
    ExpectSame(m, precision);
  }
}

// Everything that is strides on the device: [b, 3, 8] cut, turned and merged.
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
    // A copy: turned is not dense.
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
    // By hand, with a mask that hides nothing whole: scores of hidden places
    // are small, not minus infinity.
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
                    HasSubstr("2 indices name no row"));
      }
    }
  }
}

// What user features are: one row for all.
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

// --- What is refused
// ----------------------------------------------------------

void ExpectRefused(GraphBuilder& builder, const std::string& why) {
  builder.graph().batch_symbol = "b";
  const models::Graph& graph = builder.graph();
  const auto translation =
      Translate(graph, Part::Whole(graph), builder.Weights(),
                OptionsFor(Precision::kFloat32));
  ASSERT_FALSE(translation.ok()) << why;
  EXPECT_EQ(translation.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(translation.status().message()), HasSubstr(why));
}

TEST(TranslateTest, RefusesOperatorsByName) {
  Model m;
  const ValueId x = m.In("x", {4});
  m.Output(m.Op("aten.cumsum.default", {Ref("self", x), Int("dim", 1)}, {4}));
  ExpectRefused(m,
                "operator aten.cumsum.default (node n0) of model m cannot run "
                "on cuda:0: it has no form on the device");
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
       "picks some rows of the batch"},
      {"aten.select.int",
       {Int("dim", 0), Int("index", 0)},
       {4},
       "picks some rows of the batch"},
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
  ExpectRefused(wide, "input x: its type is float64");
  Model ids;
  ids.Output(ids.In("ids", {4}, DType::kInt64));
  ExpectRefused(ids, "output ids: its type is int64");
  Model turned;
  const ValueId x = turned.In("x", {4});
  turned.Output(turned.Node("aten.t.default", {Ref("self", x)},
                            {DType::kFloat32, {4, Sym("b")}}));
  ExpectRefused(turned, "the batch is its dimension 1");
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
