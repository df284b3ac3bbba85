// Products over named dimensions: each element bit for bit against an explicit
// chain of fused multiply-adds, and against LibTorch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/runtime/testing/expect_right.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::GraphBuilder;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::Must;
using ::testing::Not;
using testing::Ref;
using testing::Sym;

using Sizes = std::map<char, int64_t>;

struct Equation {
  std::string a;
  std::string b;
  std::string out;
  std::string text() const { return absl::StrCat(a, ",", b, "->", out); }
};

base::Tensor Random(const std::string& letters, const Sizes& sizes,
                    std::mt19937& random) {
  base::Dims dims;
  size_t count = 1;
  for (char letter : letters) {
    dims.push_back(sizes.at(letter));
    count *= static_cast<size_t>(dims.back());
  }
  base::Tensor tensor = Must(base::Tensor::Allocate(DType::kFloat32, dims));
  const auto values = testing::RandomFloats(count, random);
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

size_t Place(const std::string& letters, const Sizes& sizes, const Sizes& at) {
  size_t place = 0;
  for (char letter : letters) {
    place = place * static_cast<size_t>(sizes.at(letter)) +
            static_cast<size_t>(at.at(letter) % sizes.at(letter));
  }
  return place;
}

// `sizes` with the tensor's sizes, which may be 1 where it broadcasts.
Sizes OwnSizes(const std::string& letters, const Sizes& sizes,
               const base::Tensor& tensor) {
  Sizes own = sizes;
  if (tensor.dims().size() != letters.size()) return own;
  for (size_t d = 0; d < letters.size(); ++d) {
    own[letters[d]] = tensor.dims()[d];
  }
  return own;
}

// Calls `f` for every value of `letters`, the last one fastest.
template <typename F>
void ForEach(const std::string& letters, const Sizes& sizes, Sizes& at, F f,
             size_t depth = 0) {
  if (depth == letters.size()) return f();
  for (int64_t i = 0; i < sizes.at(letters[depth]); ++i) {
    at[letters[depth]] = i;
    ForEach(letters, sizes, at, f, depth + 1);
  }
}

std::vector<float> ByHand(const Equation& equation, const Sizes& sizes,
                          const base::Tensor& a, const base::Tensor& b) {
  std::string summed;
  for (char letter : equation.a) {
    if (equation.b.find(letter) != std::string::npos &&
        equation.out.find(letter) == std::string::npos) {
      summed += letter;
    }
  }
  const Sizes a_sizes = OwnSizes(equation.a, sizes, a);
  const Sizes b_sizes = OwnSizes(equation.b, sizes, b);
  std::vector<float> out;
  Sizes at;
  ForEach(equation.out, sizes, at, [&] {
    float sum = 0;
    ForEach(summed, sizes, at, [&] {
      const float x = a.view().as<float>()[Place(equation.a, a_sizes, at)];
      const float y = b.view().as<float>()[Place(equation.b, b_sizes, at)];
      sum = summed.empty() ? x * y : std::fma(x, y, sum);
    });
    out.push_back(sum);
  });
  return out;
}

void ExpectBits(const base::Tensor& tensor, const std::vector<float>& wanted) {
  const auto values = tensor.view().as<float>();
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(values[i], wanted[i]) << i;
  }
}

struct OneProduct {
  // `a_of_one`, `b_of_one`: letters of size 1 in an operand.
  OneProduct(const Equation& equation, const Sizes& sizes, std::mt19937& random,
             const std::string& a_of_one = "",
             const std::string& b_of_one = "") {
    std::vector<ValueId> operands;
    for (const auto& [letters, of_one] :
         {std::pair(equation.a, a_of_one), std::pair(equation.b, b_of_one)}) {
      Sizes own = sizes;
      for (char letter : of_one) own[letter] = 1;
      std::vector<SymExpr> shape;
      for (char letter : letters) {
        shape.push_back(of_one.find(letter) == std::string::npos
                            ? Size(sizes, letter)
                            : SymExpr(1));
      }
      operands.push_back(builder.Input(absl::StrCat("x", operands.size()),
                                       DType::kFloat32, shape));
      inputs.push_back(Random(letters, own, random));
    }
    std::vector<SymExpr> shape;
    for (char letter : equation.out) shape.push_back(Size(sizes, letter));
    models::NamedArgument text = {"equation", equation.text()};
    builder.Output(builder.Node("aten.einsum.default",
                                {text, List("tensors", operands)},
                                {DType::kFloat32, shape}));
  }
  // The first letter's size comes with the request.
  static SymExpr Size(const Sizes& sizes, char letter) {
    if (letter == 'a') return Sym("s");
    return sizes.at(letter);
  }
  GraphBuilder builder;
  std::vector<base::Tensor> inputs;
};

