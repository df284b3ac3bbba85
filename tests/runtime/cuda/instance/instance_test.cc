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
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/reference.h"

namespace refract::runtime::cuda {
namespace {

using bench::DenseModel;
using bench::DlrmShape;
using bench::Precision;
using testing::CheckedDevice;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Inputs = std::vector<std::vector<double>>;

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

// A model on a checked device.
struct Fixture {
  Fixture(DenseModel m, unsigned seed, const InstanceOptions& options,
          int64_t memory = int64_t{1} << 30)
      : model(std::move(m)), device(seed, memory), random(seed) {
    auto created =
        Instance::Create(device, model.program, model.weight_data(), options);
    EXPECT_TRUE(created.ok()) << created.status().ToString();
    instance = *std::move(created);
  }

  Inputs RandomInputs(int64_t batch) {
    std::uniform_real_distribution<double> values(-1, 1);
    Inputs inputs;
    for (ValueId id : model.program.inputs) {
      const Value& value = model.program.value(id);
      auto& input = inputs.emplace_back();
      for (int64_t i = 0; i < value.rows.At(batch) * value.cols; ++i) {
        // As the device sees it.
        unsigned char memory[4];
        if (!IsFloating(value.dtype)) {
          input.push_back(static_cast<int32_t>(random()));
          continue;
        }
        Store(static_cast<float>(values(random)), memory, value.dtype, 0);
        input.push_back(Load(memory, value.dtype, 0));
      }
    }
    return inputs;
  }
  void Fill(SlotId slot, const Inputs& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Value& value = model.program.value(model.program.inputs[i]);
      device.HostAccess(instance->input(slot, i),
                        instance->input_bytes(slot, i), true);
      for (size_t e = 0; e < inputs[i].size(); ++e) {
        if (value.dtype == DType::kInt32) {
          const auto number = static_cast<int32_t>(inputs[i][e]);
          std::memcpy(instance->input(slot, i) + 4 * e, &number, 4);
        } else if (value.dtype == DType::kInt64) {
          const auto number = static_cast<int64_t>(inputs[i][e]);
          std::memcpy(instance->input(slot, i) + 8 * e, &number, 8);
        } else {
          Store(static_cast<float>(inputs[i][e]), instance->input(slot, i),
                value.host_dtype, static_cast<int64_t>(e));
        }
      }
    }
  }
  // Compares the outputs of a finished slot with the reference.
  void Expect(SlotId slot, const Inputs& inputs, int64_t batch,
              double tolerance) {
    const auto want =
        testing::RunReference(model.program, model.weights, inputs, batch);
    for (size_t i = 0; i < want.size(); ++i) {
      const DType dtype = model.program.value(model.program.outputs[i]).dtype;
      device.HostAccess(instance->output(slot, i),
                        instance->output_bytes(slot, i), false);
      for (size_t e = 0; e < want[i].size(); ++e) {
        const double got =
            Load(instance->output(slot, i), dtype, static_cast<int64_t>(e));
        ASSERT_NEAR(got, want[i][e], tolerance) << "element " << e;
      }
    }
  }
  void Serve(int64_t batch, double tolerance) {
    const Inputs inputs = RandomInputs(batch);
    auto slot = instance->Acquire(batch);
    ASSERT_TRUE(slot.ok()) << slot.status().ToString();
    Fill(*slot, inputs);
    ASSERT_TRUE(instance->Submit(*slot).ok());
    const Status status = instance->Wait(*slot);
    ASSERT_TRUE(status.ok()) << status.ToString();
    Expect(*slot, inputs, batch, tolerance);
    instance->Release(*slot);
  }

