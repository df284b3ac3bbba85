// The wide element-wise kernels have the bits of the general kernel, on the
// emulated GPU, and are not chosen where they would access memory outside.

#include "runtime/cuda/kernels/map_wide.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda/kernels/dispatch.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/random_programs.h"
#include "tests/runtime/cuda/testing/reference.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {
namespace {

using testing::EmulatedLauncher;

// Block that begins at 256 bytes, or `shift` bytes after.
class Block {
 public:
  Block(int64_t bytes, int64_t shift, std::mt19937& random)
      : bytes_(static_cast<size_t>(bytes)),
        memory_(static_cast<unsigned char*>(std::aligned_alloc(
            256, (static_cast<size_t>(bytes + shift) + 255) / 256 * 256))),
        data_(memory_.get() + shift) {
    // Bytes that are small numbers in every type.
    for (size_t i = 0; i < bytes_; ++i) {
      data_[i] = static_cast<unsigned char>(random() % 0x30);
    }
  }
  unsigned char* data() const { return data_; }
  std::vector<unsigned char> Bytes() const { return {data_, data_ + bytes_}; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  size_t bytes_;
  std::unique_ptr<unsigned char, Free> memory_;
  unsigned char* data_;
};

class MapWideTest : public ::testing::Test {
 protected:
  MapWideTest() : random_(seed_), launcher_(seed_) {}
  int64_t Draw(int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random_() % (to - from + 1));
  }

  // A call over random dims, the last of size `inner`.
  MapCall RandomCall(int64_t inner, std::vector<std::unique_ptr<Block>>& all) {
    constexpr DType kTypes[] = {DType::kFloat32,  DType::kFloat16,
                                DType::kBFloat16, DType::kInt32,
                                DType::kInt64,    DType::kBool};
    MapCall call;
    call.rank = static_cast<int32_t>(Draw(1, 3));
    call.count = 1;
    for (int d = 0; d < call.rank; ++d) {
      call.dims[d] = d == call.rank - 1 ? inner : Draw(1, 5);
      call.count *= call.dims[d];
    }
    // Rows with a gap behind them, or broadcast along some dimensions.
    const auto place = [&](DType dtype, bool result, int64_t* strides) {
      const int64_t gap = result ? 0 : 8 * Draw(0, 1);
      int64_t size = inner + gap;
      strides[call.rank - 1] = 1;
      for (int d = call.rank - 2; d >= 0; --d) {
        strides[d] = size;
        size *= call.dims[d];
        if (!result && Draw(0, 3) == 0) strides[d] = 0;
      }
      if (!result && Draw(0, 4) == 0) strides[call.rank - 1] = 0;
      const int64_t shift = Draw(0, 3) == 0 ? SizeOf(dtype) : 0;
      all.push_back(
          std::make_unique<Block>(size * SizeOf(dtype), shift, random_));
      return all.back()->data();
    };
    // Long programs have fewer threads in a block.
    const bool is_long = Draw(0, 4) == 0;
    call.num_inputs =
        static_cast<int32_t>(is_long ? Draw(6, kMaxMapInputs) : Draw(1, 5));
    const bool one_type = Draw(0, 1) == 0;
    const DType type = kTypes[random_() % 3];
    for (int i = 0; i < call.num_inputs; ++i) {
      StridedOperand& input = call.inputs[i];
      input.dtype = one_type ? type : kTypes[random_() % 6];
      input.number = 1.5f;
      if (Draw(0, 4) > 0) {
        input.data = place(input.dtype, false, input.strides);
      }
    }
    call.num_instructions = static_cast<int32_t>(
        is_long ? Draw(7, kMaxMapInstructions) : Draw(1, 6));
    for (int i = 0; i < call.num_instructions; ++i) {
      const auto reg = [&] {
        return static_cast<uint8_t>(Draw(0, call.num_inputs + i - 1));
      };
      call.code[i] = {static_cast<ElementCode>(Draw(0, kNumElementCodes - 1)),
                      reg(),
                      reg(),
                      reg(),
                      0.5f,
                      2.0f};
    }
    constexpr DType kResults[] = {DType::kFloat32, DType::kFloat16,
                                  DType::kBFloat16, DType::kBool};
    call.out_dtype = kResults[random_() % 4];
    call.out = place(call.out_dtype, true, call.out_strides);
    return call;
  }

  template <typename Kernel>
  bool ExpectTheBitsOfMap(const MapCall& raw, const Block& out) {
    const MapCall call = Kernel::Prepared(raw);
    if (!Kernel::Takes(call)) return false;
    packed_ += call.packed;
    launcher_.Launch<Map>(Map::Shape(call), call);
    const std::vector<unsigned char> want = out.Bytes();
    std::memset(call.out, 0x55, want.size());
    launcher_.Launch<Kernel>(Kernel::Shape(call), call);
    EXPECT_EQ(out.Bytes(), want);
    return true;
  }

