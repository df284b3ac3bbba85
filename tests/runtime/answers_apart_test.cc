#include "runtime/answers_apart.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "models/repository/wire_form.h"

namespace refract::runtime {
namespace {

template <typename T>
base::TensorView ViewOf(base::DType dtype, std::vector<T>& values) {
  return {.dtype = dtype,
          .dims = {static_cast<int64_t>(values.size())},
          .data = reinterpret_cast<std::byte*>(values.data()),
          .bytes = values.size() * sizeof(T)};
}

template <typename T>
Apart Compared(base::DType dtype, std::vector<T> a, std::vector<T> b) {
  return Compare(ViewOf(dtype, a), ViewOf(dtype, b));
}

TEST(AnswersApartTest, RoundingIsAllowedAndMixedRowsAreNotInEveryType) {
  // 1, 2 and what is beside 1: bits by hand.
  const Apart f32 =
      Compared<float>(base::DType::kFloat32, {1, 2}, {1.0001f, 2});
  EXPECT_TRUE(f32.ok());
  EXPECT_NEAR(f32.largest, 1e-4, 1e-6);
  EXPECT_DOUBLE_EQ(f32.allowed, 2e-3);
  EXPECT_FALSE(Compared<float>(base::DType::kFloat32, {1, 2}, {1.01f, 2}).ok());
  EXPECT_FALSE(Compared<double>(base::DType::kFloat64, {1, 2}, {1, 2.01}).ok());
  // float16: 1 = 0x3C00, its neighbour 1 + 2^−10, 1.25 = 0x3D00.
  const Apart f16 = Compared<uint16_t>(base::DType::kFloat16, {0x3C00, 0x3C00},
                                       {0x3C01, 0x3C00});
  EXPECT_TRUE(f16.ok());
  EXPECT_DOUBLE_EQ(f16.largest, 0x1p-10);
  EXPECT_FALSE(
      Compared<uint16_t>(base::DType::kFloat16, {0x3C00}, {0x3D00}).ok());
  // bfloat16: 1 = 0x3F80, its neighbour 1 + 2^−7, 1.25 = 0x3FA0.
  const Apart bf16 =
      Compared<uint16_t>(base::DType::kBFloat16, {0x3F80}, {0x3F81});
  EXPECT_TRUE(bf16.ok());
  EXPECT_DOUBLE_EQ(bf16.largest, 0x1p-7);
  EXPECT_FALSE(
      Compared<uint16_t>(base::DType::kBFloat16, {0x3F80}, {0x3FA0}).ok());
}

TEST(AnswersApartTest, IntegersNansAndInfinitiesAreTheSameOrNot) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto same = [](float a, float b) {
    return Compared<float>(base::DType::kFloat32, {a, 1}, {b, 1}).ok();
  };
  EXPECT_TRUE(same(kNan, -kNan));
  EXPECT_TRUE(same(kInfinity, kInfinity));
  EXPECT_FALSE(same(kNan, 1));
  EXPECT_FALSE(same(1, kNan));
  EXPECT_FALSE(same(kInfinity, 1e30f));
  EXPECT_FALSE(same(kInfinity, -kInfinity));
  EXPECT_TRUE(Compared<int64_t>(base::DType::kInt64, {7}, {7}).ok());
  EXPECT_FALSE(Compared<int64_t>(base::DType::kInt64, {7}, {8}).ok());
  EXPECT_FALSE(Compared<float>(base::DType::kFloat32, {1, 2}, {1}).ok());
  EXPECT_TRUE(Compared<float>(base::DType::kFloat32, {}, {}).ok());
}

// Outputs "score" and "best".
models::Graph TwoOutputs() {
  models::Graph graph;
  graph.output_names = {"score", "best"};
  return graph;
}

absl::Status Recorded(std::vector<float> score, std::vector<float> wanted,
                      std::vector<int64_t> best, std::vector<int64_t> expected,
                      const Tolerance& tolerance = {}) {
  base::TensorView a = ViewOf(base::DType::kFloat32, score);
  base::TensorView b = ViewOf(base::DType::kFloat32, wanted);
  a.dims = b.dims = {static_cast<int64_t>(score.size()) / 2, 2};
  return CompareWithRecorded(
      TwoOutputs(), {a, ViewOf(base::DType::kInt64, best)},
      {b, ViewOf(base::DType::kInt64, expected)}, tolerance);
}

TEST(CompareWithRecordedTest, NamesOutputPositionAndValuesOfTheWorst) {
  EXPECT_TRUE(Recorded({1, 2, 3, 4}, {1, 2, 3, 4.0003f}, {7}, {7}).ok());
  const absl::Status far = Recorded({1, 2, 3.5f, 9}, {1, 2, 3, 4}, {7}, {7});
  EXPECT_EQ(far.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(far.message(),
            "output 'score': at [1, 1] is 9, the recorded answer is 4 "
            "(0.00041 apart is allowed)");
  EXPECT_EQ(Recorded({1, 2}, {1, 2}, {7, 8}, {7, 9}).message(),
            "output 'best': at [1] is 8, the recorded answer is 9");
  // 0.01 of a score of 0.02 is not rounding.
  EXPECT_FALSE(Recorded({0.0202f, 0}, {0.02f, 0}, {7}, {7}).ok());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(Recorded({kNan, 2}, {kNan, 2}, {7}, {7}).ok());
  EXPECT_FALSE(Recorded({kNan, 2}, {1, 2}, {7}, {7}).ok());
}

TEST(CompareWithRecordedTest, ShapesAgreeAndWhatWasNotRecordedIsLeftOut) {
  std::vector<float> values = {1, 2};
  std::vector<float> other = {1, 2, 3};
  const base::TensorView two = ViewOf(base::DType::kFloat32, values);
  const base::TensorView three = ViewOf(base::DType::kFloat32, other);
  EXPECT_EQ(
      CompareWithRecorded(TwoOutputs(), {two, two}, {three, two}, {}).message(),
      "output 'score': is float32[2], the recorded answer is float32[3]");
  EXPECT_TRUE(
      CompareWithRecorded(TwoOutputs(), {two, three}, {two, {}}, {}).ok());
}

TEST(CompareWithRecordedTest, FewerBitsAllowMore) {
  models::ModelConfig config;
  EXPECT_EQ(ToleranceOf(config, nullptr, std::nullopt).share, 1e-4);
  EXPECT_TRUE(ToleranceOf(config, nullptr, std::nullopt).exact_integers);
  models::SplitPlan plan;
  plan.up_forms = {{.type = models::WireType::kInt32}};
  EXPECT_EQ(ToleranceOf(config, &plan, std::nullopt).share, 1e-4);
  plan.up_forms = {{.type = models::WireType::kInt8}};
  EXPECT_EQ(ToleranceOf(config, &plan, std::nullopt).share, 0.05);
  EXPECT_TRUE(Recorded({1, 0.96f}, {1, 1}, {7}, {8},
                       ToleranceOf(config, &plan, std::nullopt))
                  .ok());
  config.dense_weights = models::DenseWeights::kInt8;
  EXPECT_EQ(ToleranceOf(config, nullptr, std::nullopt).share, 0.05);
  EXPECT_EQ(ToleranceOf(config, nullptr, 0.2).share, 0.2);
}

}  // namespace
}  // namespace refract::runtime
