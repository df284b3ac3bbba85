// Kernels on an emulated GPU against plain loops in double.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/cuda/kernels/dispatch.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {
namespace {

using testing::EmulatedLauncher;
using testing::RoundToTf32;

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16,
                             DType::kBFloat16};

// Half a unit in the last place, relative, of a stored result.
double Rounding(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return std::ldexp(1.0, -11);
    case DType::kBFloat16:
      return std::ldexp(1.0, -8);
    default:
      return std::ldexp(1.0, -24);
  }
}

// Rows in memory of exactly the size they need, at `shift` elements from 256
// bytes: sanitizers see what a kernel touches outside. Gaps between rows begin
// as NaN.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, int64_t ld, int64_t shift = 0)
      : dtype_(dtype), rows_(rows), cols_(cols), ld_(ld) {
    const auto size = static_cast<size_t>(SizeOf(dtype));
    const size_t count =
        rows == 0 ? 0 : static_cast<size_t>((rows - 1) * ld + cols);
    const size_t bytes = (count + static_cast<size_t>(shift)) * size;
    memory_.reset(static_cast<unsigned char*>(
        std::aligned_alloc(256, (bytes + 255) / 256 * 256)));
    std::memset(memory_.get(), 0xFF, (bytes + 255) / 256 * 256);
    data_ = memory_.get() + static_cast<size_t>(shift) * size;
  }

  void* data() const { return data_; }
  int64_t ld() const { return ld_; }
  DType dtype() const { return dtype_; }
  double at(int64_t row, int64_t col) const {
    return Load(data_, dtype_, row * ld_ + col);
  }
  void Set(int64_t row, int64_t col, float value) {
    Store(value, data_, dtype_, row * ld_ + col);
  }
  void Randomize(std::mt19937& random) {
    std::uniform_real_distribution<float> values(-1, 1);
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t col = 0; col < cols_; ++col) Set(row, col, values(random));
    }
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  DType dtype_;
  int64_t rows_, cols_, ld_;
  std::unique_ptr<unsigned char, Free> memory_;
  void* data_;
};

class KernelsTest : public ::testing::Test {
 protected:
  KernelsTest() { RecordProperty("seed", std::to_string(seed_)); }
  int64_t Pick(std::initializer_list<int64_t> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  const unsigned seed_ = base::RandomSeed();
  std::mt19937 random_{seed_};
  EmulatedLauncher launcher_{seed_};
};

void ExpectNear(double got, double want, double tolerance) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << got;
  } else {
    ASSERT_NEAR(got, want, tolerance);
  }
}

struct InteractionCase {
  int64_t samples, features, dim;
  bool aligned;
};

template <typename Launcher>
void CheckInteraction(const InteractionCase& c, DType dtype, bool tf32,
                      bool diagonal, bool copy_dense, std::mt19937& random,
                      Launcher& launcher) {
  SCOPED_TRACE(::testing::Message()
               << c.samples << " samples, " << c.features << " features, dim "
               << c.dim << ", " << Name(dtype) << ", tf32 " << tf32
               << ", diagonal " << diagonal << ", copy " << copy_dense);
  const int64_t emb_cols = (c.features - 1) * c.dim;
  const int64_t pairs = NumPairs(c.features, diagonal);
  const int64_t out_cols = (copy_dense ? c.dim : 0) + pairs;
  const int64_t shift = c.aligned ? 0 : 1;
  auto ld = [&](int64_t cols) {
    return c.aligned ? PaddedLd(cols, dtype) : cols + 1;
  };
  Matrix dense(dtype, c.samples, c.dim, ld(c.dim), shift);
  Matrix emb(dtype, c.samples, std::max<int64_t>(emb_cols, 1),
             ld(std::max<int64_t>(emb_cols, 1)), shift);
  const int64_t pad = c.aligned ? ld(out_cols) - out_cols : 0;
  Matrix out(dtype, c.samples, out_cols + pad, ld(out_cols), shift);
  dense.Randomize(random);
  emb.Randomize(random);
  Dispatch(InteractionCall{.dense = dense.data(),
                           .embeddings = emb.data(),
                           .out = out.data(),
                           .ld_dense = dense.ld(),
                           .ld_embeddings = emb.ld(),
                           .ld_out = out.ld(),
                           .samples = c.samples,
                           .features = static_cast<int32_t>(c.features),
                           .dim = static_cast<int32_t>(c.dim),
                           .pad = static_cast<int32_t>(pad),
                           .dtype = dtype,
                           .diagonal = diagonal,
                           .copy_dense = copy_dense,
                           .tf32 = tf32},
           launcher);
  // fp32 sums of up to dim products of at most 1, then one rounding of the
  // result; a factor rounded to TF32 is off by 2^-11.
  const double sums = static_cast<double>(c.dim * c.dim) * 6e-8 +
                      (tf32 ? static_cast<double>(c.dim) * 2e-3 : 0);
  auto feature = [&](int64_t s, int64_t f, int64_t d) {
    return f == 0 ? dense.at(s, d) : emb.at(s, (f - 1) * c.dim + d);
  };
  for (int64_t s = 0; s < c.samples; ++s) {
    int64_t col = 0;
    for (; copy_dense && col < c.dim; ++col) {
      ASSERT_EQ(out.at(s, col), dense.at(s, col));
    }
    for (int64_t i = 0; i < c.features; ++i) {
      for (int64_t j = 0; j < i + (diagonal ? 1 : 0); ++j, ++col) {
        double dot = 0;
        for (int64_t d = 0; d < c.dim; ++d) {
          dot += feature(s, i, d) * feature(s, j, d);
        }
        ExpectNear(out.at(s, col), dot, sums + std::abs(dot) * Rounding(dtype));
      }
    }
    for (int64_t p = 0; p < pad; ++p) ASSERT_EQ(out.at(s, col + p), 0.0);
  }
}

