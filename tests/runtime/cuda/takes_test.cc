// Table rows by ids: the kernel on an emulated GPU against loops and one table
// at a time, refusals, and which operators are merged.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/kernels/dispatch.h"
#include "runtime/cuda/program/device_program.h"
#include "runtime/cuda/program/merge_tables.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {
namespace {

using testing::EmulatedLauncher;
using ::testing::HasSubstr;

// Memory that is aligned to 16 bytes, less `shift` elements.
class Bytes {
 public:
  Bytes(int64_t elements, DType dtype, int64_t shift)
      : shift_(static_cast<size_t>(shift * SizeOf(dtype))),
        memory_(static_cast<size_t>(elements * SizeOf(dtype)) + shift_ + 16,
                0xA5) {}
  unsigned char* data() {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (16 - at % 16) % 16 + shift_;
  }
  const std::vector<unsigned char>& all() const { return memory_; }
  // Restores the initial contents at the same addresses.
  void Clear() { std::fill(memory_.begin(), memory_.end(), 0xA5); }

 private:
  size_t shift_;
  std::vector<unsigned char> memory_;
};

struct Table {
  TakeTable call;
  std::vector<Bytes> memory;  // table, ids, results
};

class TakesKernelTest : public ::testing::Test {
 protected:
  int64_t Pick(std::initializer_list<int64_t> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  bool Coin(unsigned of = 2) { return random_() % of == 0; }
  DType Floating() {
    constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16,
                                 DType::kBFloat16};
    return kFloats[random_() % 3];
  }

  Table Make(int64_t rows) {
    Table made;
    TakeTable& call = made.call;
    call.table_rows = Pick({1, 5, 40});
    call.dim = static_cast<int32_t>(Pick({1, 2, 3, 8, 16, 20, 64, 300}));
    call.inner = static_cast<int32_t>(Pick({1, 1, 1, 2, 5}));
    call.outside = static_cast<Outside>(random_() % 3);
    call.dtype = Floating();
    call.out_dtype = Coin(4) ? Floating() : call.dtype;
    call.id_dtype = Coin() ? DType::kInt32 : DType::kInt64;
    // Some lie so that 16 bytes can be copied at once.
    const bool aligned = !Coin(3);
    const auto ld = [&](DType dtype, int64_t cols) {
      return static_cast<int32_t>(aligned ? PaddedLd(cols, dtype) : cols + 1);
    };
    const int64_t shift = aligned ? 0 : 1;
    call.row_stride = ld(call.dtype, call.dim);
    call.inner_out_stride = ld(call.out_dtype, call.dim);
    call.out_stride = call.inner * call.inner_out_stride + (aligned ? 0 : 1);
    call.inner_id_stride = static_cast<int32_t>(Pick({1, 2}));
    call.id_stride =
        static_cast<int32_t>(call.inner * call.inner_id_stride + Pick({0, 3}));
    made.memory.reserve(3);
    Bytes& table = made.memory.emplace_back(call.table_rows * call.row_stride,
                                            call.dtype, shift);
    // Any bits, negative zeros and NaN among them, where they are copied.
    const int64_t elements = call.table_rows * call.row_stride;
    for (int64_t i = 0; i < elements; ++i) {
      if (call.dtype == call.out_dtype) {
        for (int64_t b = 0; b < SizeOf(call.dtype); ++b) {
          table.data()[i * SizeOf(call.dtype) + b] =
              static_cast<unsigned char>(random_());
        }
      } else {
        Store(static_cast<float>(random_() % 256) - 128.0f, table.data(),
              call.dtype, i);
      }
    }
    call.table = table.data();
    Bytes& ids =
        made.memory.emplace_back(rows * call.id_stride + 16, call.id_dtype, 0);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < call.inner; ++i) {
        const auto inside = static_cast<int64_t>(
            random_() % static_cast<uint64_t>(call.table_rows));
        const int64_t id =
            Coin(6) ? Pick({-1, call.table_rows, 1000000, -1000000}) : inside;
        const int64_t at = row * call.id_stride + i * call.inner_id_stride;
        if (call.id_dtype == DType::kInt64) {
          // Ids whose low half alone would be a valid row.
          const int64_t whole = Coin(20) ? (int64_t{1} << 32) + inside : id;
          reinterpret_cast<int64_t*>(ids.data())[at] = whole;
        } else {
          reinterpret_cast<int32_t*>(ids.data())[at] = static_cast<int32_t>(id);
        }
      }
    }
    call.ids = ids.data();
    Bytes& out =
        made.memory.emplace_back(rows * call.out_stride, call.out_dtype, shift);
    call.out = out.data();
    return made;
  }

  // Writes the expected results of `call` to `out`, an image of its results;
  // returns the number of wrong ids.
  static int64_t Want(const TakeTable& call, int64_t rows, int64_t used,
                      unsigned char* out) {
    int64_t faults = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < call.inner; ++i) {
        const int64_t at = row * call.id_stride + i * call.inner_id_stride;
        int64_t id = call.id_dtype == DType::kInt64
                         ? static_cast<const int64_t*>(call.ids)[at]
                         : static_cast<const int32_t*>(call.ids)[at];
        bool zero = row >= used;
        if (!zero && (id < 0 || id >= call.table_rows)) {
          faults += call.outside == Outside::kFault;
          zero = call.outside != Outside::kFirstRow;
          id = 0;
        }
        for (int64_t col = 0; col < call.dim; ++col) {
          const int64_t to =
              row * call.out_stride + i * call.inner_out_stride + col;
          const int64_t from = id * call.row_stride + col;
          const int64_t size = SizeOf(call.out_dtype);
          if (zero) {
            std::memset(out + to * size, 0, static_cast<size_t>(size));
          } else if (call.dtype == call.out_dtype) {
            std::memcpy(
                out + to * size,
                static_cast<const unsigned char*>(call.table) + from * size,
                static_cast<size_t>(size));
          } else {
            Store(Load(call.table, call.dtype, from), out, call.out_dtype, to);
          }
        }
      }
    }
    return faults;
  }

  const unsigned seed_ = base::RandomSeed();
  std::mt19937 random_{seed_};
  EmulatedLauncher launcher_{seed_};
};

