// Programs of other sizes that are added to an instance while it serves: in
// random order, on a device that checks every access. Plain loops in double are
// the oracle.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/instance/instance.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"

namespace refract::runtime::cuda {
namespace {

using testing::CheckedDevice;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kWidth = 5;   // of a step; rows are padded
constexpr int64_t kHidden = 7;  // likewise
constexpr int64_t kMostSteps = 9;
constexpr int64_t kScales = 60;  // more than what is planned for
constexpr int64_t kMostRows = 6;
// Sizes that the first program is planned for: few rows, all steps.
constexpr int64_t kRowsAtMost = 2;

// out[r] = Σ_t scale[t] · relu(x[r, t] · wᵀ) over `steps` steps t, and the row
// that id[r] names and shift[r], which callers send in fp16, added to it. The
// inputs with a row per item, which are staged, include x at one step only.
struct StepModel {
  explicit StepModel(unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> values(-1, 1);
    for (int64_t i = 0; i < kWidth * kHidden; ++i) {
      weight.push_back(values(random));
    }
    for (int64_t i = 0; i < kTableRows * kHidden; ++i) {
      table.push_back(values(random));
    }
    for (int64_t i = 0; i < kScales; ++i) {
      scale.push_back(values(random));
      own.push_back(values(random));
    }
  }
  static constexpr int64_t kTableRows = 3;

  // `owns`: has a weight that the first program lacks.
  DeviceProgram MakeProgram(int64_t steps, bool owns = false) const {
    DeviceProgramBuilder builder("m");
    const ValueId x = builder.Input("x", DType::kFloat32, {steps, 0}, kWidth);
    const ValueId id = builder.Input("id", DType::kInt64, {1, 0}, 1);
    const ValueId shift = builder.Input("shift", DType::kFloat32, {1, 0},
                                        kHidden, DType::kFloat16);
    const ValueId w = builder.Weight("w", DType::kFloat32, kHidden, kWidth);
    const ValueId rows =
        builder.Weight("table", DType::kFloat32, kTableRows, kHidden);
    const ValueId factors =
        builder.Weight(owns ? "own" : "scale", DType::kFloat32, 1, kScales);
    const ValueId hidden =
        builder.Intermediate("hidden", DType::kFloat32, {steps, 0}, kHidden);
    builder.Linear(
        {.in = x, .weight = w, .out = hidden, .epilogue = Epilogue::kRelu});
    const int64_t ld = builder.value(hidden).ld;
    const ValueId scaled =
        builder.Intermediate("scaled", DType::kFloat32, {steps, 0}, kHidden);
    const std::vector<Rows> dims = {{1, 0}, {0, steps}, {0, kHidden}};
    const std::vector<Rows> strides = {{0, steps * ld}, {0, ld}, {0, 1}};
    const TensorRef all = {scaled, {0, 0}, strides};
    MapOp scales;
    scales.dims = dims;
    scales.inputs = {{{hidden, {0, 0}, strides}},
                     {{factors, {0, 0}, {{0, 0}, {0, 1}, {0, 0}}}}};
    scales.code = {{ElementCode::kMultiply, 0, 1}};
    scales.out = all;
    builder.Map(std::move(scales));
    const ValueId sum =
        builder.Intermediate("sum", DType::kFloat32, {1, 0}, kHidden);
    const TensorRef per_row = {sum, {0, 0}, {{0, ld}, {0, 1}}};
    ReduceOp reduce;
    reduce.dims = {{1, 0}, {0, kHidden}, {0, steps}};
    reduce.in = {scaled, {0, 0}, {{0, steps * ld}, {0, 1}, {0, ld}}};
    reduce.out = per_row;
    builder.Reduce(std::move(reduce));
    const ValueId looked =
        builder.Intermediate("looked", DType::kFloat32, {1, 0}, kHidden);
    const TensorRef found = {looked, {0, 0}, {{0, ld}, {0, 1}}};
    LookUpOp look_up;
    look_up.dims = {{1, 0}, {0, kHidden}};
    look_up.table = {rows, {0, 0}, {{0, 0}, {0, 1}}};
    look_up.index = {id, {0, 0}, {{0, 1}, {0, 0}}};
    look_up.out = found;
    look_up.row_stride = {0, builder.value(rows).ld};
    look_up.table_rows = kTableRows;
    builder.LookUp(std::move(look_up));
    const ValueId out = builder.Output("out", DType::kFloat32, {1, 0}, kHidden);
    MapOp adds;
    adds.dims = {{1, 0}, {0, kHidden}};
    adds.inputs = {{per_row},
                   {found},
                   {{shift, {0, 0}, {{0, builder.value(shift).ld}, {0, 1}}}}};
    adds.code = {{ElementCode::kAdd, 0, 1}, {ElementCode::kAdd, 3, 2}};
    adds.out = {out, {0, 0}, {{0, builder.value(out).ld}, {0, 1}}};
    builder.Map(std::move(adds));
    auto program = std::move(builder).Build(1);
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    return *std::move(program);
  }
  std::vector<WeightData> Data(bool owns = false) const {
    return {{weight.data(), kWidth * kHidden},
            {table.data(), kTableRows * kHidden},
            {owns ? own.data() : scale.data(), kScales}};
  }

