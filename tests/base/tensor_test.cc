#include "base/tensor.h"

#include <cstdint>
#include <limits>

#include "base/dtype.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(ByteSizeTest, MultipliesAndRefusesNonsense) {
  EXPECT_EQ(*ByteSize(DType::kFloat32, {2, 3}), 24u);
  EXPECT_EQ(*ByteSize(DType::kInt64, {}), 8u);
  EXPECT_EQ(*ByteSize(DType::kFloat32, {0, 7}), 0u);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(ByteSize(DType::kBool, {kHuge, 2}).ok());
  EXPECT_FALSE(ByteSize(DType::kFloat64, {int64_t{1} << 61}).ok());
  EXPECT_FALSE(ByteSize(DType::kBool, {0, kHuge, 2}).ok())
      << "a zero must not hide an overflow";
  EXPECT_FALSE(ByteSize(DType::kBool, {-1}).ok());
  EXPECT_FALSE(ByteSize(DType::kUnknown, {1}).ok());
}

TEST(TensorTest, IsAlignedAndHasAnAddressEvenWhenEmpty) {
  for (int64_t n : {0, 1, 3, 1000}) {
    auto tensor = Tensor::Allocate(DType::kInt16, {n});
    ASSERT_TRUE(tensor.ok());
    ASSERT_NE(tensor->data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->data()) % kTensorAlignBytes,
              0u);
    EXPECT_EQ(tensor->bytes(), static_cast<size_t>(2 * n));
  }
}

TEST(TensorTest, CopyOfChecksTheLength) {
  const float values[3] = {1, 2, 3};
  TensorView view{DType::kFloat32, {3},
                  reinterpret_cast<const std::byte*>(values), sizeof(values)};
  auto copy = Tensor::CopyOf(view);
  ASSERT_TRUE(copy.ok());
  EXPECT_EQ(copy->as<float>()[2], 3);
  view.dims = {4};
  EXPECT_EQ(Tensor::CopyOf(view).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(DTypeTest, NamesRoundTripInEverySpelling) {
  for (int code = 1; code < kNumDTypes; ++code) {
    const auto dtype = static_cast<DType>(code);
    EXPECT_EQ(DTypeFromName(Name(dtype)), dtype);
    EXPECT_EQ(DTypeFromKServeName(KServeName(dtype)), dtype);
    EXPECT_EQ(DTypeFromSafetensorsName(SafetensorsName(dtype)), dtype);
    EXPECT_GT(SizeOf(dtype), 0u);
  }
  EXPECT_EQ(DTypeFromKServeName("BYTES"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
}

}  // namespace
}  // namespace refract::base
