#ifndef REFRACT_BENCH_CUDA_PRODUCTS_H_
#define REFRACT_BENCH_CUDA_PRODUCTS_H_

// Single matrix products: those of a model, and random ones with what plain
// loops say of them.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/program/program.h"

namespace refract::bench {

// The different products of `program` at `batch`, in order.
std::vector<runtime::cuda::GemmShape> ProductShapes(
    const runtime::cuda::Program& program, int64_t batch);

// Random operands in this process's memory, aligned to 16 bytes. What lies
// between rows and all of the result is NaN: what must not be read, or written.
// Behind their last rows is a page that ends the program when it is touched.
class ProductCase {
 public:
  ProductCase(const runtime::cuda::GemmShape& shape, std::mt19937& random);

  // On the memory of this object, which the caller may write through it.
  runtime::cuda::GemmCall& call() { return call_; }

  int64_t in_bytes() const;
  int64_t weight_bytes() const;
  int64_t bias_bytes() const;
  int64_t out_bytes() const;

  // The largest error of the result at `out` ÷ what rounding may cost;
  // infinity where columns beside it were written. The operands are those of
  // call(), by loops in double. `rounds`: factors in fp32 are rounded to TF32.
  double Error(const void* out, bool rounds) const;

 private:
  // Of a matrix, with that page behind it.
  class Memory {
   public:
    explicit Memory(int64_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    void* get() const { return data_; }

   private:
    void* mapped_ = nullptr;
    size_t mapped_bytes_ = 0;
    void* data_ = nullptr;
  };
  // NaN but for `cols` of each row.
  static void Fill(const Memory& memory, runtime::cuda::DType dtype,
                   int64_t rows, int64_t cols, int64_t ld,
                   std::mt19937& random);

  runtime::cuda::GemmCall call_;
  const Memory in_, weight_, bias_, out_;
};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_PRODUCTS_H_