TEST_F(TakesKernelTest, AgreesWithLoopsAndWithOneTableAtATime) {
  for (int round = 0; round < 10; ++round) {
    const int64_t per_item = Pick({1, 1, 2});
    const int64_t fixed = Pick({0, 0, 1});
    const int64_t bucket = Pick({1, 3, 8, 40});
    const auto batch = static_cast<int32_t>(random_() % (bucket + 1));
    int32_t faults = 0;
    TakesCall call;
    call.batch = &batch;
    call.faults = &faults;
    call.rows = bucket * per_item + fixed;
    call.rows_per_item = per_item;
    call.fixed_rows = fixed;
    call.num_tables = static_cast<int32_t>(Pick({1, 2, 7, kMaxTakeTables}));
    std::vector<Table> tables;
    for (int32_t i = 0; i < call.num_tables; ++i) {
      tables.push_back(Make(call.rows));
      call.tables[i] = tables.back().call;
    }
    // Memory between results stays unchanged.
    std::vector<std::vector<unsigned char>> want;
    int64_t want_faults = 0;
    for (Table& table : tables) {
      Bytes& out = table.memory[2];
      want_faults +=
          Want(table.call, call.rows, batch * per_item + fixed, out.data());
      want.push_back(out.all());
      out.Clear();
    }
    Dispatch(call, launcher_);
    for (size_t i = 0; i < tables.size(); ++i) {
      ASSERT_TRUE(tables[i].memory[2].all() == want[i])
          << "table " << i << " of " << tables.size() << ", "
          << tables[i].call.dim << " columns of " << Name(tables[i].call.dtype);
      tables[i].memory[2].Clear();
    }
    ASSERT_EQ(faults, want_faults);
    faults = 0;
    for (size_t i = 0; i < tables.size(); ++i) {
      TakesCall one = call;
      one.num_tables = 1;
      one.tables[0] = call.tables[i];
      Dispatch(one, launcher_);
      ASSERT_TRUE(tables[i].memory[2].all() == want[i]) << "table " << i;
    }
    ASSERT_EQ(faults, want_faults);
  }
}

