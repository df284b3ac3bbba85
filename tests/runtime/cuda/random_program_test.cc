// The cases of the check of a real device (device/device_check.cc), on the
// emulated device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "bench/cuda/dense_models.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/random_programs.h"
#include "tests/runtime/cuda/testing/reference.h"

namespace refract::runtime::cuda {
namespace {

using testing::CheckedDevice;
using ::testing::IsEmpty;

void Check(const bench::DenseModel& model, int64_t batch,
           const std::vector<std::vector<double>>& inputs, double tolerance,
           unsigned seed) {
  CheckedDevice device(seed);
  auto instance = Instance::Create(device, model.program, model.weight_data(),
                                   {.max_batch = 40, .workspace_bytes = 256});
  ASSERT_TRUE(instance.ok()) << instance.status().ToString();
  const Status loaded = (*instance)->Load();
  ASSERT_TRUE(loaded.ok()) << loaded.ToString();
  std::vector<std::vector<double>> got;
  const Status ran = testing::RunOnce(**instance, batch, inputs, got);
  ASSERT_TRUE(ran.ok()) << ran.ToString();
  EXPECT_LE(testing::LargestError(
                got, testing::RunReference(model.program, model.weights, inputs,
                                           batch)),
            tolerance);
  EXPECT_THAT(device.violations(), IsEmpty());
}

TEST(RandomProgramTest, EveryOperatorAgreesWithTheReference) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) {
    const testing::Case c = testing::RandomCase(random);
    SCOPED_TRACE(c.what);
    Check(c.model, c.batch, c.inputs, c.tolerance, seed);
    if (HasFailure()) return;
  }
}

TEST(RandomProgramTest, SeparateEpiloguesComputeTheSame) {
  bench::DlrmShape shape;
  shape.tables = 3;
  shape.dim = 8;
  shape.bottom = {12, 8};
  shape.top = {10, 1};
  std::mt19937 random(5);
  const bench::DenseModel fused =
      bench::MakeDlrm("m", shape, bench::Precision::kFloat32, 40, 5);
  const bench::DenseModel separate = bench::SeparateEpilogues(fused);
  // Two products with bias and ReLU, one with a bias.
  EXPECT_EQ(separate.program.ops.size(), fused.program.ops.size() + 3 * 2 + 1);
  const auto inputs = testing::RandomInputs(separate.program, 7, random);
  Check(separate, 7, inputs, 1e-5, 5);
}

TEST(RandomProgramTest, ErrorsAreSeen) {
  EXPECT_EQ(testing::LargestError({{1, 2}}, {{1, 2.5}}), 0.5);
  EXPECT_EQ(testing::LargestError({{NAN}}, {{NAN}}), 0);
  EXPECT_TRUE(std::isinf(testing::LargestError({{NAN}}, {{1}})));
  EXPECT_TRUE(std::isinf(testing::LargestError({{1}}, {{1, 2}})));
}

}  // namespace
}  // namespace refract::runtime::cuda
