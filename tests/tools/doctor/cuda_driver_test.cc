#include "tools/doctor/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refract::tools {
namespace {

using ::testing::HasSubstr;

Machine WithGpu() {
  Machine machine;
  machine.gpus = {"NVIDIA H200"};
  return machine;
}

TEST(JudgeCudaTest, SaysNothingWithoutGpuAndDriver) {
  EXPECT_EQ(JudgeCuda(Machine{}, {}, 13000), std::nullopt);
}

TEST(JudgeCudaTest, AMissingDriverIsNamed) {
  const Finding finding = *JudgeCuda(WithGpu(), {}, 13000);
  EXPECT_FALSE(finding.ok);
  EXPECT_THAT(finding.fact, HasSubstr("no driver library (libcuda.so.1)"));
  EXPECT_THAT(finding.fact, HasSubstr("needs 13.0"));
  EXPECT_THAT(finding.cost, HasSubstr("install NVIDIA's driver"));
}

TEST(JudgeCudaTest, VersionsAreComparedByTheirMajorNumber) {
  struct {
    int driver, toolkit;
    bool ok;
  } const cases[] = {
      {13000, 13000, true},  {13020, 13000, true},  {13000, 13020, true},
      {14000, 13000, true},  {12040, 13000, false}, {12090, 12040, true},
      {11080, 12000, false},
  };
  for (const auto& c : cases) {
    const Finding finding = *JudgeCuda(
        WithGpu(), {.has_library = true, .version = c.driver}, c.toolkit);
    EXPECT_EQ(finding.ok, c.ok) << c.driver << " for " << c.toolkit;
    EXPECT_EQ(finding.cost.empty(), c.ok);
  }
  const Finding old =
      *JudgeCuda(WithGpu(), {.has_library = true, .version = 12040}, 13000);
  EXPECT_THAT(old.fact, HasSubstr("supports 12.4, this build needs 13.0"));
  EXPECT_THAT(old.cost, HasSubstr("too old"));
}

TEST(JudgeCudaTest, WhatCuInitAnswersIsExplained) {
  auto cost = [](int result) {
    return JudgeCuda(
               WithGpu(),
               {.has_library = true, .version = 13000, .init_result = result},
               13000)
        ->cost;
  };
  EXPECT_THAT(cost(100), HasSubstr("shows no GPU"));
  EXPECT_THAT(cost(803), HasSubstr("different driver versions"));
  EXPECT_THAT(cost(804), HasSubstr("compatibility library"));
  EXPECT_THAT(cost(999), HasSubstr("cuInit() gives 999"));
}

TEST(JudgeCudaTest, ABuildWithoutCudaSaysSo) {
  const Finding finding =
      *JudgeCuda(WithGpu(), {.has_library = true, .version = 13000}, 0);
  EXPECT_FALSE(finding.ok);
  EXPECT_THAT(finding.fact, HasSubstr("no CUDA code"));
}

TEST(AskCudaDriverTest, AnswersWithOrWithoutADriver) {
  const CudaDriver driver = AskCudaDriver();
  if (!driver.has_library) {
    EXPECT_EQ(driver.version, 0);
    EXPECT_EQ(driver.init_result, 0);
  }
}

}  // namespace
}  // namespace refract::tools
