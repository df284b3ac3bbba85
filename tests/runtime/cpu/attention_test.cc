// scaled_dot_product_attention against LibTorch, and the header's statements on
// masks and on shapes that do not fit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::NamedArgument;
using models::SymExpr;
using models::ValueId;
using testing::Bool;
using ::testing::ElementsAre;
using testing::Float;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Must;
using testing::RandomTensor;
using testing::Ref;
using testing::Sym;

// Query, key, value and an optional mask; the first dimension is the batch.
struct Attention {
  Attention(std::vector<base::Tensor> tensors,
            const std::vector<NamedArgument>& more)
      : inputs(std::move(tensors)) {
    const char* const names[] = {"query", "key", "value", "attn_mask"};
    std::vector<NamedArgument> args;
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<SymExpr> shape;
      for (size_t d = 0; d < inputs[i].dims().size(); ++d) {
        const bool batch = d == 0 && i < 3 && inputs[i].dims().size() > 2;
        shape.push_back(batch ? Sym("b") : SymExpr(inputs[i].dims()[d]));
      }
      args.push_back(
          Ref(names[i], builder.Input(names[i], inputs[i].dtype(), shape)));
    }
    args.insert(args.end(), more.begin(), more.end());
    const ValueId out =
        builder.Node("aten.scaled_dot_product_attention.default", args,
                     {DType::kFloat32, {}});
    builder.graph().values[out].has_shape = false;
    builder.Output(out);
  }

  void ExpectLikeLibTorch() {
    EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("attention"));
    const auto own = Must(testing::RunWhole(builder, inputs));
    const auto torch = Must(testing::RunByLibTorch(builder, inputs));
    ASSERT_EQ(own[0].dims(), torch[0].dims());
    const auto x = own[0].view().as<float>();
    const auto y = torch[0].view().as<float>();
    for (size_t i = 0; i < y.size(); ++i) {
      if (std::isnan(y[i])) {
        ASSERT_TRUE(std::isnan(x[i])) << i;
      } else if (x[i] != y[i]) {  // equal ones may be infinite
        ASSERT_NEAR(x[i], y[i], 1e-5 * std::max(1.0f, std::abs(y[i]))) << i;
      }
    }
  }

  GraphBuilder builder;
  std::vector<base::Tensor> inputs;
};

std::vector<base::Tensor> Triple(const base::Dims& query, int64_t keys,
                                 int64_t width, std::mt19937& random) {
  base::Dims key = query;
  key[key.size() - 2] = keys;
  base::Dims value = key;
  value.back() = width;
  std::vector<base::Tensor> tensors;
  tensors.push_back(RandomTensor(query, random));
  tensors.push_back(RandomTensor(key, random));
  tensors.push_back(RandomTensor(value, random));
  return tensors;
}

TEST(AttentionTest, IsLibTorchs) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  struct Case {
    base::Dims query;
    int64_t keys;
    int64_t width;
    std::vector<NamedArgument> more;
  };
  const std::vector<Case> cases = {
      {{3, 7, 16}, 9, 16, {}},
      {{2, 4, 50, 32}, 50, 32, {}},
      {{2, 1, 1, 8}, 1, 8, {}},
      // Values are read unpacked.
      {{2, 3, 1, 8}, 11, 48, {}},
      {{4, 3, 16}, 9, 16, {}},
      {{1, 2, 70, 24}, 33, 5, {Float("scale", 0.3)}},
      {{2, 2, 65, 16}, 65, 16, {Bool("is_causal", true)}},
      {{2, 3, 5, 16}, 9, 16, {Bool("is_causal", true)}},
      {{5, 4}, 6, 4, {}},
      {{2, 130, 8}, 3, 40, {Float("dropout_p", 0.0)}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(base::DimsToString(c.query), " x ", c.keys));
    Attention(Triple(c.query, c.keys, c.width, random), c.more)
        .ExpectLikeLibTorch();
  }
}

