// Programs with a foreign operator between captured pieces.

#include "runtime/cuda/calls/foreign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/small_model.h"

namespace refract::runtime::cuda {
namespace {

using testing::CheckedDevice;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RandomRows;
using testing::RunningSums;
using testing::SmallModel;

constexpr int64_t kMaxBatch = 8;  // buckets 1, 2, 4, 8

class ForeignTest : public ::testing::Test {
 protected:
  ForeignTest() : device_(seed_), random_(seed_) {
    auto created = Instance::Create(
        device_, model_.program, model_.weight_data(),
        {.max_batch = kMaxBatch, .num_slots = 2, .workspace_bytes = 256});
    EXPECT_TRUE(created.ok()) << created.status().ToString();
    instance_ = *std::move(created);
  }
  void Serve(int64_t batch) {
    const std::vector<float> x = RandomRows(batch, random_);
    Expect(*instance_, device_, model_, Submit(*instance_, device_, x), x);
  }

  const unsigned seed_ = base::RandomSeed();
  std::shared_ptr<RunningSums> sums_ = std::make_shared<RunningSums>();
  SmallModel model_{sums_, kMaxBatch, seed_};
  CheckedDevice device_;
  std::mt19937 random_;
  std::unique_ptr<Instance> instance_;
};

TEST_F(ForeignTest, IsCalledBetweenTwoGraphsForTheRequestsOwnRows) {
  ASSERT_TRUE(instance_->Load().ok());
  EXPECT_EQ(device_.captures(), 2 * 4 * 2) << "slots × buckets × pieces";
  EXPECT_THAT(sums_->rows, ::testing::SizeIs(2 * 4)) << "tried at load";
  sums_->rows.clear();
  int graphs = device_.graph_launches();
  for (const int64_t batch : {3, 8, 1, 5}) {
    SCOPED_TRACE(batch);
    Serve(batch);
    EXPECT_EQ(device_.graph_launches() - graphs, 2);
    graphs = device_.graph_launches();
    // Only the request's rows, not the unused rows of the bucket.
    EXPECT_THAT(sums_->rows, Each(batch));
    EXPECT_THAT(sums_->rows, ::testing::SizeIs(1));
    sums_->rows.clear();
  }
  instance_->Unload();
  EXPECT_EQ(device_.live(), 0u);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(ForeignTest, RequestsInFlightNeverTouchEachOther) {
  ASSERT_TRUE(instance_->Load().ok());
  std::deque<std::pair<SlotId, std::vector<float>>> pending;
  for (int i = 0; i < 40; ++i) {
    if (pending.size() == 2) {
      auto [slot, x] = std::move(pending.front());
      pending.pop_front();
      Expect(*instance_, device_, model_, slot, x);
      if (HasFatalFailure()) return;
    }
    std::vector<float> x =
        RandomRows(static_cast<int64_t>(1 + random_() % kMaxBatch), random_);
    const SlotId slot = Submit(*instance_, device_, x);
    pending.emplace_back(slot, std::move(x));
    device_.RunSome();
  }
  for (auto& [slot, x] : pending) Expect(*instance_, device_, model_, slot, x);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(ForeignTest, WhatItRefusesFailsTheRequestAlone) {
  ASSERT_TRUE(instance_->Load().ok());
  sums_->most = -1;
  const SlotId slot = Submit(*instance_, device_, RandomRows(2, random_));
  const Status status = instance_->Wait(slot);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("model small, operator s, batch 2: a row begins"));
  instance_->Release(slot);
  sums_->most = 1e9f;
  EXPECT_EQ(instance_->state(), Instance::State::kReady);
  Serve(2);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(ForeignTest, OtherErrorsEndTheInstanceByName) {
  sums_->fails = true;
  const Status load = instance_->Load();
  EXPECT_EQ(load.code(), Code::kInternal);
  EXPECT_THAT(load.message(), HasSubstr("operator s, batch 1: running sums"));
  EXPECT_EQ(device_.live(), 0u);
  sums_->fails = false;
  ASSERT_TRUE(instance_->Load().ok());
  sums_->fails = true;
  auto slot = instance_->Acquire(3);
  ASSERT_TRUE(slot.ok());
  EXPECT_EQ(instance_->Submit(*slot).code(), Code::kInternal);
  EXPECT_EQ(instance_->state(), Instance::State::kFailed);
  instance_->Unload();
  EXPECT_EQ(device_.live(), 0u);
  sums_->fails = false;
  ASSERT_TRUE(instance_->Load().ok());
  Serve(3);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(ForeignTest, EveryCallThatFailsLeavesNothingBehind) {
  for (int n = 1;; ++n) {
    SCOPED_TRACE(n);
    const int calls = device_.calls();
    device_.FailCall(n, Code::kInternal);
    bool failed = !instance_->Load().ok();
    if (!failed) {
      auto slot = instance_->Acquire(3);
      ASSERT_TRUE(slot.ok());
      failed = !instance_->Submit(*slot).ok() || !instance_->Wait(*slot).ok();
    }
    if (!failed && device_.calls() - calls < n) break;
    instance_->Unload();
    EXPECT_EQ(device_.live(), 0u);
    ASSERT_LT(n, 2000) << "never ends";
  }
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(ForeignTest, IsValidated) {
  DeviceProgram program = model_.program;
  for (Op& op : program.ops) {
    if (auto* foreign = std::get_if<ForeignOp>(&op.kind)) {
      foreign->kernel = nullptr;
    }
  }
  EXPECT_THAT(Validate(program, kMaxBatch).message(),
              HasSubstr("operator s: has no kernel"));
  program = model_.program;
  for (Op& op : program.ops) {
    if (auto* foreign = std::get_if<ForeignOp>(&op.kind)) {
      foreign->arguments[0].dims[1] = {0, 9};
    }
  }
  EXPECT_THAT(Validate(program, kMaxBatch).message(),
              HasSubstr("reaches outside h"));
  program = model_.program;
  for (Op& op : program.ops) {
    if (auto* foreign = std::get_if<ForeignOp>(&op.kind)) {
      foreign->results.clear();
    }
  }
  EXPECT_THAT(Validate(program, kMaxBatch).message(),
              HasSubstr("has no output"));
}

}  // namespace
}  // namespace refract::runtime::cuda
