#include "bench/cuda/products.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <variant>

#include "runtime/cuda/program/lowering.h"

namespace refract::bench {

using runtime::cuda::DType;
using runtime::cuda::Epilogue;
using runtime::cuda::GemmCall;
using runtime::cuda::GemmShape;
using runtime::cuda::LinearOp;
using runtime::cuda::Load;
using runtime::cuda::SizeOf;

std::vector<GemmShape> ProductShapes(const runtime::cuda::Program& program,
                                     int64_t batch) {
  std::vector<GemmShape> shapes;
  std::set<GemmShape> seen;
  for (const runtime::cuda::Op& op : program.ops) {
    if (!std::holds_alternative<LinearOp>(op.kind)) continue;
    const runtime::cuda::Call call = runtime::cuda::Lower(
        op, {.program = program, .batch = batch},
        [](runtime::cuda::ValueId) -> void* { return nullptr; });
    const GemmShape& shape = std::get<GemmCall>(call).shape;
    if (seen.insert(shape).second) shapes.push_back(shape);
  }
  return shapes;
}

ProductCase::Memory::Memory(int64_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto used = static_cast<size_t>(bytes);
  const size_t before = (used + page - 1) / page * page;
  mapped_bytes_ = before + page;
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED ||
      mprotect(static_cast<char*>(mapped_) + before, page, PROT_NONE) != 0) {
    std::perror("memory for a product");
    std::exit(1);
  }
  data_ = static_cast<char*>(mapped_) + (before - used) / 16 * 16;
  std::memset(data_, 0xFF, used);
}
ProductCase::Memory::~Memory() { (void)munmap(mapped_, mapped_bytes_); }

void ProductCase::Fill(const Memory& memory, DType dtype, int64_t rows,
                       int64_t cols, int64_t ld, std::mt19937& random) {
  std::uniform_real_distribution<float> values(-1, 1);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      Store(values(random), memory.get(), dtype, row * ld + col);
    }
  }
}

ProductCase::ProductCase(const GemmShape& shape, std::mt19937& random)
    : call_{.shape = shape},
      in_(in_bytes()),
      weight_(weight_bytes()),
      bias_(bias_bytes()),
      out_(out_bytes()) {
  Fill(in_, shape.dtype, shape.m, shape.k, shape.ld_in, random);
  Fill(weight_, shape.dtype, shape.n, shape.k, shape.ld_weight, random);
  Fill(bias_, shape.dtype, 1, shape.n, shape.n, random);
  call_.in = in_.get();
  call_.weight = weight_.get();
  const bool has_bias =
      shape.epilogue != Epilogue::kNone && shape.epilogue != Epilogue::kRelu;
  call_.bias = has_bias ? bias_.get() : nullptr;
  call_.out = out_.get();
}

int64_t ProductCase::in_bytes() const {
  return call_.shape.m * call_.shape.ld_in * SizeOf(call_.shape.dtype);
}
int64_t ProductCase::weight_bytes() const {
  return call_.shape.n * call_.shape.ld_weight * SizeOf(call_.shape.dtype);
}
int64_t ProductCase::bias_bytes() const {
  return call_.shape.n * SizeOf(call_.shape.dtype);
}
int64_t ProductCase::out_bytes() const {
  return call_.shape.m * call_.shape.ld_out * SizeOf(call_.shape.dtype);
}

namespace {

// 11 bits of mantissa, the first of which is implied; halves away from zero.
double RoundedToTf32(double value) {
  int exponent;
  const double mantissa = std::frexp(value, &exponent);
  return std::ldexp(std::round(std::ldexp(mantissa, 11)), exponent - 11);
}

double Activation(Epilogue epilogue, double x) {
  switch (epilogue) {
    case Epilogue::kRelu:
    case Epilogue::kReluBias:
      return x < 0 ? 0 : x;
    case Epilogue::kGeluTanhBias:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
      return x;
  }
}

}  // namespace

double ProductCase::Error(const void* out, bool rounds) const {
  const GemmShape& s = call_.shape;
  const auto factors = [&](const void* data, int64_t rows, int64_t ld) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(rows * s.k));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < s.k; ++i) {
        const double value = Load(data, s.dtype, row * ld + i);
        values.push_back(rounds ? RoundedToTf32(value) : value);
      }
    }
    return values;
  };
  const std::vector<double> in = factors(call_.in, s.m, s.ld_in);
  const std::vector<double> weight = factors(call_.weight, s.n, s.ld_weight);
  const double unit = s.dtype == DType::kFloat32   ? std::ldexp(1, -24)
                      : s.dtype == DType::kFloat16 ? std::ldexp(1, -11)
                                                   : std::ldexp(1, -8);
  const auto k = static_cast<double>(s.k);
  double worst = 0;
  for (int64_t m = 0; m < s.m; ++m) {
    for (int64_t n = 0; n < s.n; ++n) {
      double sum = call_.bias == nullptr ? 0.0 : Load(call_.bias, s.dtype, n);
      const double* const x = in.data() + m * s.k;
      const double* const w = weight.data() + n * s.k;
      double squares = 0;
      for (int64_t i = 0; i < s.k; ++i) {
        sum += x[i] * w[i];
        squares += x[i] * w[i] * x[i] * w[i];
      }
      const double want = Activation(s.epilogue, sum);
      // k additions in fp32, some of which drop bits, of sums that stay within
      // six standard deviations; then one rounding.
      const double largest = 1 + std::abs(sum) + 6 * std::sqrt(squares);
      const double allowed =
          (k + 8) * largest * std::ldexp(1, -23) + std::abs(want) * unit;
      const double error =
          std::abs(Load(out, s.dtype, m * s.ld_out + n) - want) / allowed;
      if (!(error <= worst)) worst = error;
      if (std::isnan(worst)) return std::numeric_limits<double>::infinity();
    }
    for (int64_t n = s.n; n < s.ld_out; ++n) {
      if (!std::isnan(Load(out, s.dtype, m * s.ld_out + n))) {
        return std::numeric_limits<double>::infinity();
      }
    }
  }
  return worst;
}

}  // namespace refract::bench