TEST(EinsumTest, RandomEquations) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  int native = 0;
  for (int round = 0; round < 60; ++round) {
    Equation equation;
    Sizes sizes;
    std::string all;
    int64_t terms = 1;
    const auto add = [&](int most, std::vector<std::string*> where) {
      const int count = static_cast<int>(random() % (most + 1));
      for (int i = 0; i < count; ++i) {
        const char letter = static_cast<char>('a' + all.size());
        all += letter;
        const int64_t choices[] = {1, 2, 3, 5, 16, 19};
        sizes[letter] = random() % 20 == 0 ? 0 : choices[random() % 6];
        // Small sizes, since the oracle is slow.
        if (terms * sizes[letter] > 100'000) sizes[letter] = 1;
        terms *= std::max<int64_t>(1, sizes[letter]);
        for (std::string* letters : where) *letters += letter;
      }
    };
    add(2, {&equation.a, &equation.b, &equation.out});
    add(2, {&equation.a, &equation.out});
    add(2, {&equation.b, &equation.out});
    add(2, {&equation.a, &equation.b});
    for (std::string* letters : {&equation.a, &equation.b, &equation.out}) {
      if (random() % 2 == 0) {
        std::shuffle(letters->begin(), letters->end(), random);
      }
    }
    if (equation.a.empty() || equation.b.empty()) continue;
    std::string of_one[2];
    for (char letter : equation.a) {
      if (equation.b.find(letter) == std::string::npos) continue;
      const size_t which = random() % 8;
      if (which < 2) of_one[which] += letter;
    }
    SCOPED_TRACE(absl::StrCat(equation.text(), ", of one element: ", of_one[0],
                              "; ", of_one[1]));
    OneProduct one(equation, sizes, random, of_one[0], of_one[1]);
    const auto kernels = testing::KernelsOf(one.builder);
    if (equation.out.size() <= 6) {
      EXPECT_THAT(kernels, ElementsAre(Not("libtorch")));
      ++native;
    }
    testing::ExpectLibTorchs(one.builder, one.inputs, 1e-4f);
    if (kernels[0] == "libtorch") continue;
    const auto whole = Must(testing::RunWhole(one.builder, one.inputs));
    ExpectBits(whole[0], ByHand(equation, sizes, one.inputs[0], one.inputs[1]));
  }
  EXPECT_GT(native, 0);
}

TEST(EinsumTest, ProductsAsTheyLieAreMatrixProducts) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  const Sizes sizes = {{'b', 3}, {'h', 2}, {'i', 5}, {'j', 4}, {'k', 7}};
  for (const auto& [equation, kernel] :
       std::vector<std::pair<Equation, std::string>>{
           {{"bhik", "bhjk", "bhij"}, "bmm"},
           {{"bik", "bkj", "bij"}, "bmm"},
           {{"bik", "jk", "bij"}, "linear"},
           {{"ik", "kj", "ij"}, "linear"},
           {{"bik", "bjk", "bji"}, "einsum"}}) {
    SCOPED_TRACE(equation.text());
    OneProduct one(equation, sizes, random);
    EXPECT_THAT(testing::KernelsOf(one.builder), ElementsAre(kernel));
    testing::ExpectLibTorchs(one.builder, one.inputs, 1e-4f);
  }
}

TEST(EinsumTest, BroadcastsAndLeavesOtherEquationsToLibTorch) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 3});
  const auto y = builder.Input("y", DType::kFloat32, {1, 3});
  const auto one = [&](const char* text, std::vector<ValueId> operands,
                       std::vector<SymExpr> shape) {
    builder.Output(builder.Node(
        "aten.einsum.default",
        {{"equation", std::string(text)}, List("tensors", operands)},
        {DType::kFloat32, shape}));
  };
  one("bi,bi->b", {x, y}, {Sym("b")});
  one("bi,bi->ib", {y, x}, {3, Sym("b")});
  one("bi,ci->b", {x, y}, {Sym("b")});  // c is of one size: nothing to sum
  one("...i,...i->...", {x, x}, {Sym("b")});
  one("bi,ci->", {x, x}, {});
  one("bi->i", {x}, {3});
  const auto kernels = testing::KernelsOf(builder);
  EXPECT_THAT(kernels, ElementsAre("einsum", "einsum", "einsum", "libtorch",
                                   "libtorch", "libtorch"));
  const Sizes sizes = {{'b', 4}, {'i', 3}, {'c', 1}};
  std::vector<base::Tensor> inputs;
  inputs.push_back(Random("bi", sizes, random));
  inputs.push_back(Random("ci", sizes, random));
  testing::ExpectLibTorchs(builder, inputs, 1e-5f);
}

