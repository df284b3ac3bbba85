// Inputs of programs on a device that checks every access: their way to the
// device, and ids among them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/cuda/testing/instance_fixture.h"

namespace refract::runtime::cuda {
namespace {

using bench::DenseModel;
using testing::Fixture;
using ::testing::HasSubstr;
using testing::Inputs;
using testing::InstanceTest;
using ::testing::IsEmpty;
using testing::LookUpInputs;
using testing::LookUpModel;

using InstanceInputsTest = InstanceTest;

// An input per table, of several widths and types, more than one launch takes;
// ids, and an input that all rows share.
TEST_F(InstanceInputsTest, ManyInputsReachTheDeviceTogether) {
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

TEST_F(InstanceInputsTest, RowsOfTablesAreFound) {
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
    EXPECT_THAT(f.device.violations(), IsEmpty());
  }
}

TEST_F(InstanceInputsTest, ABadIndexEndsItsRequestOnly) {
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
  EXPECT_EQ(f.instance->state(), Instance::State::kReady);
  EXPECT_THAT(f.device.violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::runtime::cuda