  const unsigned seed_ = base::RandomSeed();
  std::mt19937 random_;
  EmulatedLauncher launcher_;
  int packed_ = 0;
};

TEST_F(MapWideTest, GivesTheBitsOfTheGeneralKernel) {
  int floats = 0;
  int halves = 0;
  int none = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    std::vector<std::unique_ptr<Block>> memory;
    const MapCall call = RandomCall(Draw(1, 4) * (i % 3 == 0 ? 3 : 8), memory);
    const Block& out = *memory.back();
    const bool takes_float = ExpectTheBitsOfMap<MapWideFloat>(call, out);
    // Either may have too many slots for programs that the other takes.
    const bool takes_bfloat = ExpectTheBitsOfMap<MapWideBFloat16>(call, out);
    const bool takes_half =
        ExpectTheBitsOfMap<MapWideHalf>(call, out) || takes_bfloat;
    floats += takes_float;
    halves += takes_half;
    none += !takes_float && !takes_half;
    if (HasFailure()) return;
  }
  EXPECT_GT(floats, 20);
  EXPECT_GT(halves, 10);
  EXPECT_GT(none, 20);
  EXPECT_GT(packed_, 20);
}

// Programs of a kernel of their own, in every type; almost the same programs go
// to the general kernels.
class MapFixedTest : public MapWideTest {
 protected:
  template <typename T, int kWidth, typename Program>
  void ExpectTheBitsOfMap() {
    using Fixed = MapFixed<T, kWidth, Program>;
    for (const DType out_dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      std::vector<std::unique_ptr<Block>> all;
      MapCall call;
      call.rank = 2;
      call.dims[0] = Draw(1, 40);
      call.dims[1] = kWidth * Draw(1, 5);
      call.count = call.dims[0] * call.dims[1];
      const auto place = [&](DType dtype, int64_t ld) {
        all.push_back(std::make_unique<Block>(call.dims[0] * ld * SizeOf(dtype),
                                              0, random_));
        return all.back()->data();
      };
      call.num_inputs = Program::kInputs;
      for (int i = 0; i < Program::kInputs; ++i) {
        StridedOperand& input = call.inputs[i];
        input.dtype = kDTypeOf<T>;
        input.strides[1] = 1;
        input.strides[0] = call.dims[1] + 8 * Draw(0, 1);
        input.data = place(input.dtype, input.strides[0]);
        if (Draw(0, 3) == 0) input.strides[0] = 0;
      }
      call.num_instructions = Fixed::kInstructions;
      for (int i = 0; i < Fixed::kInstructions; ++i) {
        call.code[i] = Program::kCode[i];
      }
      call.out_dtype = out_dtype;
      call.out_strides[0] = call.dims[1] + 8;
      call.out_strides[1] = 1;
      call.out = place(out_dtype, call.out_strides[0]);
      const MapCall prepared = MapWide<T, kWidth>::Prepared(call);
      ASSERT_TRUE(Fixed::Takes(prepared));
      const std::vector<unsigned char> before = all.back()->Bytes();
      launcher_.Launch<Map>(Map::Shape(call), call);
      const std::vector<unsigned char> want = all.back()->Bytes();
      ASSERT_NE(want, before);
      std::memcpy(call.out, before.data(), before.size());
      launcher_.Launch<Fixed>(Fixed::Shape(prepared), prepared);
      ASSERT_EQ(all.back()->Bytes(), want);

      MapCall other = prepared;
      other.code[0].code = ElementCode::kNegate;
      EXPECT_FALSE(Fixed::Takes(other));
      other = prepared;
      ++other.code[Fixed::kInstructions - 1].a;
      EXPECT_FALSE(Fixed::Takes(other));
      other = prepared;
      other.out_dtype = DType::kBool;
      EXPECT_FALSE(Fixed::Takes(other));
      other = prepared;
      other.inputs[0].strides[1] = 0;  // one number for all columns
      EXPECT_FALSE(Fixed::Takes(MapWide<T, kWidth>::Prepared(other)));
      other = prepared;
      other.dims[1] -= 1;
      EXPECT_FALSE(Fixed::Takes(other));
    }
  }
  template <typename Program>
  void ExpectTheBitsOfMapInEveryType() {
    ExpectTheBitsOfMap<Half, 8, Program>();
    ExpectTheBitsOfMap<BFloat16, 8, Program>();
    ExpectTheBitsOfMap<float, 4, Program>();
  }
};

TEST_F(MapFixedTest, GivesTheBitsOfTheGeneralKernel) {
  ExpectTheBitsOfMapInEveryType<FirstCrossProgram>();
  ExpectTheBitsOfMapInEveryType<CrossProgram>();
}