// Products with a whole table, which LibTorch reads in place.
TEST(EinsumTest, LargeOperandsAreNotCopied) {
  for (const int64_t rows : {int64_t{1} << 22, (int64_t{1} << 22) + 1}) {
    for (const char* text : {"bd,nd->bn", "nd,bd->bn", "bd,nd->nb"}) {
      GraphBuilder builder;
      const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 64});
      const auto table = builder.Input("t", DType::kFloat32, {rows, 64});
      const std::vector<ValueId> operands =
          text[0] == 'b' ? std::vector<ValueId>{x, table}
                         : std::vector<ValueId>{table, x};
      std::vector<SymExpr> shape = {Sym("b"), rows};
      if (text[7] == 'n') std::swap(shape[0], shape[1]);
      builder.Output(builder.Node(
          "aten.einsum.default",
          {{"equation", std::string(text)}, List("tensors", operands)},
          {DType::kFloat32, shape}));
      EXPECT_EQ(testing::KernelsOf(builder)[0] == "libtorch",
                rows * 64 > int64_t{1} << 28)
          << text << " " << rows;
    }
  }
}

// One fused multiply-add to 0: −0 × 1 gives 0, and an underflow keeps its sign.
TEST(EinsumTest, ProductsOfOneTerm) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  for (const int64_t columns : {1, 3, 40}) {
    const Sizes sizes = {{'a', 4}, {'i', 37}, {'k', 1}, {'j', columns}};
    OneProduct one({"aik", "akj", "aij"}, sizes, random);
    EXPECT_THAT(testing::KernelsOf(one.builder), ElementsAre("bmm"));
    one.inputs[0].as<float>()[5] = -0.0f;
    one.inputs[0].as<float>()[7] = 1e-30f;
    one.inputs[1].as<float>()[0] = -1e-30f;
    testing::ExpectLibTorchs(one.builder, one.inputs, 1e-6f);
    const auto got = Must(testing::RunWhole(one.builder, one.inputs));
    const auto wanted =
        ByHand({"aik", "akj", "aij"}, sizes, one.inputs[0], one.inputs[1]);
    const auto values = got[0].view().as<float>();
    ASSERT_EQ(values.size(), wanted.size());
    EXPECT_EQ(std::memcmp(values.data(), wanted.data(), got[0].bytes()), 0);
  }
}