// A table without ids gives its rows in their order.
TEST_F(TakesKernelTest, WithoutIds) {
  for (int round = 0; round < 10; ++round) {
    TakesCall call;
    call.rows = Pick({1, 3, 8, 40});
    call.num_tables = static_cast<int32_t>(Pick({1, 2, 7, kMaxTakeTables}));
    std::vector<Table> tables;
    for (int32_t i = 0; i < call.num_tables; ++i) {
      // The table is as long as the result.
      Table table = Make(call.rows);
      while (table.call.table_rows < call.rows || table.call.inner != 1) {
        table = Make(call.rows);
      }
      auto* ids = table.memory[1].data();
      for (int64_t row = 0; row < call.rows; ++row) {
        if (table.call.id_dtype == DType::kInt64) {
          reinterpret_cast<int64_t*>(ids)[row * table.call.id_stride] = row;
        } else {
          reinterpret_cast<int32_t*>(ids)[row * table.call.id_stride] =
              static_cast<int32_t>(row);
        }
      }
      call.tables[i] = table.call;
      call.tables[i].ids = nullptr;
      tables.push_back(std::move(table));
    }
    Dispatch(call, launcher_);
    for (size_t i = 0; i < tables.size(); ++i) {
      Bytes& out = tables[i].memory[2];
      const std::vector<unsigned char> got = out.all();
      out.Clear();
      Want(tables[i].call, call.rows, call.rows, out.data());
      ASSERT_TRUE(got == out.all()) << "table " << i;
    }
  }
}

// More work than the blocks of a launch process at once.
TEST_F(TakesKernelTest, ManyRows) {
  constexpr int64_t kRows = 20000;
  std::vector<float> table(7), out(kRows);
  std::vector<int32_t> ids(kRows);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
  for (int32_t& id : ids) id = static_cast<int32_t>(random_() % 7);
  const int32_t batch = kRows;
  int32_t faults = 0;
  TakesCall call;
  call.batch = &batch;
  call.faults = &faults;
  call.rows = kRows;
  call.rows_per_item = 1;
  call.num_tables = kMaxTakeTables;
  for (TakeTable& one : call.tables) {
    // The other tables are tiny.
    one.table = table.data();
    one.ids = ids.data();
    one.out = out.data();
    one.table_rows = 7;
    one.dim = one.row_stride = 1;
    one.inner = 0;
    one.id_dtype = DType::kInt32;
  }
  TakeTable& large = call.tables[kMaxTakeTables / 2];
  large.inner = 1;
  large.out_stride = 1;
  const int64_t blocks = Takes::Shape(call).blocks;
  EXPECT_LT(blocks / kMaxTakeTables * kThreads, kRows);
  Dispatch(call, launcher_);
  for (size_t row = 0; row < ids.size(); ++row) {
    ASSERT_EQ(out[row], static_cast<float>(ids[row])) << row;
  }
}

