// Bags of table rows: the kernel on an emulated GPU against loops in double
// precision, refusals, and requests with any number of entries on a checked
// device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda/kernels/dispatch.h"
#include "runtime/cuda/program/device_program.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {
namespace {

using testing::CheckedDevice;
using testing::EmulatedLauncher;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Rounding;

// Elements in memory of exactly their size, so that sanitizers see accesses
// outside; `shift` elements after a 256-byte boundary. Floats are initialised
// to NaN.
class Memory {
 public:
  Memory(DType dtype, int64_t count, int64_t shift = 0)
      : dtype_(dtype), size_(static_cast<size_t>(SizeOf(dtype))) {
    const size_t bytes = static_cast<size_t>(count + shift) * size_;
    // From the end of the block backwards, as far as alignment allows.
    memory_.reset(
        static_cast<unsigned char*>(std::aligned_alloc(256, Up(bytes))));
    std::memset(memory_.get(), 0xFF, Up(bytes));
    data_ = memory_.get() + static_cast<size_t>(shift) * size_;
  }
  void* data() const { return data_; }
  double at(int64_t i) const {
    if (dtype_ == DType::kInt64) {
      return static_cast<double>(reinterpret_cast<const int64_t*>(data_)[i]);
    }
    if (dtype_ == DType::kInt32) {
      return reinterpret_cast<const int32_t*>(data_)[i];
    }
    return Load(data_, dtype_, i);
  }
  void Set(int64_t i, double value) {
    if (dtype_ == DType::kInt64) {
      reinterpret_cast<int64_t*>(data_)[i] = static_cast<int64_t>(value);
    } else if (dtype_ == DType::kInt32) {
      reinterpret_cast<int32_t*>(data_)[i] = static_cast<int32_t>(value);
    } else {
      Store(static_cast<float>(value), data_, dtype_, i);
    }
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static size_t Up(size_t bytes) {
    return (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
  }
  DType dtype_;
  size_t size_;
  std::unique_ptr<unsigned char, Free> memory_;
  unsigned char* data_;
};

class BagsKernelTest : public ::testing::Test {
 protected:
  struct Table {
    BagTable call;
    std::vector<Memory> memory;  // what the call points to
    // Per bag: its entries; or that it is none.
    std::vector<std::pair<int64_t, int64_t>> bags;
    std::vector<bool> wrong;
    const Memory* ids = nullptr;
    const Memory* table = nullptr;
    const Memory* weights = nullptr;
    const Memory* out = nullptr;
  };

  int64_t Pick(std::initializer_list<int64_t> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  bool Coin(int of = 2) { return random_() % static_cast<unsigned>(of) == 0; }
  DType Floating() {
    constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16,
                                 DType::kBFloat16};
    return kFloats[random_() % 3];
  }
  DType Integer() { return Coin() ? DType::kInt32 : DType::kInt64; }

  // The request has `used` of `rows` bags and `batch` of `bucket` items.
  void Make(int64_t rows, int64_t used, int64_t batch, int64_t bucket,
            Table& t) {
    BagTable& call = t.call;
    t.memory.reserve(5);
    call.mode = static_cast<BagMode>(random_() % 3);
    call.outside = static_cast<Outside>(random_() % 3);
    call.table_rows = static_cast<int32_t>(Pick({1, 5, 40}));
    call.dim = static_cast<int32_t>(Pick({1, 3, 4, 8, 16, 20, 64, 136, 300}));
    call.dtype = Floating();
    call.out_dtype = Coin() ? call.dtype : Floating();
    if (Coin(3)) {
      call.padding_id = static_cast<int64_t>(random_() % call.table_rows);
    }
    // Some lie so that 16 bytes can be read at once.
    const bool aligned = !Coin(3);
    const auto ld = [&](DType dtype) {
      return aligned ? PaddedLd(call.dim, dtype) : call.dim + 1;
    };
    const int64_t shift = aligned ? 0 : 1;

    call.row_stride = static_cast<int32_t>(ld(call.dtype));
    Memory& table = t.memory.emplace_back(
        call.dtype, call.table_rows * call.row_stride, shift);
    for (int64_t row = 0; row < call.table_rows; ++row) {
      for (int64_t col = 0; col < call.dim; ++col) {
        table.Set(row * call.row_stride + col, Number());
      }
    }
    call.table = table.data();
    t.table = &table;

    if (Coin(3)) {
      call.length = static_cast<int32_t>(Pick({0, 1, 4, 11}));
      call.entries = static_cast<int32_t>(rows * call.length);
      call.fixed_entries = call.entries;
      for (int64_t row = 0; row < rows; ++row) {
        t.bags.emplace_back(row * call.length, (row + 1) * call.length);
      }
      t.wrong.assign(static_cast<size_t>(rows), false);
    } else {
      MakeOffsets(rows, used, batch, bucket, t);
    }

    call.id_dtype = Integer();
    call.id_stride = static_cast<int32_t>(Pick({1, 3}));
    Memory& ids =
        t.memory.emplace_back(call.id_dtype, call.entries * call.id_stride);
    for (int64_t i = 0; i < call.entries; ++i) {
      // A few are outside.
      ids.Set(i * call.id_stride,
              Coin(9) ? static_cast<double>(
                            Pick({-1, -1000000, call.table_rows, 2147483647}))
                      : static_cast<double>(random_() % call.table_rows));
    }
    call.ids = ids.data();
    t.ids = &ids;

    if (call.mode == BagMode::kSum && Coin()) {
      call.weight_dtype = Floating();
      call.weight_stride = static_cast<int32_t>(Pick({1, 2}));
      Memory& weights = t.memory.emplace_back(
          call.weight_dtype, call.entries * call.weight_stride);
      for (int64_t i = 0; i < call.entries; ++i) {
        weights.Set(i * call.weight_stride, Number());
      }
      call.weights = weights.data();
      t.weights = &weights;
    }

    call.out_stride = static_cast<int32_t>(ld(call.out_dtype));
    Memory& out =
        t.memory.emplace_back(call.out_dtype, rows * call.out_stride, shift);
    call.out = out.data();
    t.out = &out;
  }

  void MakeOffsets(int64_t rows, int64_t used, int64_t batch, int64_t bucket,
                   Table& t) {
    BagTable& call = t.call;
    call.include_last = Coin();
    std::vector<int64_t> offsets = {0};
    for (int64_t row = 0; row < used; ++row) {
      offsets.push_back(offsets.back() + Pick({0, 0, 1, 2, 7, 40}));
    }
    // Room beyond the bags if the request marks their end, and beyond the
    // request in a larger bucket.
    const int64_t brought =
        offsets.back() + (call.include_last ? Pick({0, 5}) : 0);
    const int64_t most = batch > 0 ? brought / batch : 5;
    call.entries_per_item =
        static_cast<int32_t>(random_() % static_cast<unsigned>(most + 1));
    call.fixed_entries =
        static_cast<int32_t>(brought - batch * call.entries_per_item);
    call.entries = static_cast<int32_t>(call.fixed_entries +
                                        bucket * call.entries_per_item);
    if (used > 0 && Coin(4)) {
      offsets[random_() % static_cast<size_t>(used)] +=
          Pick({-1, -1000000000, 1, 50, 1000000000});
    }
    call.offset_dtype = Integer();
    call.offset_stride = static_cast<int32_t>(Pick({1, 2}));
    Memory& memory = t.memory.emplace_back(
        call.offset_dtype,
        (rows + (call.include_last ? 1 : 0)) * call.offset_stride);
    // The rest of the bucket has arbitrary contents.
    const int64_t given = used + (call.include_last && used > 0 ? 1 : 0);
    for (int64_t row = 0; row < given; ++row) {
      memory.Set(row * call.offset_stride,
                 static_cast<double>(offsets[static_cast<size_t>(row)]));
    }
    call.offsets = memory.data();
    for (int64_t row = 0; row < used; ++row) {
      const int64_t begin = offsets[static_cast<size_t>(row)];
      const int64_t end = row + 1 < used || call.include_last
                              ? offsets[static_cast<size_t>(row) + 1]
                              : brought;
      t.wrong.push_back(begin < 0 || end < begin || end > brought ||
                        (row == 0 && begin != 0));
      t.bags.emplace_back(begin, end);
    }
  }

  double Number() {
    return static_cast<double>(random_() % 4096) / 2048.0 - 1.0;
  }

  // The expected column `col` of a bag, and the sum of magnitudes for the
  // tolerance.
  double Want(const Table& t, int64_t row, int64_t col, double* magnitude,
              int64_t* faults) {
    const BagTable& call = t.call;
    double result = 0;
    int64_t taken = 0;
    const auto [begin, end] = t.bags[static_cast<size_t>(row)];
    for (int64_t i = begin; i < end; ++i) {
      auto id = static_cast<int64_t>(t.ids->at(i * call.id_stride));
      bool inside = id >= 0 && id < call.table_rows;
      if (inside && id == call.padding_id) continue;
      if (!inside && call.outside == Outside::kFault) ++*faults;
      if (!inside && call.outside == Outside::kFirstRow) {
        id = 0;
        inside = true;
      }
      double value = inside ? t.table->at(id * call.row_stride + col) : 0;
      if (t.weights != nullptr && inside) {
        value *= t.weights->at(i * call.weight_stride);
      }
      ++taken;
      if (call.mode == BagMode::kMaximum) {
        result = taken == 1 ? value : std::max(result, value);
      } else {
        result += value;
      }
      *magnitude += std::fabs(value);
    }
    if (call.mode == BagMode::kMean && taken > 1) {
      result /= static_cast<double>(taken);
    }
    return result;
  }

  const unsigned seed_ = base::RandomSeed();
  std::mt19937 random_{seed_};
  EmulatedLauncher launcher_{seed_};
};

TEST_F(BagsKernelTest, AgreesWithLoops) {
  for (int round = 0; round < 80 && !HasFatalFailure(); ++round) {
    const int64_t per_item = Pick({1, 1, 2});
    const int64_t fixed = Pick({0, 0, 1});
    const int64_t bucket = Pick({1, 3, 8});
    const auto batch = static_cast<int32_t>(random_() % (bucket + 1));
    const int64_t rows = bucket * per_item + fixed;
    const int64_t used = batch * per_item + fixed;
    int32_t faults = 0;
    BagsCall call;
    call.batch = &batch;
    call.faults = &faults;
    call.rows = rows;
    call.rows_per_item = per_item;
    call.fixed_rows = fixed;
    call.num_tables = static_cast<int32_t>(Pick({1, 2, 5, kMaxBagTables}));
    std::vector<Table> tables(static_cast<size_t>(call.num_tables));
    for (size_t i = 0; i < tables.size(); ++i) {
      Make(rows, used, batch, bucket, tables[i]);
      call.tables[i] = tables[i].call;
    }
    Dispatch(call, launcher_);
    int64_t want_faults = 0;
    for (size_t i = 0; i < tables.size(); ++i) {
      const Table& t = tables[i];
      for (int64_t row = 0; row < rows; ++row) {
        const bool is_bag = row < used && !t.wrong[static_cast<size_t>(row)];
        want_faults += row < used && !is_bag;
        for (int64_t col = 0; col < t.call.dim; ++col) {
          double magnitude = 0;
          int64_t own_faults = 0;
          const double want =
              is_bag ? Want(t, row, col, &magnitude, &own_faults) : 0;
          if (col == 0) want_faults += own_faults;
          const double got = t.out->at(row * t.call.out_stride + col);
          ASSERT_NEAR(got, want,
                      1e-30 + magnitude * std::ldexp(1.0, -18) +
                          std::fabs(want) * 2 * Rounding(t.call.out_dtype))
              << "table " << i << ", row " << row << ", column " << col;
        }
      }
    }
    ASSERT_EQ(faults, want_faults);
  }
}

// A NaN stays if it comes first and never replaces a number, as in PyTorch.
TEST_F(BagsKernelTest, TheLargestAndNaN) {
  constexpr int64_t kDim = 40;
  for (const bool aligned : {true, false}) {
    const int64_t shift = aligned ? 0 : 1;
    Memory table(DType::kFloat32, 2 * kDim, shift), ids(DType::kInt32, 4),
        out(DType::kFloat32, 2 * kDim, shift);
    for (int64_t col = 0; col < kDim; ++col) {
      table.Set(col, NAN);
      table.Set(kDim + col, -3);
    }
    for (int64_t i = 0; i < 4; ++i) ids.Set(i, static_cast<double>(i % 3 == 0));
    const int32_t batch = 2;
    int32_t faults = 0;
    BagsCall call;
    call.batch = &batch;
    call.faults = &faults;
    call.rows = 2;
    call.rows_per_item = 1;
    call.num_tables = 1;
    BagTable& bag = call.tables[0];
    bag.table = table.data();
    bag.ids = ids.data();
    bag.out = out.data();
    bag.table_rows = bag.length = 2;
    bag.row_stride = bag.out_stride = bag.dim = kDim;
    bag.entries = bag.fixed_entries = 4;
    bag.mode = BagMode::kMaximum;
    bag.id_dtype = DType::kInt32;
    Dispatch(call, launcher_);
    for (int64_t col = 0; col < kDim; ++col) {
      ASSERT_EQ(out.at(col), -3);                   // rows 1, 0
      ASSERT_TRUE(std::isnan(out.at(kDim + col)));  // rows 0, 1
    }
  }
}

TEST(BagsDispatchTest, WideAccessesOnlyWhereTheyAreAligned) {
  alignas(256) static unsigned char memory[256];
  BagsCall call;
  call.num_tables = 2;
  for (int i = 0; i < 2; ++i) {
    BagTable& bag = call.tables[i];
    bag.table = bag.out = memory;
    bag.dim = bag.row_stride = bag.out_stride = 8;
  }
  EXPECT_TRUE(Bags<4>::Takes(call));
  EXPECT_FALSE(Bags<8>::Takes(call));  // of two bytes
  const auto changed = [&](auto change) {
    BagsCall other = call;
    change(other.tables[1]);
    return other;
  };
  for (const BagsCall& other :
       {changed([](BagTable& b) { b.table = memory + 4; }),
        changed([](BagTable& b) { b.out = memory + 8; }),
        changed([](BagTable& b) { b.row_stride = 9; }),
        changed([](BagTable& b) { b.out_stride = 10; }),
        changed([](BagTable& b) { b.dim = 6; }),
        changed([](BagTable& b) { b.dtype = DType::kFloat16; })}) {
    EXPECT_FALSE(Bags<4>::Takes(other));
    EXPECT_TRUE(Bags<1>::Takes(other));
  }
  for (int i = 0; i < 2; ++i) call.tables[i].dtype = DType::kBFloat16;
  EXPECT_FALSE(Bags<8>::Takes(call));  // results of 32 bytes
  for (int i = 0; i < 2; ++i) call.tables[i].out_dtype = DType::kFloat16;
  EXPECT_TRUE(Bags<8>::Takes(call));
}

// --- Programs ----------------------------------------------------------------

constexpr Rows kBagItems{1, 0};
constexpr int64_t kCapacity = 50;
constexpr int64_t kTableRows = 9;
constexpr int64_t kDim = 4;

struct BagParts {
  DeviceProgramBuilder builder{"m"};
  ValueId table = builder.Weight("table", DType::kFloat32, kTableRows, kDim);
  ValueId offsets = builder.Input("offsets", DType::kInt64, {1, 1}, 1);
  ValueId ids = builder.CountedInput("ids", DType::kInt64, kCapacity);
  ValueId weights = builder.CountedInput("weights", DType::kFloat32, kCapacity);
  ValueId out = builder.Output("out", DType::kFloat32, kBagItems, kDim);
  BagsOp op{.rows = kBagItems, .bags = {Bag()}};

  BagParts() {
    Bag& bag = op.bags[0];
    bag.table = {table, {0, 0}, {{0, kDim}, {0, 1}}};
    bag.offsets = {offsets, {0, 0}, {{0, 1}}};
    bag.ids = {ids, {0, 0}, {{0, 1}}};
    bag.weights = {weights, {0, 0}, {{0, 1}}};
    bag.out = {out, {0, 0}, {{0, kDim}, {0, 1}}};
    bag.entries = {0, kCapacity};
    bag.table_rows = kTableRows;
    bag.dim = kDim;
    bag.include_last = true;
  }
  Bag& bag() { return op.bags[0]; }
  std::string Why() {
    builder.Bags(op);
    auto program = std::move(builder).Build(16);
    return program.ok() ? "fine" : program.status().message();
  }
};

TEST(BagsOpTest, ErrorsNameOperatorAndValue) {
  EXPECT_EQ(BagParts().Why(), "fine");
  const auto why = [](auto change) {
    BagParts parts;
    change(parts);
    return parts.Why();
  };
  EXPECT_THAT(why([](BagParts& p) { p.op.bags.clear(); }),
              HasSubstr("has no output"));
  EXPECT_THAT(why([](BagParts& p) { p.bag().table_rows = kTableRows + 1; }),
              HasSubstr("operator out: reaches outside table"));
  EXPECT_THAT(why([](BagParts& p) {
                p.bag().entries = {1, kCapacity};
              }),
              HasSubstr("reaches outside ids at batch 1"));
  EXPECT_THAT(why([](BagParts& p) {
                p.op.rows = {1, 1};
              }),
              HasSubstr("reaches outside offsets"));
  EXPECT_THAT(why([](BagParts& p) { p.bag().dim = 3; }),
              HasSubstr("does not write all of out"));
  EXPECT_THAT(why([](BagParts& p) { p.bag().mode = BagMode::kMean; }),
              HasSubstr("takes no weights"));
  EXPECT_THAT(why([](BagParts& p) { p.bag().ids.value = p.weights; }),
              HasSubstr("weights does not hold integers"));
  EXPECT_THAT(why([](BagParts& p) { p.bag().weights.value = p.ids; }),
              HasSubstr("ids is not floating-point"));
  EXPECT_THAT(why([](BagParts& p) {
                p.bag().table.strides = {kOneRow, {0, 4}};
              }),
              HasSubstr("columns are not contiguous"));
  EXPECT_THAT(why([](BagParts& p) { p.op.bags.push_back(p.bag()); }),
              HasSubstr("out is written twice"));
  EXPECT_THAT(why([](BagParts& p) {
                p.bag().offsets.value = kNone;
                p.bag().length = 4;  // 16 rows: 64 entries
              }),
              HasSubstr("has bags that reach beyond the ids in ids"));
  EXPECT_EQ(why([](BagParts& p) {
              p.bag().offsets.value = kNone;
              p.bag().length = 3;
            }),
            "fine");
  BagParts parts;
  parts.builder.Bags(parts.op);
  DeviceProgram program = *std::move(parts.builder).Build(16);
  EXPECT_TRUE(program.counts_faults());
  EXPECT_TRUE(program.reads_batch());
  program.values[static_cast<size_t>(program.inputs[0])].counted = true;
  EXPECT_THAT(Validate(program, 16).message(),
              HasSubstr("value offsets: is marked as counted"));
}

// Requests with any number of entries up to the capacity use one graph per
// bucket; entries left from the previous request are never read.
TEST(BagsInstanceTest, AnyNumberOfEntries) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  BagParts parts;
  parts.builder.Bags(parts.op);
  std::vector<float> table(kTableRows * kDim);
  for (float& value : table) value = static_cast<float>(random() % 64);
  CheckedDevice device(seed);
  auto created = Instance::Create(
      device, *std::move(parts.builder).Build(8),
      {{.data = table.data(), .count = kTableRows * kDim}},
      {.max_batch = 8, .num_slots = 2, .workspace_bytes = 256});
  ASSERT_TRUE(created.ok()) << created.status().ToString();
  Instance& instance = **created;
  const Status loaded = instance.Load();
  ASSERT_TRUE(loaded.ok()) << loaded.ToString();
  for (int round = 0; round < 60; ++round) {
    const auto batch = static_cast<int64_t>(1 + random() % 8);
    const auto slot = instance.Acquire(batch);
    ASSERT_TRUE(slot.ok());
    std::vector<int64_t> offsets = {0};
    for (int64_t row = 0; row < batch; ++row) {
      const auto size = static_cast<int64_t>(random() % 9);
      offsets.push_back(std::min(offsets.back() + size, kCapacity));
    }
    // Sometimes the whole capacity.
    if (random() % 5 == 0) offsets.back() = kCapacity;
    const int64_t entries = offsets.back();
    std::vector<int64_t> ids;
    std::vector<float> weights;
    for (int64_t i = 0; i < entries; ++i) {
      ids.push_back(static_cast<int64_t>(random() % kTableRows));
      weights.push_back(static_cast<float>(random() % 8));
    }
    const bool wrong = entries > 0 && random() % 4 == 0;
    if (wrong) ids[random() % ids.size()] = kTableRows;
    const auto write = [&](size_t i, const void* data, size_t bytes) {
      if (bytes > 0) std::memcpy(instance.input(*slot, i), data, bytes);
    };
    write(0, offsets.data(), offsets.size() * sizeof(int64_t));
    write(1, ids.data(), ids.size() * sizeof(int64_t));
    write(2, weights.data(), weights.size() * sizeof(float));
    instance.SetCount(*slot, 1, entries);
    instance.SetCount(*slot, 2, entries);
    ASSERT_TRUE(instance.Submit(*slot).ok());
    const Status status = instance.Wait(*slot);
    ASSERT_EQ(status.code(), wrong ? Code::kInvalidArgument : Code::kOk)
        << status.ToString();
    const auto* got = reinterpret_cast<const float*>(instance.output(*slot, 0));
    for (int64_t row = 0; !wrong && row < batch; ++row) {
      for (int64_t col = 0; col < kDim; ++col) {
        float want = 0;  // of small whole numbers: exact
        for (int64_t i = offsets[static_cast<size_t>(row)];
             i < offsets[static_cast<size_t>(row) + 1]; ++i) {
          const auto at = static_cast<size_t>(i);
          want +=
              weights[at] * table[static_cast<size_t>(ids[at] * kDim + col)];
        }
        ASSERT_EQ(got[row * kDim + col], want) << row << ", " << col;
      }
    }
    instance.Release(*slot);
  }
  EXPECT_EQ(instance.state(), Instance::State::kReady);
  EXPECT_THAT(device.violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::runtime::cuda