// A matrix times a batch, and batches of which one is missing or of size 1.
TEST(MatMulTest, LeadingDimensionsBroadcast) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  const struct {
    std::vector<int64_t> a;  // −1: the batch
    std::vector<int64_t> b;
    std::vector<int64_t> out;
  } cases[] = {{{7, 5}, {-1, 5, 4}, {-1, 7, 4}},
               {{7, 5}, {-1, 5, 1}, {-1, 7, 1}},
               {{1, 5}, {-1, 3, 5, 17}, {-1, 3, 1, 17}},
               {{-1, 3, 5}, {1, 5, 33}, {-1, 3, 33}},
               {{1, 3, 5}, {-1, 5, 16}, {-1, 3, 16}},
               {{-1, 1, 6, 5}, {-1, 2, 5, 6}, {-1, 2, 6, 6}},
               {{2, 6, 5}, {-1, 1, 5, 3}, {-1, 2, 6, 3}},
               {{3, 1, 6, 5}, {-1, 5, 3}, {3, -1, 6, 3}},
               {{-1, 1, 5}, {1, 5, 33}, {-1, 1, 33}},
               {{-1, 2, 3, 5}, {1, 1, 5, 16}, {-1, 2, 3, 16}},
               {{-1, 2, 3, 5}, {2, 5, 7}, {-1, 2, 3, 7}},
               {{2, -1, 3, 5}, {2, 1, 5, 7}, {2, -1, 3, 7}},
               {{1, 2, 3, 5}, {-1, 1, 5, 7}, {-1, 2, 3, 7}}};
  for (const auto& c : cases) {
    GraphBuilder builder;
    const auto shape = [](const std::vector<int64_t>& dims) {
      std::vector<SymExpr> sizes;
      for (int64_t dim : dims) sizes.push_back(dim < 0 ? Sym("s") : dim);
      return sizes;
    };
    const auto x = builder.Input("x", DType::kFloat32, shape(c.a));
    const auto y = builder.Input("y", DType::kFloat32, shape(c.b));
    builder.Output(builder.Node("aten.matmul.default",
                                {Ref("self", x), Ref("other", y)},
                                {DType::kFloat32, shape(c.out)}));
    EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("matmul"));
    for (const int64_t batch : {1, 2, 19}) {
      std::vector<base::Tensor> inputs;
      // The product in letters; a dimension of size 1 has no letter.
      Sizes sizes = {{'k', 5}};
      std::string letters[2];
      const std::vector<int64_t>* const dims[] = {&c.a, &c.b};
      for (int i : {0, 1}) {
        const size_t rank = dims[i]->size();
        for (size_t d = 0; d < rank; ++d) {
          const size_t from_end = rank - d;
          char letter = static_cast<char>('z' - from_end);
          if (from_end == 2) letter = i == 0 ? 'm' : 'k';
          if (from_end == 1) letter = i == 0 ? 'k' : 'n';
          const int64_t size = (*dims[i])[d] < 0 ? batch : (*dims[i])[d];
          if (from_end > 2 && size == 1) letter = i == 0 ? 'p' : 'q';
          letters[i] += letter;
          sizes[letter] = size;
        }
        inputs.push_back(Random(letters[i], sizes, random));
        std::erase_if(letters[i], [](char c) { return c == 'p' || c == 'q'; });
      }
      std::string out;
      for (size_t d = 0; d < c.out.size(); ++d) {
        const size_t from_end = c.out.size() - d;
        out += from_end == 1   ? 'n'
               : from_end == 2 ? 'm'
                               : static_cast<char>('z' - from_end);
        if (sizes.count(out.back()) == 0) sizes[out.back()] = 1;
      }
      testing::ExpectLibTorchs(builder, inputs, 1e-4f);
      const auto whole = Must(testing::RunWhole(builder, inputs));
      ExpectBits(whole[0], ByHand({letters[0], letters[1], out}, sizes,
                                  inputs[0], inputs[1]));
    }
  }
}

// Scores of many rows per item: expanding would copy 1 GiB instead of 16 MiB,
// and the thread would keep that memory.
TEST(MatMulTest, WhatBroadcastsIsNotCopiedForEachProduct) {
  constexpr int64_t kItems = 64;
  constexpr int64_t kRows = 65536;
  const struct {
    base::Dims a;
    base::Dims b;
    base::Dims out;
  } cases[] = {{{kItems, 1, 64}, {1, 64, kRows}, {kItems, 1, kRows}},
               {{1, kRows, 64}, {kItems, 64, 1}, {kItems, kRows, 1}}};
  for (const auto& c : cases) {
    GraphBuilder builder;
    const auto shape = [](const base::Dims& dims) {
      return std::vector<SymExpr>(dims.begin(), dims.end());
    };
    const auto x = builder.Input("x", DType::kFloat32, shape(c.a));
    const auto y = builder.Input("y", DType::kFloat32, shape(c.b));
    builder.Output(builder.Node("aten.matmul.default",
                                {Ref("self", x), Ref("other", y)},
                                {DType::kFloat32, shape(c.out)}));
    std::vector<base::Tensor> inputs;
    for (const base::Dims& dims : {c.a, c.b}) {
      inputs.push_back(Must(base::Tensor::Allocate(DType::kFloat32, dims)));
      const auto values = inputs.back().as<float>();
      std::fill(values.begin(), values.end(), 0.5f);
    }
    const auto most_kib = [] {
      rusage usage;
      getrusage(RUSAGE_SELF, &usage);
      return usage.ru_maxrss;
    };
    const auto before = most_kib();
    const auto out = Must(testing::RunWhole(builder, inputs));
    EXPECT_LT(most_kib() - before, 400 << 10) << base::DimsToString(c.a);
    const auto scores = out[0].view().as<float>();
    EXPECT_EQ(std::count(scores.begin(), scores.end(), 16.0f), kItems * kRows);
  }
}

