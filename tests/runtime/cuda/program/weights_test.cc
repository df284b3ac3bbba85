// Weights that several instances of a model share on one device.

#include "runtime/cuda/program/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/small_model.h"

namespace refract::runtime::cuda {
namespace {

using testing::CheckedDevice;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RandomRows;
using testing::SmallModel;

class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest() : device_(seed_), random_(seed_) {}
  void Make(int instances, bool keep_pinned) {
    auto weights =
        DeviceWeights::Create(device_, model_.program, model_.weight_data(),
                              {.keep_pinned = keep_pinned});
    ASSERT_TRUE(weights.ok()) << weights.status().ToString();
    weights_ = *std::move(weights);
    for (int i = 0; i < instances; ++i) {
      auto instance =
          Instance::Create(device_, model_.program, weights_,
                           {.max_batch = 4, .workspace_bytes = 256});
      ASSERT_TRUE(instance.ok()) << instance.status().ToString();
      instances_.push_back(*std::move(instance));
    }
  }
  void Serve(Instance& instance) {
    const std::vector<float> x = RandomRows(3, random_);
    Expect(instance, device_, model_, Submit(instance, device_, x), x);
  }
  int64_t Used() { return 2 * Half() - device_.Memory()->free_bytes; }
  int64_t Half() { return device_.Memory()->total_bytes / 2; }

