// Requests with NaNs and infinities, on every way that they can take: they are
// computed with like any numbers, change no other row, and are counted.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using models::WireForm;
using models::WireType;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr int64_t kBatch = 7;
constexpr int64_t kNanRow = 2;
constexpr int64_t kPlusRow = 3;
constexpr int64_t kMinusRow = 5;

InferRequest Spoiled() {
  InferRequest request = MakeRequest("small", kBatch);
  for (auto& input : request.inputs) {
    if (input.name != "dense") continue;
    const absl::Span<float> values = input.tensor.as<float>();
    values[kNanRow * testing_models::kDense] = kNan;
    values[kPlusRow * testing_models::kDense + 1] = kInfinity;
    values[kMinusRow * testing_models::kDense + 1] = -kInfinity;
  }
  return request;
}

// The score after an infinity of either sign was multiplied by the weight that
// it meets.
float ScoreOf(float infinity) {
  const float weight =
      testing_models::WeightValue(testing_models::kFcBegin + 1, 0);
  return infinity * weight > 0 ? 1.0f : 0.0f;
}

// `good`: the same way without them.
void ExpectPassedThrough(const Answer& seen, const Answer& good) {
  ASSERT_TRUE(seen.status.ok()) << seen.status;
  ASSERT_TRUE(good.status.ok()) << good.status;
  const float* const scores = seen.outputs[0].view().as<float>().data();
  const float* const echo = seen.outputs[1].view().as<float>().data();
  for (int64_t row = 0; row < kBatch; ++row) {
    if (row == kNanRow) {
      EXPECT_TRUE(std::isnan(scores[row]));
      EXPECT_TRUE(std::isnan(echo[row * testing_models::kDense]));
    } else if (row == kPlusRow || row == kMinusRow) {
      const float infinity = row == kPlusRow ? kInfinity : -kInfinity;
      EXPECT_EQ(scores[row], ScoreOf(infinity)) << row;
      EXPECT_EQ(echo[row * testing_models::kDense + 1], infinity) << row;
    } else {
      EXPECT_EQ(
          std::memcmp(&scores[row], &good.outputs[0].view().as<float>()[row],
                      sizeof(float)),
          0)
          << row << ": " << scores[row];
    }
  }
}

// Statistics are counted before an answer is given.
uint64_t NonFinite(const Engine& engine) {
  return (*engine.catalog()->Find("small", ""))
      ->statistics()
      .snapshot()
      .non_finite;
}

TEST(NonFiniteTest, WholeModelsOnTheCpuNode) {
  const auto model = testing_models::MakeSmallModel({.split = false});
  EngineOptions options;
  const auto engine = *Engine::Create(MakeCatalog({model}), options);
  const Answer good = Infer(*engine, MakeRequest("small", kBatch));
  EXPECT_EQ(NonFinite(*engine), 0u);
  ExpectPassedThrough(Infer(*engine, Spoiled()), good);
  EXPECT_EQ(NonFinite(*engine), 1u);
}

TEST(NonFiniteTest, SplitModelsWhateverTheFormOnTheWire) {
  const std::vector<WireForm> forms = {{WireType::kAsIs, false},
                                       {WireType::kFloat16, false},
                                       {WireType::kBFloat16, false},
                                       {WireType::kInt8, false}};
  for (const WireForm& up : forms) {
    for (const WireForm& down : forms) {
      SCOPED_TRACE(absl::StrCat("up ", static_cast<int>(up.type), ", down ",
                                static_cast<int>(down.type)));
      const auto model = std::make_shared<models::LoadedModel>(
          *testing_models::MakeSmallModel({}));
      model->plan->up_forms = {up, up};
      model->plan->down_forms = {down};
      ASSERT_TRUE(
          models::ValidatePlan(model->graph, model->digest, *model->plan).ok());
      TestGpuNode node({model});
      EngineOptions options;
      options.nodes.addresses = {node.address()};
      const auto engine = *Engine::Create(MakeCatalog({model}), options);
      ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
      const Answer good = Infer(*engine, MakeRequest("small", kBatch));
      EXPECT_EQ(node.node().stats(0).non_finite, 0u);
      ExpectPassedThrough(Infer(*engine, Spoiled()), good);
      // The scheduler counts after it has answered.
      EXPECT_TRUE(node.node().Drain(kPatience));
      EXPECT_EQ(node.node().stats(0).non_finite, 1u);
      EXPECT_EQ(NonFinite(*engine), 1u);
    }
  }
}

}  // namespace
}  // namespace refract::cpu_node
