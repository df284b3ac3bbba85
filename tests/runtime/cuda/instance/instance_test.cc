// Whole programs on a device that checks every access (checked_device.h).

#include "runtime/cuda/instance/instance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "tests/runtime/cuda/testing/instance_fixture.h"

namespace refract::runtime::cuda {
namespace {

using bench::DenseModel;
using bench::DlrmShape;
using bench::Precision;
using testing::CheckedDevice;
using testing::Fixture;
using ::testing::HasSubstr;
using testing::Inputs;
using testing::InstanceTest;
using ::testing::IsEmpty;
using testing::LookUpModel;

DlrmShape SmallDlrm(int64_t cross_layers) {
  DlrmShape shape;
  shape.num_dense = 13;
  shape.tables = 5;
  shape.dim = 16;
  shape.bottom = {24, 16};
  shape.top = {24, 9, 1};  // 9: rows that a product leaves unpadded
  shape.cross_layers = cross_layers;
  shape.cross_rank = 12;
  return shape;
}

double Tolerance(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return 1e-5;
    case Precision::kTf32:
    case Precision::kFloat16:
      return 1e-2;
    case Precision::kBFloat16:
      return 6e-2;
  }
  return 0;
}

TEST_F(InstanceTest, DlrmAndDcnGiveTheReferencesScoresInEveryPrecision) {
  for (int64_t cross_layers : {0, 2}) {
    for (Precision precision : {Precision::kFloat32, Precision::kTf32,
                                Precision::kFloat16, Precision::kBFloat16}) {
      SCOPED_TRACE(bench::Name(precision));
      Fixture f(
          bench::MakeDlrm("m", SmallDlrm(cross_layers), precision, 9, seed_),
          seed_, {.max_batch = 9, .workspace_bytes = 256});
      ASSERT_TRUE(f.instance->Load().ok());
      for (int64_t batch : {1, 2, 3, 9, 5}) {
        f.Serve(batch, Tolerance(precision));
        if (HasFatalFailure()) return;
      }
      EXPECT_THAT(f.device.violations(), IsEmpty());
    }
  }
}

TEST_F(InstanceTest, GraphsAndSeparateLaunchesGiveTheSameBits) {
  const DenseModel model =
      bench::MakeDlrm("m", SmallDlrm(0), Precision::kFloat16, 4, seed_);
  std::vector<std::vector<std::byte>> results;
  for (bool graphs : {true, false}) {
    Fixture f(model, seed_,
              {.max_batch = 4, .workspace_bytes = 256, .use_graphs = graphs});
    ASSERT_TRUE(f.instance->Load().ok());
    const int captures = f.device.captures();
    EXPECT_EQ(captures, graphs ? 2 * 3 : 0) << "slots × buckets";
    const Inputs inputs = f.RandomInputs(3);
    const SlotId slot = *f.instance->Acquire(3);
    f.Fill(slot, inputs);
    ASSERT_TRUE(f.instance->Submit(slot).ok());
    ASSERT_TRUE(f.instance->Wait(slot).ok());
    EXPECT_EQ(f.device.graph_launches(), graphs ? 1 : 0);
    const std::byte* out = f.instance->output(slot, 0);
    results.emplace_back(out, out + f.instance->output_bytes(slot, 0));
    EXPECT_THAT(f.device.violations(), IsEmpty());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(InstanceTest, ManyRequestsInFlightNeverTouchEachOther) {
  for (int num_slots : {1, 2, 4}) {
    SCOPED_TRACE(num_slots);
    Fixture f(bench::MakeDlrm("m", SmallDlrm(1), Precision::kFloat32, 8, seed_),
              seed_,
              {.max_batch = 8, .num_slots = num_slots, .workspace_bytes = 256});
    ASSERT_TRUE(f.instance->Load().ok());
    const int allocations = f.device.allocations();
    const int captures = f.device.captures();
    struct Pending {
      SlotId slot;
      int64_t batch;
      Inputs inputs;
    };
    std::deque<Pending> pending;
    for (int request = 0; request < 60; ++request) {
      while (static_cast<int>(pending.size()) == num_slots ||
             (!pending.empty() && f.random() % 3 == 0)) {
        // In any order.
        const size_t i = f.random() % pending.size();
        Pending done = std::move(pending[i]);
        pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
        if (f.random() % 2 == 0) {
          ASSERT_TRUE(f.instance->Done(done.slot).ok());
        }
        ASSERT_TRUE(f.instance->Wait(done.slot).ok());
        f.Expect(done.slot, done.inputs, done.batch, 1e-5);
        if (HasFatalFailure()) return;
        f.instance->Release(done.slot);
      }
      const auto batch = static_cast<int64_t>(1 + f.random() % 8);
      auto slot = f.instance->Acquire(batch);
      ASSERT_TRUE(slot.ok());
      Pending next{*slot, batch, f.RandomInputs(batch)};
      f.Fill(next.slot, next.inputs);
      ASSERT_TRUE(f.instance->Submit(next.slot).ok());
      pending.push_back(std::move(next));
      f.device.RunSome();
    }
    // The other slots are released without waiting.
    for (const Pending& p : pending) f.instance->Release(p.slot);
    EXPECT_EQ(f.device.allocations(), allocations) << "allocates per request";
    EXPECT_EQ(f.device.captures(), captures);
    f.instance->Unload();
    EXPECT_EQ(f.device.live(), 0u);
    EXPECT_THAT(f.device.violations(), IsEmpty());
  }
}

TEST_F(InstanceTest, UploadsOverlapTheComputationBeforeThem) {
  Fixture f(bench::MakeDlrm("m", SmallDlrm(0), Precision::kFloat32, 2, seed_),
            seed_, {.max_batch = 2, .workspace_bytes = 256});
  ASSERT_TRUE(f.instance->Load().ok());
  // Two requests can be given before either has run: nothing in Submit() waits.
  for (int i = 0; i < 2; ++i) {
    const SlotId slot = *f.instance->Acquire(2);
    f.Fill(slot, f.RandomInputs(2));
    ASSERT_TRUE(f.instance->Submit(slot).ok());
  }
  auto third = f.instance->Acquire(1);
  EXPECT_EQ(third.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(third.status().message(), HasSubstr("all 2 slots"));
  EXPECT_THAT(f.device.violations(), IsEmpty());
}

TEST_F(InstanceTest, AnUploadCanComeBeforeTheSubmit) {
  Fixture f(bench::MakeDlrm("m", SmallDlrm(0), Precision::kFloat32, 4, seed_),
            seed_, {.max_batch = 4, .workspace_bytes = 256});
  ASSERT_TRUE(f.instance->Load().ok());
  const Inputs first = f.RandomInputs(3);
  const Inputs second = f.RandomInputs(4);
  const SlotId a = *f.instance->Acquire(3);
  f.Fill(a, first);
  ASSERT_TRUE(f.instance->Submit(a).ok());
  const SlotId b = *f.instance->Acquire(4);
  f.Fill(b, second);
  ASSERT_TRUE(f.instance->Upload(b).ok());
  EXPECT_EQ(f.instance->Upload(b).code(), Code::kFailedPrecondition);
  EXPECT_EQ(f.instance->Wait(b).code(), Code::kFailedPrecondition);
  while (!*f.instance->Uploaded(b)) {
  }
  ASSERT_TRUE(f.instance->Wait(a).ok());
  f.Expect(a, first, 3, Tolerance(Precision::kFloat32));
  f.instance->Release(a);
  ASSERT_TRUE(f.instance->Submit(b).ok());
  ASSERT_TRUE(f.instance->Wait(b).ok());
  f.Expect(b, second, 4, Tolerance(Precision::kFloat32));
  f.instance->Release(b);
  // A request cancelled before Submit().
  const SlotId c = *f.instance->Acquire(1);
  f.Fill(c, f.RandomInputs(1));
  ASSERT_TRUE(f.instance->Upload(c).ok());
  f.instance->Release(c);
  f.Serve(2, Tolerance(Precision::kFloat32));
  f.instance->Unload();
  EXPECT_THAT(f.device.violations(), IsEmpty());
  EXPECT_EQ(f.device.live(), 0u);
}

TEST_F(InstanceTest, ANaNPassesThroughInItsRowAlone) {
  Fixture f(bench::MakeDlrm("m", SmallDlrm(0), Precision::kFloat16, 4, seed_),
            seed_, {.max_batch = 4, .workspace_bytes = 256});
  ASSERT_TRUE(f.instance->Load().ok());
  Inputs inputs = f.RandomInputs(3);
  inputs[0][13] = std::numeric_limits<double>::quiet_NaN();  // of row 1
  SlotId slot = *f.instance->Acquire(3);
  f.Fill(slot, inputs);
  ASSERT_TRUE(f.instance->Submit(slot).ok());
  ASSERT_TRUE(f.instance->Wait(slot).ok());
  const auto* scores =
      reinterpret_cast<const float*>(f.instance->output(slot, 0));
  EXPECT_TRUE(std::isfinite(scores[0]));
  EXPECT_TRUE(std::isnan(scores[1]));
  EXPECT_TRUE(std::isfinite(scores[2]));
  f.instance->Release(slot);
  // The same slot again, and a bucket whose padding still holds the NaN.
  for (int i = 0; i < 2; ++i) f.Serve(1, 1e-2);
}

TEST_F(InstanceTest, WhateverCallFailsAtLoadNothingIsLeft) {
  for (Code code :
       {Code::kInternal, Code::kResourceExhausted, Code::kUnavailable}) {
    Fixture f(LookUpModel(DType::kFloat32, 2, seed_), seed_,
              {.max_batch = 2, .workspace_bytes = 256});
    int failures = 0;
    for (int n = 1;; ++n) {
      const int before = f.device.calls();
      f.device.FailCall(n, code);
      const Status status = f.instance->Load();
      const bool reached = f.device.calls() >= before + n;
      f.instance->Unload();
      if (status.ok()) {
        if (!reached) break;
        continue;  // a call that releases
      }
      ASSERT_EQ(status.code(), code) << status.ToString();
      ASSERT_EQ(f.instance->state(), Instance::State::kUnloaded);
      if (code == Code::kUnavailable) {
        ASSERT_TRUE(f.device.Reset().ok());
      }
      ASSERT_EQ(f.device.live(), 0u) << "after call " << n;
      ++failures;
    }
    EXPECT_GT(failures, 50);
    EXPECT_THAT(f.device.violations(), IsEmpty());
  }
}

TEST_F(InstanceTest, ADeviceErrorEndsTheInstanceUntilItIsLoadedAgain) {
  Fixture f(bench::MakeDlrm("m", SmallDlrm(0), Precision::kFloat32, 4, seed_),
            seed_, {.max_batch = 4, .workspace_bytes = 256});
  int outages = 0;
  for (int n = 1; n <= 20; ++n) {
    ASSERT_TRUE(f.instance->Load().ok());
    f.Serve(2, 1e-5);
    f.device.FailCall(n, Code::kUnavailable);
    const Inputs inputs = f.RandomInputs(3);
    auto first = f.instance->Acquire(3);
    auto second = f.instance->Acquire(2);
    ASSERT_TRUE(first.ok());
    ASSERT_TRUE(second.ok());
    f.Fill(*first, inputs);
    Status status = f.instance->Submit(*first);
    if (status.ok()) status = f.instance->Wait(*first);
    if (!status.ok()) {
      ++outages;
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_THAT(status.message(), HasSubstr("model m"));
      EXPECT_EQ(f.instance->state(), Instance::State::kFailed);
      // Every call fails with this error from now on.
      EXPECT_EQ(f.instance->Submit(*second).code(), Code::kUnavailable);
      EXPECT_EQ(f.instance->Wait(*first).code(), Code::kUnavailable);
      EXPECT_EQ(f.instance->Acquire(1).status().code(), Code::kUnavailable);
      EXPECT_EQ(f.instance->Load().code(), Code::kFailedPrecondition);
      f.instance->Release(*first);
    } else {
      f.Expect(*first, inputs, 3, 1e-5);
    }
    f.instance->Unload();
    ASSERT_TRUE(f.device.Reset().ok());
    ASSERT_EQ(f.device.live(), 0u);
  }
  EXPECT_GT(outages, 5);
  EXPECT_LT(outages, 20) << "no round came through";
  EXPECT_THAT(f.device.violations(), IsEmpty());
}

TEST_F(InstanceTest, OutOfMemoryNamesModelNeedAndWhatIsFree) {
  const DenseModel model =
      bench::MakeDlrm("ranker", SmallDlrm(0), Precision::kFloat32, 4, seed_);
  Fixture fits(model, seed_, {.max_batch = 4, .workspace_bytes = 256});
  const int64_t need = fits.instance->memory().device_bytes();
  ASSERT_TRUE(fits.instance->Load().ok());
  auto left = fits.device.Memory();
  EXPECT_EQ(left->total_bytes - left->free_bytes, need)
      << "what is reported is what is taken";
  Fixture f(model, seed_, {.max_batch = 4, .workspace_bytes = 256}, need - 1);
  const Status status = f.instance->Load();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(),
              HasSubstr("model ranker needs " + std::to_string(need)));
  EXPECT_THAT(status.message(),
              HasSubstr(std::to_string(need - 1) + " of " +
                        std::to_string(need - 1) + " on the device are free"));
  EXPECT_EQ(f.device.live(), 0u);
}

TEST_F(InstanceTest, BatchesOutsideTheCompiledRangeAreRefused) {
  Fixture f(bench::MakeDlrm("m", SmallDlrm(0), Precision::kFloat32, 4, seed_),
            seed_, {.max_batch = 4, .workspace_bytes = 256});
  EXPECT_EQ(f.instance->Acquire(1).status().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(f.instance->Load().ok());
  for (int64_t batch : {int64_t{0}, int64_t{-1}, int64_t{5},
                        std::numeric_limits<int64_t>::max()}) {
    const Status status = f.instance->Acquire(batch).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("outside 1 to 4"));
  }
  // Calls out of order are refused and change nothing.
  EXPECT_EQ(f.instance->Submit(0).code(), Code::kFailedPrecondition);
  EXPECT_EQ(f.instance->Wait(1).code(), Code::kFailedPrecondition);
  EXPECT_EQ(f.instance->Submit(-1).code(), Code::kFailedPrecondition);
  EXPECT_EQ(f.instance->Submit(7).code(), Code::kFailedPrecondition);
  f.Serve(4, 1e-5);
  EXPECT_THAT(f.device.violations(), IsEmpty());
}

// Memory outside the plan is measured at load.
TEST_F(InstanceTest, MemoryOfGraphsIsReported) {
  class Device : public CheckedDevice {
   public:
    using CheckedDevice::CheckedDevice;
    Result<MemoryInfo> Memory() override {
      auto info = CheckedDevice::Memory();
      if (info.ok()) info->free_bytes -= 1000 * captures();
      return info;
    }
  };
  Device device(seed_);
  const DenseModel model =
      bench::MakeDlrm("m", SmallDlrm(0), Precision::kFloat32, 4, seed_);
  auto instance = Instance::Create(
      device, model.program, model.weight_data(),
      {.max_batch = 4, .num_slots = 2, .workspace_bytes = 256});
  ASSERT_TRUE(instance.ok());
  EXPECT_EQ((*instance)->memory().captured_bytes, 0);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE((*instance)->Load().ok());
    EXPECT_EQ((*instance)->memory().captured_bytes, 1000 * 2 * 3);
    (*instance)->Unload();
    EXPECT_EQ((*instance)->memory().captured_bytes, 0);
  }
}

TEST_F(InstanceTest, WrongWeightsAndOptionsAreNamed) {
  const DenseModel model =
      bench::MakeDlrm("m", SmallDlrm(0), Precision::kFloat32, 4, seed_);
  CheckedDevice device(seed_);
  auto create = [&](std::vector<WeightData> weights, InstanceOptions options) {
    return Instance::Create(device, model.program, std::move(weights), options)
        .status()
        .message();
  };
  auto weights = model.weight_data();
  weights.pop_back();
  EXPECT_THAT(create(weights, {}), HasSubstr("needs 10 weights, got 9"));
  weights = model.weight_data();
  weights[2].count -= 1;
  EXPECT_THAT(create(weights, {}), HasSubstr("weight bottom1_weight has 383"));
  weights = model.weight_data();
  EXPECT_THAT(create(weights, {.max_batch = 0}), HasSubstr("max_batch"));
  EXPECT_THAT(create(weights, {.num_slots = 0}), HasSubstr("num_slots"));
  EXPECT_THAT(create(weights, {.max_batch = int64_t{1} << 40}),
              HasSubstr("more than 2^31 elements"));
  for (const auto& [dtype, most] :
       {std::pair{DType::kInt64, 30}, {DType::kInt32, 31}}) {
    const auto built = [&](int64_t cols) {
      DeviceProgramBuilder builder("ids");
      (void)builder.Input("ids", dtype, Rows{1, 0}, cols);
      return std::move(builder).Build(1).status();
    };
    const int64_t cols = (int64_t{1} << most) - 1;
    EXPECT_TRUE(built(cols).ok());
    EXPECT_THAT(built(cols + 1).message(),
                HasSubstr("more than 2^" + std::to_string(most) + " elements"));
  }
}

}  // namespace
}  // namespace refract::runtime::cuda
