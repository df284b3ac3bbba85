// Tables of more than 2^31 elements: look-ups of every kind count in 64 bits.
// The table is reserved address space; only the written pages take memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda/kernels/dispatch.h"
#include "runtime/cuda/program/device_program.h"
#include "runtime/cuda/program/lowering.h"
#include "runtime/cuda/program/memory_plan.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/emulated_kernels.h"

namespace refract::runtime::cuda {
namespace {

using testing::CheckedDevice;
using ::testing::HasSubstr;

constexpr Rows kTableItems{1, 0};
// The largest table of MLPerf's DLRM: 5.1 · 10^9 elements, more than 2^32.
constexpr int64_t kRows = 40'000'000;
constexpr int64_t kTableDim = 128;

// kRows · kTableDim floats, all zero until they are written.
class SparseTable {
 public:
  SparseTable() {
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) data_ = static_cast<float*>(memory);
  }
  ~SparseTable() {
    if (data_ != nullptr) munmap(data_, kBytes);
  }
  SparseTable(const SparseTable&) = delete;
  SparseTable& operator=(const SparseTable&) = delete;

  float* data() const { return data_; }
  // The value of element `col` of a written row; rows differ.
  static float At(int64_t row, int64_t col) {
    return static_cast<float>(row % 1000003 + col);
  }
  void Write(int64_t row) {
    for (int64_t col = 0; col < kTableDim; ++col) {
      data_[row * kTableDim + col] = At(row, col);
    }
  }

 private:
  static constexpr size_t kBytes = kRows * kTableDim * sizeof(float);
  float* data_ = nullptr;
};

// One look-up of each kind.
struct Model {
  DeviceProgramBuilder builder{"large"};
  ValueId table, ids;
  std::vector<ValueId> outputs;

