#include "base/finite.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(FiniteTest, FindsNansAndInfinitiesOfEveryType) {
  const auto view = [](DType dtype, const auto& values) {
    return TensorView{dtype,
                      {static_cast<int64_t>(std::size(values))},
                      reinterpret_cast<const std::byte*>(values),
                      sizeof(values)};
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float odd : {kInf, -kInf, std::nanf(""), -std::nanf("1")}) {
    float floats[37] = {};
    EXPECT_FALSE(HasNonFinite(view(DType::kFloat32, floats)));
    floats[36] = odd;
    EXPECT_TRUE(HasNonFinite(view(DType::kFloat32, floats)));
    EXPECT_EQ(HasNaN(view(DType::kFloat32, floats)), std::isnan(odd));
    double doubles[3] = {1, odd, 2};
    EXPECT_TRUE(HasNonFinite(view(DType::kFloat64, doubles)));
    EXPECT_EQ(HasNaN(view(DType::kFloat64, doubles)), std::isnan(odd));
  }
  const float large[] = {std::numeric_limits<float>::max(),
                         -std::numeric_limits<float>::max(),
                         std::numeric_limits<float>::denorm_min()};
  EXPECT_FALSE(HasNonFinite(view(DType::kFloat32, large)));
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const uint16_t half[] = {static_cast<uint16_t>(bits)};
    EXPECT_EQ(HasNonFinite(view(DType::kFloat16, half)),
              ((bits >> 10) & 31) == 31);
    EXPECT_EQ(HasNonFinite(view(DType::kBFloat16, half)),
              ((bits >> 7) & 255) == 255);
    EXPECT_EQ(HasNaN(view(DType::kFloat16, half)), (bits & 0x7fff) > 0x7c00);
    EXPECT_EQ(HasNaN(view(DType::kBFloat16, half)), (bits & 0x7fff) > 0x7f80);
  }
  const int64_t ints[] = {-1, std::numeric_limits<int64_t>::max()};
  EXPECT_FALSE(HasNonFinite(view(DType::kInt64, ints)));
}

}  // namespace
}  // namespace refract::base
