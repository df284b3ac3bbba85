#include "runtime/torch/caller.h"

#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/passes/complex_numbers.h"
#include "tests/runtime/torch/execute.h"

namespace refract::runtime::aten {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
base::DType DTypeOf();
template <>
base::DType DTypeOf<float>() {
  return base::DType::kFloat32;
}
template <>
base::DType DTypeOf<int64_t>() {
  return base::DType::kInt64;
}
template <>
base::DType DTypeOf<int32_t>() {
  return base::DType::kInt32;
}

template <typename T>
base::Tensor Make(const std::vector<int64_t>& dims,
                  const std::vector<T>& values) {
  base::Tensor tensor = *base::Tensor::Allocate(DTypeOf<T>(), dims);
  EXPECT_EQ(tensor.as<T>().size(), values.size());
  std::copy(values.begin(), values.end(), tensor.as<T>().begin());
  return tensor;
}

// Values are numbered explicitly: argument values are the values of InputsOf().
models::Node MakeNode(const std::string& op,
                      std::vector<models::NamedArgument> args,
                      int outputs = 1) {
  models::Node node;
  node.name = "node_0";
  node.op = op;
  node.args = std::move(args);
  for (int i = 0; i < outputs; ++i) node.outputs.push_back(100 + i);
  return node;
}

template <typename T>
std::vector<T> Values(const Result& result) {
  EXPECT_EQ(result.operand.kind, Operand::Kind::kTensor);
  EXPECT_EQ(result.operand.tensor.dtype, DTypeOf<T>());
  const auto values = result.operand.tensor.as<T>();
  return {values.begin(), values.end()};
}

TEST(CallerTest, MatchesArgumentsBySchemaNameInAnyOrder) {
  const base::Tensor x = Make<float>({1, 2}, {1, 2});
  const base::Tensor weight = Make<float>({3, 2}, {1, 0, 0, 1, 1, 1});
  const base::Tensor bias = Make<float>({3}, {10, 20, 30});
  const models::Node node =
      MakeNode("aten.linear.default", {{"bias", models::ValueRef{2}},
                                       {"weight", models::ValueRef{1}},
                                       {"input", models::ValueRef{0}}});
  const auto results = Execute(node, {Of(bias), Of(weight), Of(x)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(Values<float>((*results)[0]), ElementsAre(11, 22, 33));
  EXPECT_THAT((*results)[0].operand.tensor.dims, ElementsAre(1, 3));
}

TEST(CallerTest, OptionalArgumentMayBeNone) {
  const base::Tensor x = Make<float>({1, 2}, {1, 2});
  const base::Tensor weight = Make<float>({1, 2}, {3, 4});
  const models::Node node =
      MakeNode("aten.linear.default", {{"input", models::ValueRef{0}},
                                       {"weight", models::ValueRef{1}},
                                       {"bias", models::None{}}});
  const auto results = Execute(node, {Of(x), Of(weight)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(Values<float>((*results)[0]), ElementsAre(11));
}

TEST(CallerTest, NumbersPromoteAsPythonNumbers) {
  const base::Tensor x = Make<int32_t>({2}, {1, 2});
  const models::Node node =
      MakeNode("aten.add.Tensor",
               {{"self", models::ValueRef{0}}, {"other", int64_t{5}}});
  const auto literal = Execute(node, {Of(x)});
  ASSERT_TRUE(literal.ok()) << literal.status();
  EXPECT_THAT(Values<int32_t>((*literal)[0]), ElementsAre(6, 7));

  const models::Node with_size =
      MakeNode("aten.add.Tensor",
               {{"self", models::ValueRef{0}}, {"other", models::ValueRef{1}}});
  const auto size = Execute(with_size, {Of(x), Of(int64_t{7})});
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_THAT(Values<int32_t>((*size)[0]), ElementsAre(8, 9));
}

TEST(CallerTest, SizesFillListsAndScalars) {
  const base::Tensor x = Make<float>({6}, {0, 1, 2, 3, 4, 5});
  const models::Node view =
      MakeNode("aten.view.default",
               {{"self", models::ValueRef{0}},
                {"size", models::IntList{{.value = 1}, {.literal = 2}}}});
  const auto viewed = Execute(view, {Of(x), Of(int64_t{3})});
  ASSERT_TRUE(viewed.ok()) << viewed.status();
  EXPECT_THAT((*viewed)[0].operand.tensor.dims, ElementsAre(3, 2));
  // A view lies in the operand's memory.
  EXPECT_EQ((*viewed)[0].operand.tensor.data, x.data());

  const models::Node full =
      MakeNode("aten.full.default", {{"size", models::IntList{{.value = 0}}},
                                     {"fill_value", models::ValueRef{1}},
                                     {"dtype", base::DType::kInt32}});
  const auto filled = Execute(full, {Of(int64_t{2}), Of(int64_t{9})});
  ASSERT_TRUE(filled.ok()) << filled.status();
  EXPECT_THAT(Values<int32_t>((*filled)[0]), ElementsAre(9, 9));
}

TEST(CallerTest, ResultsAreContiguousAndAligned) {
  const base::Tensor x = Make<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const auto transposed = Execute(
      MakeNode("aten.t.default", {{"self", models::ValueRef{0}}}), {Of(x)});
  ASSERT_TRUE(transposed.ok()) << transposed.status();
  EXPECT_THAT(Values<float>((*transposed)[0]), ElementsAre(1, 4, 2, 5, 3, 6));

  const auto row =
      Execute(MakeNode("aten.select.int", {{"self", models::ValueRef{0}},
                                           {"dim", int64_t{0}},
                                           {"index", int64_t{1}}}),
              {Of(x)});
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_THAT(Values<float>((*row)[0]), ElementsAre(4, 5, 6));
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*row)[0].operand.tensor.data) %
                base::kTensorAlignBytes,
            0u);
}

TEST(CallerTest, ListsOfTensorsGoInAndComeOutFlat) {
  const base::Tensor a = Make<float>({1, 2}, {1, 2});
  const base::Tensor b = Make<float>({2, 2}, {3, 4, 5, 6});
  const auto cat = Execute(
      MakeNode("aten.cat.default", {{"tensors", models::ValueList{0, 1}}}),
      {Of(a), Of(b)});
  ASSERT_TRUE(cat.ok()) << cat.status();
  EXPECT_THAT(Values<float>((*cat)[0]), ElementsAre(1, 2, 3, 4, 5, 6));

  models::Node unbind =
      MakeNode("aten.unbind.int", {{"self", models::ValueRef{0}}}, 2);
  unbind.output_is_list = true;
  const auto rows = Execute(unbind, {Of(b)});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(Values<float>((*rows)[1]), ElementsAre(5, 6));

  unbind.outputs.push_back(102);
  const auto wrong = Execute(unbind, {Of(b)});
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.status().message(), HasSubstr("gives 2 results"));
}

TEST(CallerTest, HolesInAListOfTensorsAreNone) {
  const base::Tensor x = Make<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const base::Tensor columns = Make<int64_t>({2}, {2, 0});
  const auto results =
      Execute(MakeNode("aten.index.Tensor",
                       {{"self", models::ValueRef{0}},
                        {"indices", models::ValueList{models::kNoValue, 1}}}),
              {Of(x), Of(columns)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(Values<float>((*results)[0]), ElementsAre(3, 1, 6, 4));
}

TEST(CallerTest, WeightsKeepTheirStrides) {
  // A stand-in: 3 rows of 2 that share one number.
  const base::Tensor one = Make<float>({1}, {7});
  models::WeightView weight;
  weight.dtype = base::DType::kFloat32;
  weight.sizes = {3, 2};
  weight.strides = {0, 0};
  weight.data = one.data();
  Operand table;
  table.kind = Operand::Kind::kWeight;
  table.weight = &weight;
  const base::Tensor ids = Make<int64_t>({3}, {0, 2, 1});
  const base::Tensor offsets = Make<int64_t>({3}, {0, 2, 3});
  const auto results = Execute(MakeNode("aten.embedding_bag.padding_idx",
                                        {{"weight", models::ValueRef{0}},
                                         {"indices", models::ValueRef{1}},
                                         {"offsets", models::ValueRef{2}},
                                         {"scale_grad_by_freq", false},
                                         {"mode", int64_t{0}},
                                         {"sparse", false},
                                         {"per_sample_weights", models::None{}},
                                         {"include_last_offset", true},
                                         {"padding_idx", models::None{}}},
                                        4),
                               {table, Of(ids), Of(offsets)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(Values<float>((*results)[0]), ElementsAre(14, 14, 7, 7));
}

TEST(CallerTest, ScalarResultsAreNumbers) {
  const base::Tensor x = Make<int64_t>({1}, {42});
  const auto results = Execute(
      MakeNode("aten.item.default", {{"self", models::ValueRef{0}}}), {Of(x)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].operand.kind, Operand::Kind::kInt);
  EXPECT_EQ((*results)[0].operand.i, 42);
}

TEST(CallerTest, OneNumberStandsForAListOfFixedLength) {
  const base::Tensor x = Make<float>({1, 1, 4}, {1, 2, 3, 4});
  const auto results = Execute(
      MakeNode("aten.max_pool1d.default",
               {{"self", models::ValueRef{0}}, {"kernel_size", int64_t{2}}}),
      {Of(x)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(Values<float>((*results)[0]), ElementsAre(2, 4));
}

// 2^53 + 1 is not a double.
TEST(CallerTest, ListsOfNumbersKeepLargeIntegers) {
  const base::Tensor x = Make<int64_t>({2}, {0, 1});
  const int64_t large = (int64_t{1} << 53) + 1;
  const auto sum =
      Execute(MakeNode("aten._foreach_add.ScalarList",
                       {{"self", models::ValueList{0}},
                        {"scalars", models::IntList{{.literal = large}}}}),
              {Of(x)});
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_THAT(Values<int64_t>((*sum)[0]), ElementsAre(large, large + 1));
}

TEST(CallerTest, DeviceArgumentThatTheIrDropsIsTheCpu) {
  const base::Tensor x = Make<int32_t>({1}, {3});
  const auto results =
      Execute(MakeNode("aten.to.device", {{"self", models::ValueRef{0}},
                                          {"dtype", base::DType::kFloat32}}),
              {Of(x)});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(Values<float>((*results)[0]), ElementsAre(3));
}

TEST(CallerTest, BadShapesAreInvalidArgumentInOneLine) {
  const base::Tensor x = Make<float>({1, 2}, {1, 2});
  const base::Tensor weight = Make<float>({1, 3}, {1, 2, 3});
  const auto results = Execute(
      MakeNode("aten.linear.default", {{"input", models::ValueRef{0}},
                                       {"weight", models::ValueRef{1}}}),
      {Of(x), Of(weight)});
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(results.status().message(), HasSubstr("node_0"));
  EXPECT_THAT(results.status().message(), HasSubstr("aten.linear.default"));
  EXPECT_THAT(results.status().message(), HasSubstr("shapes"));
  EXPECT_THAT(results.status().message(), Not(HasSubstr("\n")));
}

TEST(CallerTest, IdOutsideItsTableIsInvalidArgument) {
  const base::Tensor table = Make<float>({2, 1}, {1, 2});
  const base::Tensor ids = Make<int64_t>({1}, {2});
  const auto results = Execute(
      MakeNode("aten.embedding.default", {{"weight", models::ValueRef{0}},
                                          {"indices", models::ValueRef{1}}}),
      {Of(table), Of(ids)});
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(results.status().message(), HasSubstr("out of range"));
}

TEST(CallerTest, FailedCallLeavesResultsAsTheyWere) {
  const base::Tensor x = Make<float>({2}, {1, 2});
  const auto caller = *Caller::Create(MakeNode(
      "aten.view.default", {{"self", models::ValueRef{0}},
                            {"size", models::IntList{{.literal = 3}}}}));
  std::vector<Result> results(2);
  EXPECT_FALSE(caller->Call({Of(x)}, results).ok());
  EXPECT_EQ(results.size(), 2u);
}

TEST(CallerTest, ComplexResultIsUnimplemented) {
  const base::Tensor x = Make<float>({4}, {1, 2, 3, 4});
  const auto results =
      Execute(MakeNode("aten.fft_fft.default", {{"self", models::ValueRef{0}}}),
              {Of(x)});
  EXPECT_EQ(results.status().code(), absl::StatusCode::kUnimplemented);
}

// Pairs of real and imaginary part.
models::Node ComplexNode(const std::string& op,
                         std::vector<models::NamedArgument> args,
                         models::BoolList operands, models::BoolList results) {
  args.push_back(
      {std::string(models::kComplexOperandsArg), std::move(operands)});
  args.push_back({std::string(models::kComplexResultsArg), std::move(results)});
  return MakeNode(op, std::move(args));
}

TEST(CallerTest, ComplexNumbersArePairs) {
  const base::Tensor x = Make<float>({2, 2}, {1, 2, 3, 4});
  const base::Tensor y = Make<float>({2, 2}, {0, 1, 1, -1});
  // (1 + 2i)·i = -2 + i, (3 + 4i)(1 - i) = 7 + i
  const auto product = Execute(ComplexNode("complex.mul.Tensor",
                                           {{"self", models::ValueRef{0}},
                                            {"other", models::ValueRef{1}}},
                                           {true, true}, {true}),
                               {Of(x), Of(y)});
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_THAT(Values<float>((*product)[0]), ElementsAre(-2, 1, 7, 1));
  EXPECT_THAT((*product)[0].operand.tensor.dims, ElementsAre(2, 2));
  // A real operand next to a complex one is not a pair.
  const base::Tensor real = Make<float>({2}, {10, 100});
  const auto scaled = Execute(ComplexNode("complex.mul.Tensor",
                                          {{"self", models::ValueRef{0}},
                                           {"other", models::ValueRef{1}}},
                                          {true, false}, {true}),
                              {Of(x), Of(real)});
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_THAT(Values<float>((*scaled)[0]), ElementsAre(10, 20, 300, 400));
}

TEST(CallerTest, ComplexLiteralsTypesAndLists) {
  const base::Tensor x = Make<float>({1, 2}, {1, 2});
  const auto turned = Execute(ComplexNode("complex.mul.Tensor",
                                          {{"self", models::ValueRef{0}},
                                           {"other", models::FloatList{0, 1}}},
                                          {true}, {true}),
                              {Of(x)});
  ASSERT_TRUE(turned.ok()) << turned.status();
  EXPECT_THAT(Values<float>((*turned)[0]), ElementsAre(-2, 1));
  const base::Tensor real = Make<float>({2}, {3, 4});
  const auto cast = Execute(ComplexNode("complex.to.dtype",
                                        {{"self", models::ValueRef{0}},
                                         {"dtype", std::string("complex64")}},
                                        {false}, {true}),
                            {Of(real)});
  ASSERT_TRUE(cast.ok()) << cast.status();
  EXPECT_THAT(Values<float>((*cast)[0]), ElementsAre(3, 0, 4, 0));
  const auto joined = Execute(
      ComplexNode("complex.cat.default", {{"tensors", models::ValueList{0, 1}}},
                  {true, true}, {true}),
      {Of(x), Of(x)});
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_THAT(Values<float>((*joined)[0]), ElementsAre(1, 2, 1, 2));
}

// LibTorch marks them and leaves the memory as it was.
TEST(CallerTest, ConjugatesAndTheirPartsAreComputed) {
  const base::Tensor x = Make<float>({2, 2}, {1, 2, 3, 4});
  const auto conjugate =
      Execute(ComplexNode("complex.conj.default",
                          {{"self", models::ValueRef{0}}}, {true}, {true}),
              {Of(x)});
  ASSERT_TRUE(conjugate.ok()) << conjugate.status();
  EXPECT_THAT(Values<float>((*conjugate)[0]), ElementsAre(1, -2, 3, -4));
  const auto adjoint =
      Execute(ComplexNode("complex.imag.default",
                          {{"self", models::ValueRef{0}}}, {true}, {false}),
              {Of(x)});
  ASSERT_TRUE(adjoint.ok()) << adjoint.status();
  EXPECT_THAT(Values<float>((*adjoint)[0]), ElementsAre(2, 4));
}

TEST(CallerTest, WhatIsComplexMustBeSaidRight) {
  const base::Tensor x = Make<float>({3}, {1, 2, 3});
  const std::vector<models::NamedArgument> self = {
      {"self", models::ValueRef{0}}};
  const auto no_pairs = Execute(
      ComplexNode("complex.abs.default", self, {true}, {false}), {Of(x)});
  EXPECT_EQ(no_pairs.status().code(), absl::StatusCode::kInvalidArgument);
  const auto wrong = Execute(
      ComplexNode("complex.fft_fft.default", self, {false}, {false}), {Of(x)});
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kUnimplemented);
  for (const models::BoolList& operands :
       {models::BoolList{}, models::BoolList{true, true}}) {
    const auto caller = Caller::Create(
        ComplexNode("complex.abs.default", self, operands, {false}));
    EXPECT_EQ(caller.status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(
      Caller::Create(MakeNode("complex.abs.default", self)).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(CallerTest, UnknownOperatorOrOverloadIsNotFound) {
  for (const char* op : {"aten.no_such.default", "aten.add.NoSuch", "py.add",
                         "fbgemm.nothing.default", "linear"}) {
    const auto caller = Caller::Create(MakeNode(op, {}));
    EXPECT_EQ(caller.status().code(), absl::StatusCode::kNotFound) << op;
    EXPECT_THAT(caller.status().message(), HasSubstr(op));
  }
}

TEST(CallerTest, OperatorThatWritesIsRefused) {
  const auto caller = Caller::Create(
      MakeNode("aten.relu_.default", {{"self", models::ValueRef{0}}}));
  EXPECT_EQ(caller.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(caller.status().message(), HasSubstr("writes"));
}

TEST(CallerTest, ArgumentsThatDoNotFitTheSchemaAreRefusedByName) {
  const std::vector<std::pair<models::NamedArgument, std::string>> cases = {
      {{"nonsense", int64_t{1}}, "nonsense"},
      {{"dim", std::string("one")}, "dim"},
      {{"dim", 1.5}, "dim"},
      {{"self", base::DType::kFloat32}, "self"},
      {{"self", models::IntList{{.literal = 1}}}, "self"},
  };
  for (const auto& [argument, name] : cases) {
    const auto caller =
        Caller::Create(MakeNode("aten.softmax.int", {argument}));
    EXPECT_EQ(caller.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(caller.status().message(), HasSubstr(name));
  }
  const auto missing = Caller::Create(
      MakeNode("aten.softmax.int", {{"self", models::ValueRef{0}}}));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(missing.status().message(), HasSubstr("dim"));
}

TEST(CallerTest, WrongNumberOfOperandsIsAnError) {
  const auto caller = *Caller::Create(
      MakeNode("aten.relu.default", {{"self", models::ValueRef{0}}}));
  std::vector<Result> results;
  EXPECT_FALSE(caller->Call({}, results).ok());
}

TEST(CallerTest, ThreadsShareOneCaller) {
  const auto caller = *Caller::Create(MakeNode(
      "aten.mul.Tensor",
      {{"self", models::ValueRef{0}}, {"other", models::ValueRef{0}}}));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const float value = static_cast<float>(t * 1000 + i);
        const base::Tensor x = Make<float>({2}, {value, -value});
        std::vector<Result> results;
        if (!caller->Call({Of(x), Of(x)}, results).ok() ||
            results[0].operand.tensor.as<float>()[1] != value * value) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace refract::runtime::aten