  DenseModel model;
  CheckedDevice device;
  std::mt19937 random;
  std::unique_ptr<Instance> instance;
};

class InstanceTest : public ::testing::Test {
 protected:
  const unsigned seed_ = base::RandomSeed();
};

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
      EXPECT_EQ(f.instance->stats().requests, 5u);
      EXPECT_EQ(f.instance->stats().items, 20u);
      // Buckets 1, 2, 4, 8, 9.
      EXPECT_EQ(f.instance->stats().padding_items, 0u + 0 + 1 + 0 + 3);
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

// Rows of a table beside what the request brings, then attention-like weights:
// operators that read the number of items and count faults.
DenseModel LookUpModel(DType dtype, int64_t max_batch, unsigned seed) {
  constexpr int64_t kTableRows = 3, kDim = 12, kOwn = 5, kOut = 6;
  DeviceProgramBuilder builder("looks_up");
  const Rows items{1, 0};
  const ValueId index = builder.Input("index", DType::kInt32, items, 1);
  const ValueId table = builder.Weight("table", dtype, kTableRows, kDim);
  const ValueId both = builder.Intermediate("both", dtype, items, kDim + kOwn);
  // Sent as float32, whatever the type on the device.
  builder.InputView(both, "own", kDim, kOwn, DType::kFloat32);
  const ValueId found = builder.View(both, "found", 0, kDim);
  const auto matrix = [&](ValueId id) {
    return TensorRef{id, {0, 0}, {{0, builder.value(id).ld}, {0, 1}}};
  };
  builder.LookUp({.dims = {items, {0, kDim}},
                  .table = {table, {0, 0}, {{0, 0}, {0, 1}}},
                  .index = {index, {0, 0}, {{0, 1}, {0, 0}}},
                  .out = matrix(found),
                  .row_stride = {0, builder.value(table).ld},
                  .table_rows = kTableRows});
  const ValueId gamma = builder.Weight("gamma", dtype, 1, kDim + kOwn);
  const ValueId beta = builder.Weight("beta", dtype, 1, kDim + kOwn);
  const ValueId normed =
      builder.Intermediate("normed", dtype, items, kDim + kOwn);
  builder.Reduce({.kind = ReduceKind::kLayerNorm,
                  .dims = {items, {0, kDim + kOwn}},
                  .in = matrix(both),
                  .gamma = {gamma, {0, 0}, {{0, 1}}},
                  .beta = {beta, {0, 0}, {{0, 1}}},
                  .out = matrix(normed),
                  .epsilon = 1e-5f});
  const ValueId weight = builder.Weight("weight", dtype, kOut, kDim + kOwn);
  const ValueId logits = builder.Intermediate("logits", dtype, items, kOut);
  builder.Linear({.in = normed, .weight = weight, .out = logits});
  const ValueId out = builder.Output("probabilities", dtype, items, kOut);
  builder.Reduce({.kind = ReduceKind::kSoftmax,
                  .dims = {items, {0, kOut}},
                  .in = matrix(logits),
                  .gamma = {},
                  .beta = {},
                  .out = matrix(out)});
  DenseModel model;
  auto program = std::move(builder).Build(max_batch);
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  model.program = *std::move(program);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3f);
  for (int64_t count :
       {kTableRows * kDim, kDim + kOwn, kDim + kOwn, kOut * (kDim + kOwn)}) {
    auto& weights = model.weights.emplace_back(count);
    for (float& w : weights) {
      // As the device sees it.
      unsigned char memory[4];
      Store(normal(random), memory, dtype, 0);
      w = Load(memory, dtype, 0);
    }
  }
  return model;
}

// An input per table, of several widths and types, more than one launch takes;
// ids, and an input that all rows share.
TEST_F(InstanceTest, ManyInputsReachTheDeviceTogether) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    constexpr int64_t kTables = kMaxTakeTables + 5;
    DeviceProgramBuilder builder("many");
    const Rows items{1, 0};
    const auto width = [](int64_t table) { return 1 + table % 9; };
    int64_t total = 0;
    for (int64_t i = 0; i < kTables; ++i) total += width(i);
    const ValueId all = builder.Intermediate("all", dtype, items, total);
    const ValueId ids = builder.Input("ids", DType::kInt64, items, 3);
    const ValueId shared = builder.Input("shared", dtype, kOneRow, total);
    int64_t first = 0;
    for (int64_t i = 0; i < kTables; ++i) {
      builder.InputView(all, "table" + std::to_string(i), first, width(i),
                        i % 4 == 3 ? dtype : DType::kFloat32);
      first += width(i);
    }
    const auto matrix = [&](ValueId id, bool one_row = false) {
      return TensorRef{
          id, {0, 0}, {{0, one_row ? 0 : builder.value(id).ld}, {0, 1}}};
    };
    const ValueId sum = builder.Output("sum", DType::kFloat32, items, total);
    builder.Map({.dims = {items, {0, total}},
                 .inputs = {{matrix(all)}, {matrix(shared, true)}},
                 .code = {{ElementCode::kAdd, 0, 1}},
                 .out = matrix(sum)});
    const ValueId same = builder.Output("same", DType::kInt64, items, 3);
    builder.Integers({.code = IntegerCode::kCopy,
                      .dims = {items, {0, 3}},
                      .inputs = {{matrix(ids)}},
                      .out = matrix(same)});
    DenseModel model;
    auto program = std::move(builder).Build(40);
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    model.program = *std::move(program);
    EXPECT_EQ(StagedInputs(model.program).size(), kTables + 1);
    Fixture f(std::move(model), seed_, {.max_batch = 40, .workspace_bytes = 0});
    ASSERT_TRUE(f.instance->Load().ok());
    // A smaller batch after a larger one: its inputs lie elsewhere.
    for (int64_t batch : {40, 1, 7, 33}) {
      const Inputs inputs = f.RandomInputs(batch);
      const SlotId slot = *f.instance->Acquire(batch);
      f.Fill(slot, inputs);
      ASSERT_TRUE(f.instance->Submit(slot).ok());
      ASSERT_TRUE(f.instance->Wait(slot).ok());
      f.device.HostAccess(f.instance->output(slot, 0),
                          f.instance->output_bytes(slot, 0), false);
      f.device.HostAccess(f.instance->output(slot, 1),
                          f.instance->output_bytes(slot, 1), false);
      const auto* sums =
          reinterpret_cast<const float*>(f.instance->output(slot, 0));
      const auto* copies =
          reinterpret_cast<const int64_t*>(f.instance->output(slot, 1));
      for (int64_t row = 0; row < batch; ++row) {
        int64_t col = 0;
        for (int64_t i = 0; i < kTables; ++i) {
          for (int64_t c = 0; c < width(i); ++c, ++col) {
            const float want = static_cast<float>(
                inputs[static_cast<size_t>(2 + i)]
                      [static_cast<size_t>(row * width(i) + c)] +
                inputs[1][static_cast<size_t>(col)]);
            ASSERT_EQ(sums[row * total + col], want)
                << "row " << row << ", table " << i << ", batch " << batch;
          }
        }
        for (int64_t c = 0; c < 3; ++c) {
          ASSERT_EQ(copies[row * 3 + c],
                    inputs[0][static_cast<size_t>(row * 3 + c)]);
        }
      }
      f.instance->Release(slot);
    }
    f.instance->Unload();
    EXPECT_THAT(f.device.violations(), IsEmpty());
    EXPECT_EQ(f.device.live(), 0u);
  }
}