  std::vector<float> weight, table, scale, own;
};

struct Request {
  int64_t rows = 0, steps = 0;
  bool owns = false;
  SlotId slot = -1;
  std::vector<float> x;
  std::vector<int64_t> ids;
  std::vector<uint16_t> shift;  // fp16
};

class VariantsTest : public ::testing::Test {
 protected:
  VariantsTest() : device_(seed_), random_(seed_) {}
  void Make(InstanceOptions options = {}) {
    options.max_batch = kRowsAtMost;
    options.workspace_bytes = 256;
    if (options.max_variants == 0) options.max_variants = 3;
    options.max_variant_batch = kMostRows;
    auto created = Instance::Create(device_, model_.MakeProgram(kMostSteps),
                                    model_.Data(), options);
    ASSERT_TRUE(created.ok()) << created.status().ToString();
    instance_ = *std::move(created);
    const Status loaded = instance_->Load();
    ASSERT_TRUE(loaded.ok()) << loaded.ToString();
  }
  VariantId Add(int64_t steps, bool owns = false) {
    auto added = instance_->AddVariant(model_.MakeProgram(steps, owns),
                                       model_.Data(owns));
    EXPECT_TRUE(added.ok()) << added.status().ToString();
    return added.ok() ? *added : -1;
  }

  // Acquires a slot and fills it.
  bool Begin(VariantId variant, Request& request) {
    auto slot = instance_->Acquire(request.rows, variant);
    if (!slot.ok()) {
      EXPECT_EQ(slot.status().code(), Code::kResourceExhausted)
          << slot.status().ToString();
      return false;
    }
    request.slot = *slot;
    std::uniform_real_distribution<float> values(-1, 1);
    for (int64_t i = 0; i < request.rows * request.steps * kWidth; ++i) {
      request.x.push_back(values(random_));
    }
    for (int64_t i = 0; i < request.rows; ++i) {
      request.ids.push_back(random_() % StepModel::kTableRows);
    }
    Write(request.slot, 0, request.x.data(), request.x.size() * 4);
    request.shift.resize(request.rows * kHidden);
    for (int64_t i = 0; i < request.rows * kHidden; ++i) {
      Store(values(random_), request.shift.data(), DType::kFloat16, i);
    }
    Write(request.slot, 1, request.ids.data(), request.ids.size() * 8);
    Write(request.slot, 2, request.shift.data(), request.shift.size() * 2);
    return true;
  }
  void Write(SlotId slot, size_t input, const void* data, size_t bytes) {
    ASSERT_EQ(instance_->input_bytes(slot, input), static_cast<int64_t>(bytes));
    device_.HostAccess(instance_->input(slot, input),
                       static_cast<int64_t>(bytes), true);
    std::memcpy(instance_->input(slot, input), data, bytes);
  }
  // Waits, compares and releases.
  void End(const Request& request) {
    const Status status = instance_->Wait(request.slot);
    ASSERT_TRUE(status.ok()) << status.ToString();
    Compare(request);
    instance_->Release(request.slot);
  }
  void Compare(const Request& request) {
    device_.HostAccess(instance_->output(request.slot, 0),
                       instance_->output_bytes(request.slot, 0), false);
    const auto* got =
        reinterpret_cast<const float*>(instance_->output(request.slot, 0));
    const std::vector<float>& scale = request.owns ? model_.own : model_.scale;
    for (int64_t r = 0; r < request.rows; ++r) {
      for (int64_t h = 0; h < kHidden; ++h) {
        double sum = 0;
        for (int64_t t = 0; t < request.steps; ++t) {
          double product = 0;
          for (int64_t k = 0; k < kWidth; ++k) {
            product += static_cast<double>(
                           request.x[(r * request.steps + t) * kWidth + k]) *
                       model_.weight[h * kWidth + k];
          }
          sum += scale[t] * std::max(product, 0.0);
        }
        sum += model_.table[request.ids[r] * kHidden + h];
        sum += Load(request.shift.data(), DType::kFloat16, r * kHidden + h);
        ASSERT_NEAR(got[r * kHidden + h], sum, 1e-4)
            << "row " << r << " of " << request.rows << ", " << request.steps
            << " steps";
      }
    }
  }
  void Serve(VariantId variant, int64_t rows, int64_t steps,
             bool owns = false) {
    Request request = {.rows = rows, .steps = steps, .owns = owns};
    ASSERT_TRUE(Begin(variant, request));
    ASSERT_TRUE(instance_->Submit(request.slot).ok());
    End(request);
  }