TEST(AttentionTest, MasksLikeLibTorch) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::vector<base::Dims> masks = {
      {6, 9}, {1, 9}, {3, 1, 6, 9}, {3, 1, 1, 9}, {1, 2, 6, 1}, {3, 2, 6, 9}};
  for (const base::Dims& dims : masks) {
    SCOPED_TRACE(base::DimsToString(dims));
    auto with_numbers = Triple({3, 2, 6, 16}, 9, 16, random);
    with_numbers.push_back(RandomTensor(dims, random));
    Attention(std::move(with_numbers), {}).ExpectLikeLibTorch();
    auto with_truths = Triple({3, 2, 6, 16}, 9, 16, random);
    with_truths.push_back(Must(base::Tensor::Allocate(DType::kBool, dims)));
    // The mask hides all keys of some rows.
    for (size_t i = 0; i < with_truths[3].bytes(); ++i) {
      with_truths[3].data()[i] =
          std::byte{i >= 9 && random() % 3 != 0 ? uint8_t{1} : uint8_t{0}};
    }
    Attention(std::move(with_truths), {}).ExpectLikeLibTorch();
  }
}

TEST(AttentionTest, NanStaysInItsRow) {
  std::mt19937 random(1);
  auto tensors = Triple({2, 4, 8}, 5, 8, random);
  tensors[0].as<float>()[0] = std::nanf("");
  Attention(std::move(tensors), {}).ExpectLikeLibTorch();
}

TEST(AttentionTest, NanAndInfinitiesAreSeenThroughMasks) {
  std::mt19937 random(3);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float spoilt : {std::nanf(""), infinity, -infinity}) {
    for (const int hidden : {1, 3}) {
      for (const size_t input : {0, 1, 2}) {
        SCOPED_TRACE(absl::StrCat(spoilt, " in input ", input, ", every ",
                                  hidden, "th key is hidden"));
        auto tensors = Triple({2, 2, 4, 8}, 6, 8, random);
        for (const size_t at : {3 * 8 + 2, 7 * 8 + 1}) {
          tensors[input].as<float>()[at] = spoilt;
        }
        tensors.push_back(
            Must(base::Tensor::Allocate(DType::kBool, {2, 1, 1, 6})));
        for (int i = 0; i < 12; ++i) {
          tensors[3].data()[i] = std::byte{i % hidden != 0};
        }
        Attention(std::move(tensors), {}).ExpectLikeLibTorch();
      }
    }
  }
}

TEST(AttentionTest, ARowsResultDoesNotDependOnItsBatch) {
  std::mt19937 random(2);
  Attention many(Triple({4, 6, 16}, 9, 16, random), {});
  std::vector<base::Tensor> one;
  for (const base::Tensor& tensor : many.inputs) {
    base::Dims dims = tensor.dims();
    dims[0] = 1;
    base::Tensor first = Must(base::Tensor::Allocate(DType::kFloat32, dims));
    std::copy_n(tensor.data(), first.bytes(), first.data());
    one.push_back(std::move(first));
  }
  const auto whole = Must(testing::RunWhole(many.builder, many.inputs));
  const auto alone = Must(testing::RunWhole(many.builder, one));
  EXPECT_TRUE(std::equal(alone[0].data(), alone[0].data() + alone[0].bytes(),
                         whole[0].data()));
}

TEST(AttentionTest, RefusesWhatDoesNotFit) {
  std::mt19937 random(3);
  auto tensors = Triple({2, 4, 8}, 5, 8, random);
  tensors[1] = RandomTensor({2, 5, 7}, random);
  Attention widths(std::move(tensors), {});
  const auto refused = testing::RunWhole(widths.builder, widths.inputs);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("do not fit together"));
  auto masked = Triple({2, 4, 8}, 5, 8, random);
  masked.push_back(RandomTensor({4, 6}, random));
  Attention mask(std::move(masked), {});
  EXPECT_THAT(
      std::string(
          testing::RunWhole(mask.builder, mask.inputs).status().message()),
      HasSubstr("mask [4, 6] does not fit 4 queries and 5 keys"));
}

TEST(AttentionTest, LeavesDropoutToLibTorch) {
  std::mt19937 random(4);
  Attention dropout(Triple({2, 4, 8}, 5, 8, random), {Float("dropout_p", 0.5)});
  EXPECT_THAT(testing::KernelsOf(dropout.builder), ElementsAre("libtorch"));
}

}  // namespace
}  // namespace refract::runtime
