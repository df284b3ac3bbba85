#include "runtime/cuda/program/switches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/random_programs.h"
#include "runtime/cuda/instance/instance.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/device/device_fixture.h"
#include "tests/runtime/cuda/device/fake_cuda.h"

namespace refract::runtime::cuda {
namespace {

using testing::FakeCuda;
using ::testing::HasSubstr;
using testing::MakeDevice;
using testing::SmallModel;
using testing::TheFakeCuda;

class SwitchesTest : public testing::CudaDeviceTest {};

// With a mechanism switched off, nothing of it runs, and results are right.
TEST_F(SwitchesTest, EachMechanismCanBeDoneWithout) {
  const unsigned seed = base::RandomSeed();
  for (Mechanism mechanism : kMechanisms) {
    SCOPED_TRACE(Name(mechanism));
    std::mt19937 random(seed);
    for (const bool off : {false, true}) {
      SCOPED_TRACE(off);
      TheFakeCuda() = FakeCuda{};
      TheFakeCuda().fault = std::string(Name(mechanism)) + ":counted";
      if (off) {
        setenv(kWithoutVariable, Name(mechanism), 1);
      } else {
        unsetenv(kWithoutVariable);
      }
      const auto device = MakeDevice();
      EXPECT_EQ(device->can_capture(), !off || mechanism != Mechanism::kGraphs);
      std::vector<bench::Case> cases;
      for (int i = 0; i < 2; ++i) cases.push_back(bench::RandomCase(random));
      bench::Case& model = cases.emplace_back();
      model.model = SmallModel(0, bench::Precision::kFloat16);
      model.batch = 3;
      model.inputs = bench::RandomInputs(model.model.program, 3, random);
      model.tolerance = 6e-2;
      for (const bench::Case& c : cases) {
        auto instance = Instance::Create(
            *device, c.model.program, c.model.weight_data(),
            {.max_batch = c.batch, .num_slots = 1, .workspace_bytes = 512});
        ASSERT_TRUE(instance.ok());
        const Status loaded = (*instance)->Load();
        ASSERT_TRUE(loaded.ok()) << loaded.ToString();
        std::vector<std::vector<double>> got;
        ASSERT_TRUE(bench::RunOnce(**instance, c.batch, c.inputs, got).ok());
        EXPECT_LE(bench::LargestError(
                      got, bench::RunReference(c.model.program, c.model.weights,
                                               c.inputs, c.batch)),
                  c.tolerance)
            << c.what;
      }
      if (off) {
        EXPECT_EQ(TheFakeCuda().faults, 0);
        continue;
      }
      // These programs have no bags and copy no narrow rows; trials have no
      // kernel of their own.
      if (mechanism != Mechanism::kMergedTables &&
          mechanism != Mechanism::kRowCopies &&
          mechanism != Mechanism::kProductTrials) {
        EXPECT_GT(TheFakeCuda().faults, 0);
      }
    }
  }
}

TEST_F(SwitchesTest, NarrowRowsAreCopiedByTheEngineWhereTheKernelIsOff) {
  for (const bool off : {false, true}) {
    setenv(kWithoutVariable, off ? "graphs,row_copies" : "graphs", 1);
    const auto device = MakeDevice();
    const auto stream = device->CreateStream();
    std::vector<char> from(300 * 8, 1), to(300 * 16);
    const int before = TheFakeCuda().row_copies;
    ASSERT_TRUE(device
                    ->CopyToDevice({.to = to.data(),
                                    .to_pitch = 16,
                                    .from = from.data(),
                                    .from_pitch = 8,
                                    .row_bytes = 8,
                                    .rows = 300},
                                   *stream)
                    .ok());
    EXPECT_EQ(TheFakeCuda().row_copies - before, off ? 0 : 1);
    EXPECT_EQ(to[299 * 16 + 7], 1);
    EXPECT_EQ(to[299 * 16 + 8], 0);
    EXPECT_TRUE(device->DestroyStream(*stream).ok());
  }
}

TEST_F(SwitchesTest, ASwitchThatThereIsNotIsNamed) {
  setenv(kWithoutVariable, "tile_products,speed", 1);
  const auto device = CudaDevice::Create(0);
  EXPECT_EQ(device.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(device.status().message(),
              HasSubstr("REFRACT_CUDA_WITHOUT names speed, which is none of "
                        "tile_products, row_products, "));
}

// One look-up of two items in `table`, of rows of two columns, as if it were
// three; each writes two columns of the items' rows in `out`.
template <typename LookUpCall>
LookUpCall ThreeTables(const int32_t& batch, int32_t& faults,
                       const std::vector<float>& table,
                       const std::vector<int64_t>& ids,
                       std::vector<float>& out) {
  LookUpCall call;
  call.batch = &batch;
  call.faults = &faults;
  call.rows = 2;
  call.rows_per_item = 1;
  call.num_tables = 3;
  for (int i = 0; i < 3; ++i) {
    auto& one = call.tables[i];
    one.table = table.data();
    one.ids = ids.data();
    one.out = out.data() + 2 * i;
    one.table_rows = 3;
    one.row_stride = 2;
    one.out_stride = 6;
    one.dim = 2;
  }
  return call;
}

TEST_F(SwitchesTest, TablesAreReadOneByOneWhereMergingIsOff) {
  for (const bool off : {false, true}) {
    setenv(kWithoutVariable, off ? "merged_tables,wide_kernels" : "", 1);
    TheFakeCuda().plain_launches = 0;
    TheFakeCuda().fault = "merged_tables:counted";
    TheFakeCuda().faults = 0;
    const auto device = MakeDevice();
    const auto stream = device->CreateStream();
    const std::vector<float> table = {1, 2, 3, 4, 5, 6};
    const std::vector<int64_t> ids = {2, 0, 1, 1};
    std::vector<float> out(3 * 4);
    int32_t batch = 2, faults = 0;
    auto bags = ThreeTables<BagsCall>(batch, faults, table, ids, out);
    for (int i = 0; i < 3; ++i) {
      BagTable& one = bags.tables[i];
      one.entries = 4;
      one.length = 2;
      one.entries_per_item = 2;
    }
    ASSERT_TRUE(device->Launch(Call(bags), *stream, Start::kAfter).ok());
    EXPECT_EQ(out, (std::vector<float>{6, 8, 6, 8, 6, 8, 6, 8, 6, 8, 6, 8}));
    EXPECT_EQ(faults, 0);
    EXPECT_EQ(TheFakeCuda().plain_launches, off ? 3 : 0);
    EXPECT_EQ(TheFakeCuda().faults, off ? 0 : 1);
    auto takes = ThreeTables<TakesCall>(batch, faults, table, ids, out);
    for (int i = 0; i < 3; ++i) takes.tables[i].ids = ids.data() + i;
    ASSERT_TRUE(device->Launch(Call(takes), *stream, Start::kAfter).ok());
    EXPECT_EQ(out, (std::vector<float>{5, 6, 1, 2, 3, 4, 1, 2, 3, 4, 3, 4}));
    EXPECT_EQ(faults, 0);
    EXPECT_EQ(TheFakeCuda().plain_launches, off ? 6 : 0);
    EXPECT_EQ(TheFakeCuda().faults, off ? 0 : 2);
    EXPECT_TRUE(device->DestroyStream(*stream).ok());
  }
}

}  // namespace
}  // namespace refract::runtime::cuda