TEST_F(KernelsTest, InteractionOfTheUsualShapeTakesTiles) {
  for (DType dtype : kFloats) {
    CheckInteraction({9, 27, 128, true}, dtype, true, false, true, random_,
                     launcher_);
  }
}

// On a grid that is smaller than the work: threads go round.
struct TwoBlocks {
  EmulatedLauncher& launcher;
  template <typename Kernel, typename KernelCall>
  void Launch(LaunchShape shape, const KernelCall& call) {
    ASSERT_GT(shape.blocks, 2);
    shape.blocks = 2;
    launcher.Launch<Kernel>(shape, call);
  }
};

TEST_F(KernelsTest, WarpsTakeSeveralSamplesOfALargeInteraction) {
  TwoBlocks few{launcher_};
  for (DType dtype : kFloats) {
    CheckInteraction({31, 27, 32, true}, dtype, true, false, true, random_,
                     few);
    CheckInteraction({19, 9, 16, true}, dtype, true, true, false, random_, few);
  }
}

TEST_F(KernelsTest, InteractionOfAnyShape) {
  for (int round = 0; round < 60 && !HasFatalFailure(); ++round) {
    const InteractionCase c = {
        Pick({0, 1, 2, 5}), Pick({1, 2, 3, 9, 16, 17, 27, 32, 33, 40}),
        Pick({1, 3, 8, 16, 32, 48, 64}), random_() % 3 != 0};
    CheckInteraction(c, kFloats[random_() % 3], random_() % 2 == 0,
                     random_() % 2 == 0, random_() % 2 == 0, random_,
                     launcher_);
  }
}

TEST_F(KernelsTest, InteractionTooLargeForSharedMemory) {
  CheckInteraction({2, 30, 512, true}, DType::kFloat32, false, false, true,
                   random_, launcher_);
  CheckInteraction({2, 30, 1024, true}, DType::kFloat16, false, true, true,
                   random_, launcher_);
}

TEST_F(KernelsTest, InteractionKeepsNaNToItsSample) {
  Matrix dense(DType::kFloat16, 3, 16, 16);
  Matrix emb(DType::kFloat16, 3, 32, 32);
  Matrix out(DType::kFloat16, 3, 24, 24);
  dense.Randomize(random_);
  emb.Randomize(random_);
  emb.Set(1, 0, std::numeric_limits<float>::quiet_NaN());
  Dispatch(InteractionCall{.dense = dense.data(),
                           .embeddings = emb.data(),
                           .out = out.data(),
                           .ld_dense = 16,
                           .ld_embeddings = 32,
                           .ld_out = 24,
                           .samples = 3,
                           .features = 3,
                           .dim = 16,
                           .pad = 5,
                           .dtype = DType::kFloat16},
           launcher_);
  for (int64_t s = 0; s < 3; ++s) {
    // (1,0), (2,0), (2,1): the first vector of sample 1 is in two of them.
    EXPECT_EQ(std::isnan(out.at(s, 16)), s == 1);
    EXPECT_FALSE(std::isnan(out.at(s, 17)));
    EXPECT_EQ(std::isnan(out.at(s, 18)), s == 1);
  }
}

