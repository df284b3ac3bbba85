#include "partitioner/wire/meter.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cpu_node/small_model.h"

namespace refract::partitioner {
namespace {

using models::WireType;

base::Tensor Floats(const std::vector<float>& values) {
  base::Tensor tensor = *base::Tensor::Allocate(
      base::DType::kFloat32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

double MaxAbs(const std::vector<float>& a, const std::vector<float>& b) {
  return ErrorBetween(Floats(a).view(), Floats(b).view()).max_abs;
}

TEST(ErrorBetweenTest, IsTheLargestDifference) {
  EXPECT_EQ(MaxAbs({1, 2, -3}, {1, 2.5, -3.25}), 0.5);
  EXPECT_EQ(MaxAbs({}, {}), 0);
  EXPECT_EQ(ErrorBetween(Floats({1, -9}).view(), Floats({2, -8}).view())
                .largest_value,
            8);
}

TEST(ErrorBetweenTest, WhatIsNotFiniteMustBeTheSame) {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(MaxAbs({nan, inf, -inf}, {nan, inf, -inf}), 0);
  for (const auto& [a, b] : std::vector<std::pair<float, float>>{
           {nan, 1}, {1, nan}, {inf, 1}, {1, inf}, {inf, -inf}, {nan, inf}}) {
    EXPECT_EQ(MaxAbs({a}, {b}), HUGE_VAL) << a << " " << b;
  }
}

TEST(ErrorBetweenTest, OtherShapesAreInfinitelyFarOff) {
  EXPECT_EQ(MaxAbs({1}, {1, 1}), HUGE_VAL);
}

class WireMeterTest : public testing::Test {
 protected:
  WireMeterTest() : model_(testing_models::MakeSmallModel({})) {
    SampleRequest& request = requests_.requests.emplace_back();
    request.inputs.push_back(testing_models::MakeDense(100));
    request.inputs.push_back(testing_models::MakeIds(100));
    samples_ = *AnswerSamples(*model_, requests_);
    meter_ = *WireMeter::Create(*model_, *model_->plan, samples_);
  }
  std::shared_ptr<const models::LoadedModel> model_;
  SampleRequests requests_;
  WireSamples samples_;
  std::unique_ptr<WireMeter> meter_;
};

TEST_F(WireMeterTest, ThePlainSplitIsExactAndItsBytesAreTheMessages) {
  const auto reading = meter_->Measure({{{}, {}}, {{}}});
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->worst(), 0);
  // dense [100, 3] and rows [100, 4]: header 64, two entries of 24 + 16, then
  // 1200 padded to 1216 and 1600.
  EXPECT_EQ(reading->message_bytes_up, 192 + 1216 + 1600);
  EXPECT_EQ(reading->up_bytes[0], 40 + 1216);
  EXPECT_EQ(reading->up_bytes[1], 40 + 1600);
  EXPECT_EQ(reading->message_bytes_down, 128 + 400);
}

TEST_F(WireMeterTest, LossyFormsHaveErrorsAndFewerBytes) {
  const auto half = meter_->Measure(
      {{{WireType::kFloat16, false}, {WireType::kFloat16, false}}, {{}}});
  ASSERT_TRUE(half.ok());
  EXPECT_GT(half->worst(), 0);
  EXPECT_LT(half->worst(), 1e-3);
  EXPECT_EQ(half->message_bytes_up, 192 + 640 + 800);
  // Outputs that do not depend on what crosses are exact.
  ASSERT_EQ(half->errors.size(), 3);
  EXPECT_EQ(half->errors[0].output, "score");
  EXPECT_GT(half->errors[0].max_abs, 0);
  EXPECT_EQ(half->errors[1].max_abs, 0);
  EXPECT_EQ(half->errors[2].max_abs, 0);
}

TEST_F(WireMeterTest, UniqueRowsAreExactAndCounted) {
  const auto once = meter_->Measure({{{}, {WireType::kAsIs, true}}, {{}}});
  ASSERT_TRUE(once.ok());
  EXPECT_EQ(once->worst(), 0);
  // 10 rows of 16 bytes, padded, and 100 bytes of index; a third entry.
  EXPECT_EQ(once->up_bytes[1], 40 + 192 + 32 + 128);
  EXPECT_EQ(once->message_bytes_up, 192 + 1216 + 192 + 100);
}

TEST(AnswerSamplesTest, NamesTheSampleThatDoesNotFit) {
  const auto model = testing_models::MakeSmallModel({});
  SampleRequests samples;
  SampleRequest& request = samples.requests.emplace_back();
  request.name = "bad.safetensors";
  request.inputs.push_back(testing_models::MakeDense(3));
  request.inputs.push_back(testing_models::MakeIds(4));
  const auto answered = AnswerSamples(*model, samples);
  ASSERT_FALSE(answered.ok());
  EXPECT_EQ(answered.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(answered.status().message().find("bad.safetensors"),
            absl::string_view::npos);
}

}  // namespace
}  // namespace refract::partitioner