// One instruction at a time, against the reference in double.
TEST_F(MapWideTest, EveryInstructionAsInDouble) {
  constexpr int64_t kBatch = 40;
  for (int64_t cols : {3, 8}) {
    for (int code = 0; code < kNumElementCodes; ++code) {
      SCOPED_TRACE(::testing::Message() << "code " << code << ", " << cols);
      DeviceProgramBuilder builder("map");
      const std::vector<Rows> dims = {{1, 0}, {0, cols}};
      const auto ref = [&](ValueId id) {
        return TensorRef{id, {0, 0}, {{0, builder.value(id).ld}, {0, 1}}};
      };
      MapOp op;
      op.dims = dims;
      for (const char* name : {"a", "b", "c"}) {
        op.inputs.push_back(
            {ref(builder.Input(name, DType::kFloat32, {1, 0}, cols))});
      }
      op.code = {{static_cast<ElementCode>(code), 0, 1, 2, 0.5f, 0.75f}};
      op.out = ref(builder.Output("out", DType::kFloat32, {1, 0}, cols));
      builder.Map(std::move(op));
      auto program = std::move(builder).Build(kBatch);
      ASSERT_TRUE(program.ok()) << program.status().ToString();
      testing::CheckedDevice device(seed_);
      auto instance =
          Instance::Create(device, *program, std::vector<WeightData>{},
                           {.max_batch = kBatch, .num_slots = 1});
      ASSERT_TRUE((*instance)->Load().ok());
      auto inputs = testing::RandomInputs(*program, kBatch, random_);
      for (auto& input : inputs) {
        for (double& value : input) {
          // Equal numbers, zeros and NaNs.
          const int64_t kind = Draw(0, 9);
          if (kind == 0) value = 0;
          if (kind == 1) value = 0.5;
          if (kind == 2 && Draw(0, 3) == 0) value = NAN;
        }
      }
      std::vector<std::vector<double>> got;
      ASSERT_TRUE(testing::RunOnce(**instance, kBatch, inputs, got).ok());
      const auto want = testing::RunReference(*program, {}, inputs, kBatch);
      ASSERT_EQ(got[0].size(), want[0].size());
      for (size_t i = 0; i < want[0].size(); ++i) {
        if (std::isnan(want[0][i])) {
          ASSERT_TRUE(std::isnan(got[0][i])) << got[0][i];
        } else if (std::isinf(want[0][i])) {
          ASSERT_EQ(got[0][i], want[0][i]);
        } else {
          ASSERT_NEAR(got[0][i], want[0][i], 2e-6 * (1 + std::abs(want[0][i])));
        }
      }
      EXPECT_TRUE(device.violations().empty());
    }
  }
}

TEST_F(MapWideTest, TakesOnlyWhatIsAlignedAndDense) {
  Block in(4096, 0, random_);
  Block out(4096, 0, random_);
  MapCall call;
  call.inputs[0] = {in.data(), {32, 1}};
  call.num_inputs = 1;
  call.code[0] = {ElementCode::kRelu, 0};
  call.num_instructions = 1;
  call.out = out.data();
  call.out_strides[0] = 16;
  call.out_strides[1] = 1;
  call.dims[0] = 3;
  call.dims[1] = 16;
  call.rank = 2;
  call.count = 48;
  EXPECT_TRUE(MapWideFloat::Takes(call));
  EXPECT_TRUE(MapWideHalf::Takes(call));
  const auto refuses = [&](const auto& change) {
    MapCall other = call;
    change(other);
    return !MapWideFloat::Takes(other);
  };
  EXPECT_TRUE(refuses([](MapCall& c) { c.dims[1] = 15; }));
  EXPECT_TRUE(refuses([](MapCall& c) { c.inputs[0].strides[0] = 18; }));
  EXPECT_TRUE(refuses([](MapCall& c) { c.inputs[0].strides[1] = 2; }));
  EXPECT_TRUE(refuses([](MapCall& c) { c.out_strides[1] = 2; }));
  EXPECT_TRUE(refuses([&](MapCall& c) { c.inputs[0].data = in.data() + 4; }));
  EXPECT_TRUE(refuses([&](MapCall& c) { c.out = out.data() + 8; }));
  // Offsets beyond 31 bits.
  EXPECT_TRUE(
      refuses([](MapCall& c) { c.inputs[0].strides[0] = int64_t{1} << 31; }));
  // Broadcast operands need no alignment.
  EXPECT_FALSE(refuses([&](MapCall& c) {
    c.inputs[0].data = in.data() + 4;
    c.inputs[0].strides[0] = 5;
    c.inputs[0].strides[1] = 0;
  }));
  EXPECT_FALSE(refuses([](MapCall& c) { c.inputs[0].data = nullptr; }));
}

}  // namespace
}  // namespace refract::runtime::cuda