// What PyTorch computes, in double.
double Unary(ElementOp op, double x) {
  switch (op) {
    case ElementOp::kNeg:
      return -x;
    case ElementOp::kAbs:
      return std::fabs(x);
    case ElementOp::kSquare:
      return x * x;
    case ElementOp::kSqrt:
      return std::sqrt(x);
    case ElementOp::kRsqrt:
      return 1 / std::sqrt(x);
    case ElementOp::kReciprocal:
      return 1 / x;
    case ElementOp::kExp:
      return std::exp(x);
    case ElementOp::kLog:
      return std::log(x);
    case ElementOp::kRelu:
      return std::isnan(x) ? x : std::max(x, 0.0);
    case ElementOp::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case ElementOp::kTanh:
      return std::tanh(x);
    case ElementOp::kSilu:
      return x / (1 + std::exp(-x));
    case ElementOp::kGelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case ElementOp::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
      ADD_FAILURE();
      return 0;
  }
}

double Binary(ElementOp op, double a, double b) {
  switch (op) {
    case ElementOp::kLoad:
      return b;
    case ElementOp::kAdd:
      return a + b;
    case ElementOp::kSub:
      return a - b;
    case ElementOp::kSubFrom:
      return b - a;
    case ElementOp::kMul:
      return a * b;
    case ElementOp::kDiv:
      return a / b;
    case ElementOp::kDivInto:
      return b / a;
    case ElementOp::kMaximum:
      return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case ElementOp::kMinimum:
      return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    default:
      ADD_FAILURE();
      return 0;
  }
}

TEST_F(KernelsTest, EveryElementOperator) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f, -0.0f, 1.0f,   -1.0f, 0.37f, -2.5f,
                                     7.0f, 30.0f, -30.0f, nan,   inf,   -inf};
  for (int n = 0; n < kNumElementOps; ++n) {
    const auto op = static_cast<ElementOp>(n);
    if (op == ElementOp::kSave) continue;
    for (float a : values) {
      for (float b : values) {
        SCOPED_TRACE(::testing::Message() << n << ": " << a << ", " << b);
        const double want = IsUnary(op) ? Unary(op, a) : Binary(op, a, b);
        const double got =
            IsUnary(op) ? ApplyUnary(op, a) : ApplyBinary(op, a, b);
        if (std::isinf(want)) {
          EXPECT_EQ(got, want);
        } else {
          ExpectNear(got, want,
                     1e-30 + std::fabs(want) * 1e-5 + (IsUnary(op) ? 1e-6 : 0));
        }
      }
    }
  }
}