  const unsigned seed_ = base::RandomSeed();
  SmallModel model_{nullptr, 4, seed_};
  CheckedDevice device_;
  std::mt19937 random_;
  std::shared_ptr<DeviceWeights> weights_;
  std::vector<std::unique_ptr<Instance>> instances_;
};

TEST_F(WeightsTest, AreOnTheDeviceOnceAndStayUntilTheLastInstanceGoes) {
  Make(3, false);
  ASSERT_TRUE(instances_[0]->Load().ok());
  const int64_t one = Used();
  const MemoryReport& memory = instances_[0]->memory();
  EXPECT_GT(memory.weight_bytes, 0);
  EXPECT_EQ(one, memory.device_bytes());
  ASSERT_TRUE(instances_[1]->Load().ok());
  ASSERT_TRUE(instances_[2]->Load().ok());
  EXPECT_EQ(Used(), 3 * one - 2 * memory.weight_bytes);
  for (const auto& instance : instances_) Serve(*instance);
  // The instance that loaded the weights may be destroyed first.
  instances_[0]->Unload();
  EXPECT_EQ(Used(), 2 * one - memory.weight_bytes);
  Serve(*instances_[1]);
  ASSERT_TRUE(instances_[0]->Load().ok());
  Serve(*instances_[0]);
  for (const auto& instance : instances_) instance->Unload();
  EXPECT_EQ(device_.live(), 0u);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(WeightsTest, APinnedCopyStaysUntilItIsDropped) {
  Make(1, true);
  Instance& instance = *instances_[0];
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(instance.Load().ok());
    Serve(instance);
    instance.Unload();
    EXPECT_EQ(device_.live(), 1u);  // the pinned copy
  }
  const int before = device_.allocations();
  ASSERT_TRUE(instance.Load().ok());
  const int again = device_.allocations() - before;
  instance.Unload();
  weights_->DropPinned();
  EXPECT_EQ(device_.live(), 0u);
  ASSERT_TRUE(instance.Load().ok());
  // The new pinned copy is one allocation more.
  EXPECT_EQ(device_.allocations() - before, 2 * again + 1);
  Serve(instance);
  instance.Unload();
  weights_->DropPinned();
  EXPECT_EQ(device_.live(), 0u);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(WeightsTest, ComeBackAfterALostDevice) {
  for (const bool pinned : {false, true}) {
    SCOPED_TRACE(pinned);
    instances_.clear();
    Make(2, pinned);
    for (const auto& instance : instances_) {
      ASSERT_TRUE(instance->Load().ok());
    }
    device_.FailCall(1, Code::kUnavailable);
    auto slot = instances_[0]->Acquire(2);
    ASSERT_TRUE(slot.ok());
    EXPECT_EQ(instances_[0]->Submit(*slot).code(), Code::kUnavailable);
    for (const auto& instance : instances_) instance->Unload();
    weights_->DropPinned();
    ASSERT_TRUE(device_.Reset().ok());
    // No earlier copy is left, so the weights must be uploaded again.
    for (const auto& instance : instances_) {
      ASSERT_TRUE(instance->Load().ok());
      Serve(*instance);
    }
    for (const auto& instance : instances_) instance->Unload();
    EXPECT_EQ(device_.live(), pinned ? 1u : 0u);
    weights_->DropPinned();
    EXPECT_EQ(device_.live(), 0u);
  }
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(WeightsTest, AFailedUploadLeavesNothingAndCanBeTriedAgain) {
  for (const Code code : {Code::kInternal, Code::kResourceExhausted}) {
    for (int n = 1; n < 12; ++n) {
      SCOPED_TRACE(n);
      instances_.clear();
      Make(2, false);
      device_.FailCall(n, code);
      if (instances_[0]->Load().ok()) instances_[0]->Unload();
      EXPECT_EQ(device_.live(), 0u);
      ASSERT_TRUE(instances_[1]->Load().ok());
      Serve(*instances_[1]);
      instances_[1]->Unload();
      EXPECT_EQ(device_.live(), 0u);
    }
  }
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(WeightsTest, AreCheckedByName) {
  EXPECT_THAT(
      DeviceWeights::Create(device_, model_.program, {}, {}).status().message(),
      HasSubstr("model small: needs 1 weights, got 0"));
  std::vector<WeightData> data = model_.weight_data();
  data[0].count -= 1;
  EXPECT_THAT(DeviceWeights::Create(device_, model_.program, data, {})
                  .status()
                  .message(),
              HasSubstr("weight w has 29 elements, not 30 of float32"));
}

TEST_F(WeightsTest, IntegersAndTruthValuesArriveAsTheyAre) {
  DeviceProgramBuilder builder("ids");
  const Rows rows{1, 0};
  const ValueId x = builder.Input("x", DType::kFloat32, rows, 2);
  const ValueId ids = builder.Weight("ids", DType::kInt64, 1, 2);
  const ValueId mask = builder.Weight("mask", DType::kBool, 1, 2);
  const ValueId out = builder.Output("out", DType::kFloat32, rows, 2);
  const auto row = [](ValueId id) {
    return TensorRef{id, {0, 0}, {{0, 0}, {0, 1}}};
  };
  const auto matrix = [&](ValueId id) {
    return TensorRef{id, {0, 0}, {{0, builder.value(id).ld}, {0, 1}}};
  };
  builder.Map(
      {.dims = {rows, {0, 2}},
       .inputs = {{matrix(x)}, {row(ids)}, {row(mask)}},
       .code = {{ElementCode::kAdd, 0, 1}, {ElementCode::kSelect, 2, 3, 0}},
       .out = matrix(out)});
  auto program = std::move(builder).Build(4);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  const int64_t numbers[] = {100, 200};
  const uint8_t truths[] = {1, 0};
  auto instance = Instance::Create(
      device_, *program,
      {{.count = 2, .bytes = numbers}, {.count = 2, .bytes = truths}},
      {.max_batch = 4, .workspace_bytes = 256});
  ASSERT_TRUE(instance.ok()) << instance.status().ToString();
  ASSERT_TRUE((*instance)->Load().ok());
  auto slot = (*instance)->Acquire(2);
  ASSERT_TRUE(slot.ok());
  const float in[] = {1, 2, 3, 4};
  std::memcpy((*instance)->input(*slot, 0), in, sizeof(in));
  ASSERT_TRUE((*instance)->Submit(*slot).ok());
  ASSERT_TRUE((*instance)->Wait(*slot).ok());
  float got[4];
  std::memcpy(got, (*instance)->output(*slot, 0), sizeof(got));
  EXPECT_THAT(got, ::testing::ElementsAre(101, 2, 103, 4));
  EXPECT_THAT(device_.violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::runtime::cuda