TEST(TakesShapeTest, WideAccessesOnlyWhereTheyAreAligned) {
  alignas(16) static unsigned char memory[64];
  TakesCall call;
  TakeTable table;
  table.table = table.out = memory;
  table.dim = table.row_stride = table.out_stride = table.inner_out_stride = 8;
  using Form = Takes::Form;
  EXPECT_EQ(Takes::FormOf(table), Form::kCopy16);
  const auto changed = [&](auto... changes) {
    TakeTable other = table;
    (changes(other), ...);
    return Takes::FormOf(other);
  };
  EXPECT_EQ(changed([](TakeTable& t) { t.table = memory + 4; }), Form::kCopy4);
  EXPECT_EQ(changed([](TakeTable& t) { t.out = memory + 8; }), Form::kCopy4);
  EXPECT_EQ(changed([](TakeTable& t) { t.dim = 6; }), Form::kCopy4);
  EXPECT_EQ(changed([](TakeTable& t) { t.row_stride = 9; }), Form::kCopy4);
  EXPECT_EQ(changed([](TakeTable& t) { t.out_stride = 10; }), Form::kCopy4);
  EXPECT_EQ(changed([](TakeTable& t) { t.inner_out_stride = 13; }),
            Form::kCopy4);
  const auto halves = [](TakeTable& t) {
    t.dtype = t.out_dtype = DType::kBFloat16;
  };
  EXPECT_EQ(changed(halves), Form::kCopy16);
  EXPECT_EQ(changed(halves, [](TakeTable& t) { t.dim = 4; }), Form::kCopy2);
  const auto narrows = [](TakeTable& t) { t.out_dtype = DType::kFloat16; };
  EXPECT_EQ(changed(narrows), Form::kConvertWide);
  EXPECT_EQ(changed(narrows, [](TakeTable& t) { t.out = memory + 8; }),
            Form::kConvertWide);
  EXPECT_EQ(changed(narrows, [](TakeTable& t) { t.out = memory + 4; }),
            Form::kConvert);
  EXPECT_EQ(changed(narrows, [](TakeTable& t) { t.dim = 6; }), Form::kConvert);
  EXPECT_EQ(changed([](TakeTable& t) { t.dtype = DType::kFloat16; }),
            Form::kConvert);
}

// --- Programs ----------------------------------------------------------------

constexpr Rows kItems{1, 0};
constexpr int64_t kTableRows = 9;
constexpr int64_t kDim = 4;

struct Parts {
  DeviceProgramBuilder builder{"m"};

  TensorRef Ids(const std::string& name, DType dtype = DType::kInt64) {
    return {builder.Input(name, dtype, kItems, 1), {0, 0}, {{0, 1}, {0, 0}}};
  }
  TensorRef Out(const std::string& name, bool last = true) {
    const ValueId out =
        last ? builder.Output(name, DType::kFloat32, kItems, kDim)
             : builder.Intermediate(name, DType::kFloat32, kItems, kDim);
    return {out, {0, 0}, {{0, kDim}, {0, 0}, {0, 1}}};
  }
  Take One(const TensorRef& ids, const std::string& name, bool last = true) {
    Take take;
    const ValueId table =
        builder.Weight(name + ".table", DType::kFloat32, kTableRows, kDim);
    take.table = {table, {0, 0}, {{0, kDim}, {0, 1}}};
    take.ids = ids;
    take.out = Out(name, last);
    take.table_rows = kTableRows;
    take.dim = kDim;
    return take;
  }
  void Add(Take take) {
    builder.Takes({.rows = kItems, .takes = {std::move(take)}});
  }
  // A view of `of`'s columns as ids of another table.
  TensorRef Computed(const TensorRef& from, const std::string& name) {
    MapOp map;
    map.dims = {kItems, {0, kDim}};
    const std::vector<Rows> strides = {{0, kDim}, {0, 1}};
    map.inputs = {{{from.value, {0, 0}, strides}}};
    map.code = {{ElementCode::kSquare, 0}};
    const TensorRef out = Out(name, false);
    map.out = {out.value, {0, 0}, strides};
    builder.Map(std::move(map));
    return out;
  }
};