  const unsigned seed_ = base::RandomSeed();
  StepModel model_{seed_};
  CheckedDevice device_;
  std::mt19937 random_;
  std::unique_ptr<Instance> instance_;
};

TEST_F(VariantsTest, ServeOtherSizesInTheMemoryOfTheLargest) {
  Make();
  const int before = device_.allocations();
  const int64_t free = device_.Memory()->free_bytes;
  Serve(kFirstProgram, 2, kMostSteps);
  const VariantId four = Add(4);
  const VariantId one = Add(1);
  // The memory bounds the rows.
  EXPECT_GE(instance_->MaxBatch(four), 4);
  EXPECT_EQ(instance_->MaxBatch(one), kMostRows);
  EXPECT_EQ(instance_->MaxBatch(17), 0);
  for (int i = 0; i < 3; ++i) {
    Serve(four, 3, 4);
    Serve(one, 6, 1);
    Serve(kFirstProgram, 1, kMostSteps);
  }
  EXPECT_EQ(device_.allocations(), before);
  EXPECT_EQ(device_.Memory()->free_bytes, free);
  instance_.reset();
  EXPECT_EQ(device_.live(), 0u);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(VariantsTest, AreCapturedWhenABucketComesAgain) {
  Make({.num_slots = 1});
  const VariantId four = Add(4);
  const int captures = device_.captures();
  for (int i = 0; i < kRunsBeforeCapture; ++i) Serve(four, 2, 4);
  EXPECT_EQ(device_.captures(), captures);
  const int launches = device_.graph_launches();
  for (int i = 0; i < 3; ++i) Serve(four, 2, 4);
  EXPECT_EQ(device_.captures(), captures + 1);
  EXPECT_EQ(device_.graph_launches(), launches + 3);
  // Another bucket is another graph.
  Serve(four, 4, 4);
  EXPECT_EQ(device_.graph_launches(), launches + 3);
  const size_t live = device_.live();
  ASSERT_TRUE(instance_->DropVariant(four).ok());
  EXPECT_EQ(device_.live(), live - 1);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(VariantsTest, WeightsThatOnlyOneHasAreUploadedAndGoWithIt) {
  Make();
  const int64_t free = device_.Memory()->free_bytes;
  const VariantId own = Add(3, true);
  EXPECT_LT(device_.Memory()->free_bytes, free);
  EXPECT_EQ(instance_->memory().added_weight_bytes,
            free - device_.Memory()->free_bytes);
  Serve(own, 2, 3, true);
  ASSERT_TRUE(instance_->DropVariant(own).ok());
  EXPECT_EQ(instance_->memory().added_weight_bytes, 0);
  EXPECT_EQ(device_.Memory()->free_bytes, free);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(VariantsTest, RefusalsNameWhatIsMissing) {
  Make({.max_variants = 1});
  const auto refusal = [&](int64_t steps) {
    return instance_->AddVariant(model_.MakeProgram(steps), model_.Data())
        .status();
  };
  const Status large = refusal(kScales);
  EXPECT_EQ(large.code(), Code::kResourceExhausted);
  EXPECT_THAT(large.message(), HasSubstr("at batch 1"));
  EXPECT_THAT(large.message(), HasSubstr("are reserved"));
  const VariantId one = Add(1);
  EXPECT_THAT(refusal(2).message(), HasSubstr("1 programs of other sizes"));
  Request request = {.rows = 1, .steps = 1};
  ASSERT_TRUE(Begin(one, request));
  EXPECT_TRUE(instance_->InUse(one));
  EXPECT_EQ(instance_->DropVariant(one).code(), Code::kFailedPrecondition);
  instance_->Release(request.slot);
  EXPECT_TRUE(instance_->DropVariant(one).ok());
  EXPECT_EQ(instance_->DropVariant(one).code(), Code::kFailedPrecondition);
  EXPECT_EQ(instance_->DropVariant(kFirstProgram).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(instance_->Acquire(1, one).status().code(),
            Code::kFailedPrecondition);
  EXPECT_THAT(instance_->Acquire(kMostRows + 1, Add(1)).status().message(),
              HasSubstr("is outside 1 to 6"));
  instance_->Unload();
  EXPECT_EQ(refusal(1).code(), Code::kFailedPrecondition);
}

// Whichever call fails, the instance reports it and leaks nothing.
TEST_F(VariantsTest, EveryCallMayFail) {
  for (const Code code : {Code::kInternal, Code::kUnavailable}) {
    for (int n = 1; n < 60; ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      Make({.num_slots = 1});
      device_.FailCall(n, code);
      Status status;
      auto added =
          instance_->AddVariant(model_.MakeProgram(3, true), model_.Data(true));
      status = added.status();
      for (int i = 0; i < kRunsBeforeCapture + 2 && status.ok(); ++i) {
        Request request = {.rows = 1, .steps = 3, .owns = true};
        ASSERT_TRUE(Begin(*added, request));
        status = instance_->Submit(request.slot);
        if (status.ok()) status = instance_->Wait(request.slot);
        if (status.ok()) Compare(request);
        instance_->Release(request.slot);
      }
      if (!status.ok()) {
        EXPECT_EQ(status.code(), code) << status.ToString();
        EXPECT_EQ(instance_->state(), Instance::State::kFailed);
      }
      instance_.reset();
      ASSERT_TRUE(device_.Reset().ok());
      EXPECT_EQ(device_.live(), 0u);
    }
  }
  EXPECT_THAT(device_.violations(), IsEmpty());
}

// Adding and dropping variants, and all calls of a request, in random order.
TEST_F(VariantsTest, RandomWalks) {
  Make({.max_variants = 4});
  struct Known {
    int64_t steps;
    bool owns;
  };
  std::map<VariantId, Known> known = {{kFirstProgram, {kMostSteps, false}}};
  std::deque<Request> filling, submitted;
  int served = 0;
  for (int step = 0; step < 600; ++step) {
    switch (random_() % 8) {
      case 0: {
        const auto steps = static_cast<int64_t>(1 + random_() % kMostSteps);
        const bool owns = random_() % 4 == 0;
        auto added = instance_->AddVariant(model_.MakeProgram(steps, owns),
                                           model_.Data(owns));
        ASSERT_EQ(added.ok(), known.size() <= 4) << added.status().ToString();
        if (added.ok()) {
          ASSERT_FALSE(known.contains(*added));
          known[*added] = {steps, owns};
        }
        break;
      }
      case 1: {
        auto victim = known.begin();
        std::advance(victim, random_() % known.size());
        const bool in_use = instance_->InUse(victim->first);
        const bool may = victim->first != kFirstProgram && !in_use;
        ASSERT_EQ(instance_->DropVariant(victim->first).ok(), may);
        if (may) known.erase(victim);
        break;
      }
      case 2:
      case 3:
      case 4: {
        auto of = known.begin();
        std::advance(of, random_() % known.size());
        Request request;
        request.steps = of->second.steps;
        request.owns = of->second.owns;
        request.rows = static_cast<int64_t>(
            1 + random_() % instance_->MaxBatch(of->first));
        if (Begin(of->first, request)) {
          if (random_() % 2 == 0) {
            ASSERT_TRUE(instance_->Upload(request.slot).ok());
          }
          filling.push_back(std::move(request));
        }
        break;
      }
      case 5:
      case 6:
        if (filling.empty()) break;
        if (random_() % 8 == 0) {
          instance_->Release(filling.front().slot);
        } else {
          ASSERT_TRUE(instance_->Submit(filling.front().slot).ok());
          submitted.push_back(std::move(filling.front()));
        }
        filling.pop_front();
        break;
      case 7:
        device_.RunSome();
        if (submitted.empty()) break;
        End(submitted.front());
        submitted.pop_front();
        ++served;
        break;
    }
    if (HasFatalFailure()) return;
    if (random_() % 150 == 0) {
      for (auto* requests : {&filling, &submitted}) {
        for (const Request& request : *requests) {
          instance_->Release(request.slot);
        }
        requests->clear();
      }
      instance_->Unload();
      EXPECT_EQ(device_.live(), 0u);
      ASSERT_TRUE(instance_->Load().ok());
      known = {{kFirstProgram, {kMostSteps, false}}};
    }
  }
  EXPECT_GT(served, 20);
  instance_.reset();
  EXPECT_EQ(device_.live(), 0u);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::runtime::cuda
