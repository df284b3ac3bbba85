#include "gpu_node/model/answers_apart.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace refract::gpu_node {
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

}  // namespace
}  // namespace refract::gpu_node