TEST(TakesOpTest, ErrorsNameOperatorAndValue) {
  const auto why = [](auto change) {
    Parts parts;
    const TensorRef ids = parts.Ids("ids");
    TakesOp op{.rows = kItems, .takes = {parts.One(ids, "out")}};
    change(op, parts);
    parts.builder.Takes(std::move(op));
    auto program = std::move(parts.builder).Build(16);
    return program.ok() ? "fine" : program.status().message();
  };
  EXPECT_EQ(why([](TakesOp&, Parts&) {}), "fine");
  EXPECT_THAT(why([](TakesOp& op, Parts&) { op.takes.clear(); }),
              HasSubstr("has no output"));
  EXPECT_THAT(why([](TakesOp& op, Parts&) { ++op.takes[0].table_rows; }),
              HasSubstr("operator out: reaches outside out.table"));
  EXPECT_THAT(why([](TakesOp& op, Parts&) { op.takes[0].inner = 2; }),
              HasSubstr("does not write all of out"));
  EXPECT_THAT(why([](TakesOp& op, Parts&) { op.takes[0].inner = 0; }),
              HasSubstr("has a size below the least possible"));
  EXPECT_THAT(why([](TakesOp& op, Parts&) { op.takes[0].dim = 3; }),
              HasSubstr("does not write all of out"));
  EXPECT_THAT(why([](TakesOp& op, Parts&) {
                op.rows = {2, 0};
              }),
              HasSubstr("reaches outside ids"));
  EXPECT_THAT(why([](TakesOp& op, Parts& parts) {
                op.takes[0].ids.value =
                    parts.builder.Input("x", DType::kFloat32, kItems, 1);
              }),
              HasSubstr("x does not hold integers"));
  EXPECT_THAT(why([](TakesOp& op, Parts&) {
                op.takes[0].table.strides = {kOneRow, {0, 4}};
              }),
              HasSubstr("columns are not contiguous"));
  EXPECT_THAT(why([](TakesOp& op, Parts&) {
                op.takes[0].out.strides = {{0, 4}, {0, 0}, {0, 2}};
              }),
              HasSubstr("out"));
  EXPECT_THAT(why([](TakesOp& op, Parts&) { op.takes.push_back(op.takes[0]); }),
              HasSubstr("out is written twice"));
  EXPECT_THAT(why([](TakesOp& op, Parts& parts) {
                for (int i = 0; i < kMaxTakeTables; ++i) {
                  op.takes.push_back(
                      parts.One(op.takes[0].ids, "o" + std::to_string(i)));
                }
              }),
              HasSubstr("needs 1 to 60 tables"));
}

TEST(TakesOpTest, WrongIdsCountUnlessThePolicySaysOtherwise) {
  for (const Outside outside :
       {Outside::kFault, Outside::kZero, Outside::kFirstRow}) {
    Parts parts;
    Take take = parts.One(parts.Ids("ids"), "out");
    take.outside = outside;
    parts.Add(std::move(take));
    const DeviceProgram program = *std::move(parts.builder).Build(16);
    EXPECT_EQ(program.counts_faults(), outside == Outside::kFault);
    EXPECT_TRUE(program.reads_batch());
  }
}

// "takes 3", "map": the operators and how many tables each reads.
std::vector<std::string> Shown(const DeviceProgram& program) {
  std::vector<std::string> shown;
  for (const Op& op : program.ops) {
    if (const auto* takes = std::get_if<TakesOp>(&op.kind)) {
      shown.push_back("takes " + std::to_string(takes->takes.size()));
    } else if (const auto* bags = std::get_if<BagsOp>(&op.kind)) {
      shown.push_back("bags " + std::to_string(bags->bags.size()));
    } else {
      shown.emplace_back("map");
    }
  }
  return shown;
}

std::vector<std::string> Merged(Parts parts, int64_t max_batch = 16) {
  auto program = std::move(parts.builder).Build(max_batch);
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  MergeTables(*program, max_batch);
  const Status valid = Validate(*program, max_batch);
  EXPECT_TRUE(valid.ok()) << valid.ToString();
  return Shown(*program);
}

using Strings = std::vector<std::string>;

TEST(MergeTablesTest, AcrossOperatorsThatDoNotMatter) {
  Parts parts;
  const TensorRef ids = parts.Ids("ids");
  for (int i = 0; i < 3; ++i) {
    const std::string name = "out" + std::to_string(i);
    Take take = parts.One(ids, name, false);
    const TensorRef out = take.out;
    parts.Add(std::move(take));
    parts.Computed(out, name + ".squared");
  }
  EXPECT_EQ(Merged(std::move(parts)),
            (Strings{"takes 3", "map", "map", "map"}));
}