TEST_F(KernelsTest, ChainsOfAnyInstructions) {
  for (int round = 0; round < 120 && !HasFatalFailure(); ++round) {
    SCOPED_TRACE(round);
    const int64_t rows = Pick({0, 1, 3, 40});
    const int64_t cols = Pick({1, 4, 7, 12, 64});
    const bool aligned = random_() % 2 == 0;
    const int operands = 1 + static_cast<int>(random_() % kMaxOperands);
    ChainCall call;
    std::vector<std::unique_ptr<Matrix>> matrices;
    std::vector<bool> one_row;
    for (int i = 0; i < operands; ++i) {
      const DType dtype = kFloats[random_() % 3];
      const bool column = random_() % 4 == 0;
      one_row.push_back(random_() % 4 == 0);
      const int64_t width = column ? 1 : cols;
      const int64_t ld = aligned ? PaddedLd(width, dtype) : width + 1;
      matrices.push_back(std::make_unique<Matrix>(
          dtype, one_row.back() ? 1 : rows, width, ld, aligned ? 0 : 1));
      matrices.back()->Randomize(random_);
      call.operands[i] = {matrices.back()->data(), one_row.back() ? 0 : ld,
                          column, dtype};
    }
    const DType dtype = kFloats[random_() % 3];
    const int64_t ld = aligned ? PaddedLd(cols, dtype) : cols;
    Matrix out(dtype, rows, ld, ld);
    bool saved[2] = {};
    const int count = 1 + static_cast<int>(random_() % 8);
    for (int n = 0; n < count; ++n) {
      // Only operators that keep values near 1, so that one tolerance fits.
      constexpr ElementOp kOps[] = {
          ElementOp::kAdd,  ElementOp::kSub,     ElementOp::kSubFrom,
          ElementOp::kMul,  ElementOp::kMaximum, ElementOp::kMinimum,
          ElementOp::kRelu, ElementOp::kSigmoid, ElementOp::kTanh,
          ElementOp::kAbs,  ElementOp::kNeg,     ElementOp::kSave,
          ElementOp::kGelu, ElementOp::kLoad};
      Instruction& instruction = call.instructions[n];
      instruction.op = n == 0 ? ElementOp::kLoad : kOps[random_() % 14];
      instruction.source = static_cast<Source>(random_() % 2);
      instruction.index = static_cast<uint8_t>(random_() % operands);
      instruction.number = 0.75f;
      if (instruction.op == ElementOp::kSave) {
        instruction.index = static_cast<uint8_t>(random_() % 2);
        saved[instruction.index] = true;
      } else if (random_() % 3 == 0 && (saved[0] || saved[1])) {
        instruction.source = Source::kTemporary;
        instruction.index = saved[0] ? 0 : 1;
      }
    }
    call.num_operands = operands;
    call.num_instructions = count;
    call.out = out.data();
    call.ld_out = ld;
    call.rows = rows;
    call.cols = cols;
    call.pad = static_cast<int32_t>(ld - cols);
    call.dtype = dtype;
    Dispatch(call, launcher_);

    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        double acc = 0, temporaries[2] = {};
        for (int n = 0; n < count; ++n) {
          const Instruction& instruction = call.instructions[n];
          if (instruction.op == ElementOp::kSave) {
            temporaries[instruction.index] = acc;
          } else if (IsUnary(instruction.op)) {
            acc = Unary(instruction.op, acc);
          } else {
            double source = instruction.number;
            if (instruction.source == Source::kOperand) {
              const size_t i = instruction.index;
              source = matrices[i]->at(one_row[i] ? 0 : r,
                                       call.operands[i].one_column ? 0 : c);
            } else if (instruction.source == Source::kTemporary) {
              source = temporaries[instruction.index];
            }
            acc = Binary(instruction.op, acc, source);
          }
        }
        ASSERT_NEAR(out.at(r, c), acc,
                    1e-4 + std::fabs(acc) * (1e-5 + Rounding(dtype)));
      }
      for (int64_t c = cols; c < ld; ++c) ASSERT_EQ(out.at(r, c), 0.0);
    }
  }
}

TEST_F(KernelsTest, CrossLayer) {
  for (int round = 0; round < 40 && !HasFatalFailure(); ++round) {
    const DType dtype = kFloats[random_() % 3];
    const int64_t rows = Pick({0, 1, 7, 33});
    const int64_t cols = Pick({1, 5, 16, 100});
    const bool aligned = random_() % 2 == 0;
    const bool with_bias = random_() % 2 == 0;
    const int64_t ld = aligned ? PaddedLd(cols, dtype) : cols + 1;
    const int64_t shift = aligned ? 0 : 1;
    Matrix x0(dtype, rows, cols, ld, shift), y(dtype, rows, cols, ld, shift),
        x(dtype, rows, cols, ld, shift), bias(dtype, 1, cols, cols, shift),
        out(dtype, rows, ld, ld, shift);
    for (Matrix* m : {&x0, &y, &x, &bias}) m->Randomize(random_);
    Dispatch(CrossCall{.x0 = x0.data(),
                       .y = y.data(),
                       .bias = with_bias ? bias.data() : nullptr,
                       .x = x.data(),
                       .out = out.data(),
                       .ld_x0 = ld,
                       .ld_y = ld,
                       .ld_x = ld,
                       .ld_out = ld,
                       .rows = rows,
                       .cols = cols,
                       .pad = static_cast<int32_t>(ld - cols),
                       .dtype = dtype},
             launcher_);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const double want =
            x0.at(r, c) * (y.at(r, c) + (with_bias ? bias.at(0, c) : 0)) +
            x.at(r, c);
        ASSERT_NEAR(out.at(r, c), want, 1e-6 + 3 * Rounding(dtype));
      }
      for (int64_t c = cols; c < ld; ++c) ASSERT_EQ(out.at(r, c), 0.0);
    }
  }
}

