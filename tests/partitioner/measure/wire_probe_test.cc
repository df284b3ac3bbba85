#include "partitioner/measure/wire_probe.h"

#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

// Every look at it is a microsecond later.
int64_t Ticks() {
  static int64_t now = 0;
  return now += 1000;
}

TEST(WireProbeTest, EveryFormIsMeasuredBothWays) {
  const auto rates = MeasureWireRates(3, Ticks);
  ASSERT_TRUE(rates.ok()) << rates.status();
  ASSERT_EQ(rates->size(), 5u);
  for (const char* form : {"fp16", "bf16", "int8", "int32", "unique"}) {
    ASSERT_EQ(rates->count(form), 1u) << form;
    // 1 MiB per microsecond.
    EXPECT_NEAR(rates->at(form).encode_bytes_per_s, 0x1p20 / 1e-6, 1e3);
    EXPECT_NEAR(rates->at(form).decode_bytes_per_s, 0x1p20 / 1e-6, 1e3);
  }
}

TEST(WireProbeTest, RealRatesAreFinite) {
  const auto rates = MeasureWireRates(1);
  ASSERT_TRUE(rates.ok()) << rates.status();
  for (const auto& [form, rate] : *rates) {
    EXPECT_GT(rate.encode_bytes_per_s, 0) << form;
    EXPECT_GT(rate.decode_bytes_per_s, 0) << form;
  }
}

}  // namespace
}  // namespace refract::partitioner