TEST(MergeTablesTest, AsManyAsALaunchTakes) {
  Parts parts;
  const TensorRef ids = parts.Ids("ids");
  for (int i = 0; i < 2 * kMaxTakeTables + 1; ++i) {
    parts.Add(parts.One(ids, "out" + std::to_string(i)));
  }
  EXPECT_EQ(Merged(std::move(parts)),
            (Strings{"takes 60", "takes 60", "takes 1"}));
}

// Fewer where their bags would be more than 2^31 together.
TEST(MergeTablesTest, AsManyBagsAsAreCounted) {
  constexpr int64_t kMaxBatch = int64_t{1} << 27;
  Parts parts;
  Bag bag;
  bag.table = {parts.builder.Weight("table", DType::kFloat32, kTableRows, 1),
               {0, 0},
               {{0, 1}, {0, 1}}};
  bag.ids = {parts.builder.Input("few ids", DType::kInt32, kItems, 1),
             {0, 0},
             {{0, 1}}};
  bag.length = 1;
  bag.entries = kItems;
  bag.table_rows = kTableRows;
  bag.dim = 1;
  for (int i = 0; i < kMaxBagTables; ++i) {
    const std::string name = "out" + std::to_string(i);
    bag.out = {parts.builder.Output(name, DType::kFloat32, kItems, 1),
               {0, 0},
               {{0, 1}, {0, 1}}};
    parts.builder.Bags({.rows = kItems, .bags = {bag}});
  }
  EXPECT_EQ(Merged(std::move(parts), kMaxBatch),
            (Strings{"bags 15", "bags 15", "bags 2"}));
}

// Look-ups with a computed table or computed ids wait for those values; later
// look-ups do not wait for them.
TEST(MergeTablesTest, NotBeforeWhatItReadsIsWritten) {
  Parts parts;
  const TensorRef ids = parts.Ids("ids");
  Take first = parts.One(ids, "first", false);
  const TensorRef out = first.out;
  parts.Add(std::move(first));
  const TensorRef squares = parts.Computed(out, "squares");
  Take late = parts.One(ids, "late");
  // A row of a computed value that serves as a table.
  late.table = {squares.value, {0, 0}, {{0, kDim}, {0, 1}}};
  late.table_rows = 1;
  parts.Add(std::move(late));
  parts.Add(parts.One(ids, "next"));
  Take last = parts.One(ids, "last");
  last.table = {
      parts.Computed(squares, "fourth").value, {0, 0}, {{0, kDim}, {0, 1}}};
  last.table_rows = 1;
  parts.Add(std::move(last));
  EXPECT_EQ(Merged(std::move(parts)),
            (Strings{"takes 2", "map", "takes 1", "map", "takes 1"}));
}

TEST(MergeTablesTest, OfOneNumberOfRowsAndOneKind) {
  Parts parts;
  const TensorRef ids = parts.Ids("ids");
  parts.Add(parts.One(ids, "a"));
  Bag bag;
  const ValueId table =
      parts.builder.Weight("bags", DType::kFloat32, kTableRows, kDim);
  bag.table = {table, {0, 0}, {{0, kDim}, {0, 1}}};
  bag.ids = {ids.value, {0, 0}, {{0, 1}}};
  bag.length = 1;
  bag.entries = kItems;
  bag.table_rows = kTableRows;
  bag.dim = kDim;
  for (const char* name : {"b", "c"}) {
    const TensorRef out = parts.Out(name);
    bag.out = {out.value, {0, 0}, {{0, kDim}, {0, 1}}};
    parts.builder.Bags({.rows = kItems, .bags = {bag}});
  }
  parts.Add(parts.One(ids, "d"));
  // The first item's alone.
  Take one = parts.One(ids, "e", false);
  one.out.value = parts.builder.Output("one", DType::kFloat32, kOneRow, kDim);
  parts.builder.Takes({.rows = kOneRow, .takes = {std::move(one)}});
  EXPECT_EQ(Merged(std::move(parts)),
            (Strings{"takes 2", "bags 2", "takes 1"}));
}

}  // namespace
}  // namespace refract::runtime::cuda
