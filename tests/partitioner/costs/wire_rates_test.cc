#include "partitioner/costs/wire_rates.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

using models::WireType;
using testing::HasSubstr;

TEST(WireRatesTest, FormsThatAreNoneTwiceOrWithoutARateAreRefusedByName) {
  WireRates rates;
  ASSERT_TRUE(AddWireRate("fp16", {1e9, 2e9}, rates).ok());
  ASSERT_TRUE(AddWireRate(kUniqueRows, {1e9, 2e9}, rates).ok());
  for (const auto& [form, rate] :
       {std::pair<std::string, WireRate>{"fp8", {1, 1}},
        {"fp32", {1, 1}},
        {"fp16", {1, 1}},
        {"int8", {0, 1}},
        {"int8", {1, -1}},
        {"int8", {1, std::nan("")}},
        {"int8", {HUGE_VAL, 1}}}) {
    const absl::Status status = AddWireRate(form, rate, rates);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << form;
    EXPECT_THAT(std::string(status.message()), HasSubstr(form));
  }
  EXPECT_EQ(rates.size(), 2u);
}

TEST(WireRatesTest, SecondsAreBytesOverRates) {
  const WireRates rates = {{"fp16", {1e9, 2e9}}, {kUniqueRows, {4e9, 8e9}}};
  const auto plain = SecondsToCross(rates, 1e9, {}, 1e6, 1);
  EXPECT_EQ(plain.encode_s, 0);
  EXPECT_EQ(plain.decode_s, 0);
  EXPECT_FALSE(plain.assumed);
  const auto half =
      SecondsToCross(rates, 1e9, {WireType::kFloat16, false}, 1e6, 1);
  EXPECT_DOUBLE_EQ(half.encode_s, 1e-3);
  EXPECT_DOUBLE_EQ(half.decode_s, 0.5e-3);
  // All rows are compared, a tenth of them encoded.
  const auto once =
      SecondsToCross(rates, 1e9, {WireType::kFloat16, true}, 1e6, 0.1);
  EXPECT_DOUBLE_EQ(once.encode_s, 0.25e-3 + 0.1e-3);
  EXPECT_DOUBLE_EQ(once.decode_s, 0.125e-3 + 0.05e-3);
  EXPECT_FALSE(once.assumed);
  // Read and written at 1 GB/s.
  const auto assumed =
      SecondsToCross(rates, 1e9, {WireType::kInt8, false}, 1e6, 1);
  EXPECT_DOUBLE_EQ(assumed.encode_s, 2e-3);
  EXPECT_TRUE(assumed.assumed);
}

}  // namespace
}  // namespace refract::partitioner