  explicit Model(int64_t rows = kRows)
      : table(builder.Weight("table", DType::kFloat32, rows, kTableDim)),
        ids(builder.Input("ids", DType::kInt64, kTableItems, 1)) {
    const TensorRef whole = {table, {0, 0}, {{0, kTableDim}, {0, 1}}};
    Take take;
    take.table = whole;
    take.ids = {ids, {0, 0}, {{0, 1}, {0, 0}}};
    take.out = {Out("take"), {0, 0}, {{0, kTableDim}, {0, 0}, {0, 1}}};
    take.table_rows = rows;
    take.dim = kTableDim;
    builder.Takes({.rows = kTableItems, .takes = {take}});
    Bag bag;
    bag.table = whole;
    bag.ids = {ids, {0, 0}, {{0, 1}}};
    bag.length = 1;
    bag.entries = kTableItems;
    bag.out = {Out("bag"), {0, 0}, {{0, kTableDim}, {0, 1}}};
    bag.table_rows = rows;
    bag.dim = kTableDim;
    builder.Bags({.rows = kTableItems, .bags = {bag}});
    LookUpOp look_up;
    look_up.dims = {kTableItems, {0, kTableDim}};
    look_up.table = {table, {0, 0}, {{0, 0}, {0, 1}}};
    look_up.index = {ids, {0, 0}, {{0, 1}, {0, 0}}};
    look_up.out = {Out("look-up"), {0, 0}, {{0, kTableDim}, {0, 1}}};
    look_up.row_stride = {0, kTableDim};
    look_up.table_rows = rows;
    builder.LookUp(look_up);
  }
  ValueId Out(const std::string& name) {
    outputs.push_back(
        builder.Output(name, DType::kFloat32, kTableItems, kTableDim));
    return outputs.back();
  }
  std::string Why() {
    auto program = std::move(builder).Build(16);
    return program.ok() ? "fine" : program.status().message();
  }
};

TEST(LargeTablesTest, RowsBeyond32BitsAreFound) {
  SparseTable table;
  if (table.data() == nullptr) GTEST_SKIP() << "no address space for 20 GB";
  const unsigned seed = base::RandomSeed();
  std::mt19937_64 random(seed);
  // Rows around 2^31 and 2^32 elements and bytes, both ends, and random rows.
  std::vector<int64_t> ids = {0, kRows - 1, kRows, -1};
  for (const int bits : {29, 30, 31, 32}) {
    const int64_t row = (int64_t{1} << bits) / kTableDim;
    ids.insert(ids.end(), {row - 1, row, row + 1});
  }
  while (ids.size() < 32) {
    ids.push_back(static_cast<int64_t>(random() % kRows));
  }
  const auto batch = static_cast<int64_t>(ids.size());
  for (const int64_t id : ids) {
    if (id >= 0 && id < kRows) table.Write(id);
  }
  Model model;
  auto program = std::move(model.builder).Build(batch);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_GE(PlanMemory(*program, batch, batch).weight_bytes,
            kRows * kTableDim * 4);
  std::vector<std::vector<float>> outputs(
      3, std::vector<float>(static_cast<size_t>(batch * kTableDim), -1));
  const auto batch32 = static_cast<int32_t>(batch);
  for (size_t i = 0; i < 3; ++i) {
    int32_t faults = 0;
    testing::EmulatedKernels kernels(seed);
    const Call call =
        Lower(program->ops[i],
              {.program = *program,
               .batch = batch,
               .device_batch = &batch32,
               .faults = &faults},
              [&](ValueId id) -> void* {
                if (id == model.table) return table.data();
                if (id == model.ids) return ids.data();
                return outputs[static_cast<size_t>(
                                   std::find(model.outputs.begin(),
                                             model.outputs.end(), id) -
                                   model.outputs.begin())]
                    .data();
              });
    kernels.Run(call);
    EXPECT_EQ(faults, 2);
    for (size_t row = 0; row < ids.size(); ++row) {
      const bool found = ids[row] >= 0 && ids[row] < kRows;
      for (int64_t col = 0; col < kTableDim; ++col) {
        ASSERT_EQ(outputs[i][row * kTableDim + static_cast<size_t>(col)],
                  found ? SparseTable::At(ids[row], col) : 0)
            << program->ops[i].name << ", id " << ids[row];
      }
    }
  }
}

TEST(LargeTablesTest, ErrorsNameTheTable) {
  EXPECT_EQ(Model().Why(), "fine");
  // More rows than any memory has bytes.
  EXPECT_THAT(Model(int64_t{1} << 48).Why(),
              HasSubstr("value table: is larger than any memory"));
  EXPECT_THAT(Model(std::numeric_limits<int64_t>::max()).Why(),
              HasSubstr("value table: is larger than any memory"));
  // Operands other than tables are counted in 32 bits.
  const auto why = [](auto add) {
    Model model;
    add(model);
    return model.Why();
  };
  EXPECT_THAT(why([](Model& m) {
                MapOp map;
                map.dims = {kTableItems, {0, kTableDim}};
                const std::vector<Rows> strides = {{0, kTableDim}, {0, 1}};
                map.inputs = {{{m.table, {0, 0}, strides}}};
                map.code = {{ElementCode::kCopy, 0}};
                map.out = {m.Out("map"), {0, 0}, strides};
                m.builder.Map(map);
              }),
              HasSubstr("operator map: table has more than 2^31 elements, "
                        "which only tables of look-ups may"));
  EXPECT_THAT(
      why([](Model& m) {
        const ValueId x =
            m.builder.Input("x", DType::kFloat32, kTableItems, kTableDim);
        m.builder.Linear({.in = x, .weight = m.table, .out = m.Out("linear")});
      }),
      HasSubstr("operator linear: table has more than 2^31 elements"));
}

// A table that does not fit is refused with the bytes that it needs, before
// anything is touched.
TEST(LargeTablesTest, WhatDoesNotFitNamesItsBytes) {
  const SparseTable table;
  if (table.data() == nullptr) GTEST_SKIP() << "no address space for 20 GB";
  CheckedDevice device(base::RandomSeed(), int64_t{4} << 30);
  auto instance = Instance::Create(
      device, *std::move(Model().builder).Build(4),
      {{.data = table.data(), .count = kRows * kTableDim}},
      {.max_batch = 4, .num_slots = 1, .workspace_bytes = 256});
  ASSERT_TRUE(instance.ok()) << instance.status().ToString();
  const Status status = (*instance)->Load();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("model large needs 2048000"));
  EXPECT_THAT(status.message(), HasSubstr(" of 4294967296 on the device"));
}

}  // namespace
}  // namespace refract::runtime::cuda