Inputs LookUpInputs(Fixture& f, int64_t batch) {
  Inputs inputs = f.RandomInputs(batch);
  for (double& index : inputs[0]) index = static_cast<double>(f.random() % 3);
  return inputs;
}

TEST_F(InstanceTest, RowsOfTablesAreFound) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
    Fixture f(LookUpModel(dtype, 8, seed_), seed_,
              {.max_batch = 8, .workspace_bytes = 256});
    ASSERT_TRUE(f.instance->Load().ok());
    for (int64_t batch : {8, 1, 3, 5, 8}) {
      const Inputs inputs = LookUpInputs(f, batch);
      const SlotId slot = *f.instance->Acquire(batch);
      f.Fill(slot, inputs);
      ASSERT_TRUE(f.instance->Submit(slot).ok());
      const Status status = f.instance->Wait(slot);
      ASSERT_TRUE(status.ok()) << status.ToString();
      f.Expect(slot, inputs, batch, dtype == DType::kFloat32 ? 1e-5 : 1e-2);
      f.instance->Release(slot);
    }
    EXPECT_EQ(f.instance->stats().bad_indices, 0u)
        << "rows that a bucket adds are no faults";
    EXPECT_THAT(f.device.violations(), IsEmpty());
  }
}

TEST_F(InstanceTest, ABadIndexEndsItsRequestOnly) {
  Fixture f(LookUpModel(DType::kFloat32, 8, seed_), seed_,
            {.max_batch = 8, .workspace_bytes = 256});
  ASSERT_TRUE(f.instance->Load().ok());
  for (double bad : {3.0, -1.0, 2147483647.0}) {
    Inputs inputs = LookUpInputs(f, 5);
    inputs[0][2] = bad;
    const SlotId slot = *f.instance->Acquire(5);
    f.Fill(slot, inputs);
    ASSERT_TRUE(f.instance->Submit(slot).ok());
    const Status status = f.instance->Wait(slot);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("1 ids are outside their tables"));
    f.instance->Release(slot);
  }
  EXPECT_EQ(f.instance->stats().bad_indices, 3u);
  EXPECT_EQ(f.instance->state(), Instance::State::kReady);
  EXPECT_THAT(f.device.violations(), IsEmpty());
}

TEST_F(InstanceTest, NaNAndInfinityPassThroughAndAreCounted) {
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
  EXPECT_EQ(f.instance->stats().non_finite_requests, 1u);
  f.instance->Release(slot);
  // The same slot again, and a bucket whose padding still holds the NaN.
  for (int i = 0; i < 2; ++i) f.Serve(1, 1e-2);
  EXPECT_EQ(f.instance->stats().non_finite_requests, 1u);
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