TEST(TensordotTest, IsLibTorchs) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  const Sizes sizes = {{'b', 6}, {'f', 5}, {'d', 16}, {'e', 3}, {'o', 1}};
  struct Case {
    std::string a;
    std::string b;
    std::vector<int64_t> a_dims;
    std::vector<int64_t> b_dims;
    std::string out;
    std::string kernel;
  };
  for (const Case& c :
       std::vector<Case>{{"bfd", "de", {-1}, {0}, "bfe", "linear"},
                         {"bfd", "ed", {2}, {1}, "bfe", "linear"},
                         {"bdo", "de", {1}, {0}, "boe", "tensordot"},
                         {"bfd", "dfe", {1, 2}, {1, 0}, "be", "tensordot"},
                         {"bf", "de", {}, {}, "bfde", "tensordot"}}) {
    SCOPED_TRACE(absl::StrCat(c.a, " ", c.b));
    GraphBuilder builder;
    std::vector<base::Tensor> inputs;
    std::vector<SymExpr> shapes[3];
    const std::string* const letters[] = {&c.a, &c.b, &c.out};
    for (int i : {0, 1, 2}) {
      for (char letter : *letters[i]) {
        shapes[i].push_back(letter == 'b' ? Sym("b")
                                          : SymExpr(sizes.at(letter)));
      }
    }
    const auto x = builder.Input("x", DType::kFloat32, shapes[0]);
    const auto y = builder.Input("y", DType::kFloat32, shapes[1]);
    builder.Output(builder.Node(
        "aten.tensordot.default",
        {Ref("self", x), Ref("other", y), Ints("dims_self", c.a_dims),
         Ints("dims_other", c.b_dims)},
        {DType::kFloat32, shapes[2]}));
    inputs.push_back(Random(c.a, sizes, random));
    inputs.push_back(Random(c.b, sizes, random));
    EXPECT_THAT(testing::KernelsOf(builder), ElementsAre(c.kernel));
    testing::ExpectLibTorchs(builder, inputs, 1e-4f);
  }
}

TEST(Conv1dTest, OfOneStepIsAProduct) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  for (const bool bias : {false, true}) {
    for (const int64_t length : {1, 16, 21}) {
      GraphBuilder builder;
      const Sizes sizes = {
          {'b', 5}, {'c', 33}, {'l', length}, {'o', 18}, {'k', 1}};
      const auto x =
          builder.Input("x", DType::kFloat32, {Sym("b"), 33, length});
      const auto w = builder.Input("w", DType::kFloat32, {18, 33, 1});
      std::vector<base::Tensor> inputs;
      inputs.push_back(Random("bcl", sizes, random));
      inputs.push_back(Random("ock", sizes, random));
      std::vector<models::NamedArgument> args = {Ref("input", x),
                                                 Ref("weight", w)};
      if (bias) {
        args.push_back(
            Ref("bias", builder.Input("bias", DType::kFloat32, {18})));
        inputs.push_back(Random("o", sizes, random));
      }
      builder.Output(builder.Node("aten.conv1d.default", args,
                                  {DType::kFloat32, {Sym("b"), 18, length}}));
      EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("conv1d"));
      testing::ExpectLibTorchs(builder, inputs, 1e-4f);
      auto wanted = ByHand({"oc", "bcl", "bol"}, sizes, inputs[1], inputs[0]);
      for (size_t i = 0; bias && i < wanted.size(); ++i) {
        wanted[i] +=
            inputs[2].as<float>()[i / static_cast<size_t>(length) % 18];
      }
      ExpectBits(Must(testing::RunWhole(builder, inputs))[0], wanted);
    }
  }
}

TEST(Conv1dTest, OtherConvolutionsAreLibTorchs) {
  for (const auto& more : std::vector<models::NamedArgument>{
           Ints("stride", {2}), Ints("padding", {1}), Ints("dilation", {2}),
           Int("groups", 3)}) {
    GraphBuilder builder;
    const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 3, 8});
    const auto w = builder.Input("w", DType::kFloat32,
                                 {6, more.name == "groups" ? 1 : 3, 1});
    builder.Output(builder.Node("aten.conv1d.default",
                                {Ref("input", x), Ref("weight", w), more},
                                {DType::kFloat32, {Sym("b"), 6, Sym("l")}}));
    EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("libtorch"));
  }
}

}  // namespace
}  // namespace refract::runtime