TEST_F(KernelsTest, GatherExpandsRowsAndCountsBadIndices) {
  for (int round = 0; round < 60 && !HasFatalFailure(); ++round) {
    const DType dtype = kFloats[random_() % 3];
    const int64_t capacity = Pick({1, 5, 16});
    // A request may lie about how many there are.
    const auto num_unique = static_cast<int32_t>(Pick({0, 1, 3, 16, 1000, -4}));
    const int64_t per_item = Pick({1, 3});
    const int64_t bucket = Pick({1, 8});
    const auto batch = static_cast<int32_t>(random_() % (bucket + 1));
    const int64_t rows = bucket * per_item;
    const int64_t cols = Pick({1, 7, 16, 128});
    const bool aligned = random_() % 2 == 0;
    const int64_t ld = aligned ? PaddedLd(cols, dtype) : cols + 1;
    const int64_t shift = aligned ? 0 : 1;
    Matrix unique(dtype, capacity, cols, ld, shift),
        out(dtype, rows, ld, ld, shift);
    unique.Randomize(random_);
    std::vector<int32_t> index(static_cast<size_t>(rows));
    for (int32_t& i : index) {
      i = random_() % 8 == 0 ? static_cast<int32_t>(random_())
                             : static_cast<int32_t>(random_() % 5);
    }
    int32_t faults = 0;
    Dispatch(GatherCall{.unique = unique.data(),
                        .index = index.data(),
                        .num_unique = &num_unique,
                        .batch = &batch,
                        .faults = &faults,
                        .out = out.data(),
                        .ld_unique = ld,
                        .ld_out = ld,
                        .rows = rows,
                        .cols = cols,
                        .capacity = capacity,
                        .rows_per_item = per_item,
                        .pad = static_cast<int32_t>(ld - cols),
                        .dtype = dtype},
             launcher_);
    int32_t want_faults = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t from = index[static_cast<size_t>(r)];
      const bool used = r < batch * per_item;
      const bool found =
          from >= 0 && from < std::min<int64_t>(num_unique, capacity);
      want_faults += used && !found;
      for (int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(out.at(r, c), used && found ? unique.at(from, c) : 0.0);
      }
      for (int64_t c = cols; c < ld; ++c) ASSERT_EQ(out.at(r, c), 0.0);
    }
    ASSERT_EQ(faults, want_faults);
  }
}

TEST_F(KernelsTest, LayerNormAndSoftmax) {
  for (int round = 0; round < 60 && !HasFatalFailure(); ++round) {
    const DType dtype = kFloats[random_() % 3];
    const bool softmax = random_() % 2 == 0;
    const int64_t rows = Pick({0, 1, 9, 20});
    const int64_t cols = Pick({1, 2, 31, 64, 200});
    const int64_t ld = PaddedLd(cols, dtype);
    Matrix in(dtype, rows, cols, ld), gamma(dtype, 1, cols, cols),
        beta(dtype, 1, cols, cols), out(dtype, rows, ld, ld);
    for (Matrix* m : {&in, &gamma, &beta}) m->Randomize(random_);
    const bool affine = !softmax && random_() % 2 == 0;
    if (rows > 1 && round % 4 == 0) in.Set(0, 0, NAN);
    Dispatch(RowNormCall{.softmax = softmax,
                         .in = in.data(),
                         .gamma = affine ? gamma.data() : nullptr,
                         .beta = affine ? beta.data() : nullptr,
                         .out = out.data(),
                         .ld_in = ld,
                         .ld_out = ld,
                         .rows = rows,
                         .cols = cols,
                         .pad = static_cast<int32_t>(ld - cols),
                         .epsilon = 1e-3f,
                         .dtype = dtype},
             launcher_);
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, exps = 0, squares = 0, largest = -INFINITY;
      for (int64_t c = 0; c < cols; ++c) {
        sum += in.at(r, c);
        largest = std::max(largest, in.at(r, c));
      }
      const double mean = sum / static_cast<double>(cols);
      for (int64_t c = 0; c < cols; ++c) {
        exps += std::exp(in.at(r, c) - largest);
        squares += (in.at(r, c) - mean) * (in.at(r, c) - mean);
      }
      const double scale =
          1 / std::sqrt(squares / static_cast<double>(cols) + 1e-3);
      for (int64_t c = 0; c < cols; ++c) {
        double want = softmax ? std::exp(in.at(r, c) - largest) / exps
                              : (in.at(r, c) - mean) * scale;
        if (affine) want = want * gamma.at(0, c) + beta.at(0, c);
        ExpectNear(out.at(r, c), want,
                   2e-5 + std::fabs(want) * 2 * Rounding(dtype));
      }
      for (int64_t c = cols; c < ld; ++c) ASSERT_EQ(out.at(r, c), 0.0);
    }
  }
}

}  // namespace
}  // namespace refract::runtime::cuda
