#ifndef REFRACT_RUNTIME_CPU_ELEMENTS_CHAIN_RUN_H_
#define REFRACT_RUNTIME_CPU_ELEMENTS_CHAIN_RUN_H_

// Element-wise chains over any range of their elements. Other kernels use them
// to compute their inputs, or to process their results, while these are in the
// first-level cache.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/tensor.h"
#include "runtime/fusion/fused_op.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// Extends `dims` to the broadcast shape of both. InvalidArgument when they do
// not broadcast.
absl::Status Broadcast(const base::Dims& more, base::Dims& dims);

// Iterates one broadcast operand in the order of the result's elements. The
// default constructor leaves members unset.
class BroadcastWalk {
 public:
  BroadcastWalk() {}  // NOLINT: arrays of it are mostly unused
  // Iterates dense `from` broadcast to `dims`.
  BroadcastWalk(const base::TensorView& from, const base::Dims& dims);

  bool is_dense() const {
    return rank_ == 1 && (step_[0] == 1 || size_[0] == 1);
  }
  bool is_number() const { return rank_ == 1 && step_[0] == 0; }
  base::DType dtype() const { return dtype_; }
  const std::byte* data() const { return data_; }

  // Goes to the element of the result with this index.
  void MoveTo(int64_t element);
  // Writes the next `count` elements as float32.
  void Take(int64_t count, float* out);

 private:
  void NextRow();

  base::DType dtype_;
  const std::byte* data_;
  // Innermost first; the innermost step is 0 or 1.
  int rank_;
  std::array<int64_t, kMaxKernelRank + 1> size_;
  std::array<int64_t, kMaxKernelRank + 1> step_;
  std::array<int64_t, kMaxKernelRank + 1> index_;
  int64_t place_;
};

// A compiled chain. Immutable, thread-safe.
class ChainProgram {
 public:
  explicit ChainProgram(const ElementChainOp& op);

  const ElementChainOp& op() const { return op_; }
  // "mul+add".
  const std::string& name() const { return name_; }
  // Bytes of a ChainRun's registers.
  size_t register_bytes() const;

  // The broadcast shape of the operands; if `like` is an operand, it must have
  // this shape.
  absl::Status InferDims(const Operands& operands, base::Dims& dims) const;

 private:
  friend class ChainRun;
  void AssignRegisters();

  const ElementChainOp op_;
  const std::string name_;
  int num_registers_ = 0;
  std::vector<int> register_of_;  // per instruction
  std::vector<int> output_of_;    // per instruction; -1: none
};

// One run over one request's operands. Does not allocate.
class ChainRun {
 public:
  ChainRun() {}  // NOLINT: set by Begin()

  // `registers` has chain.register_bytes() and outlives the run. `given`: index
  // of an input that Run() receives instead of reading its operand; -1: none.
  // `chain` and `operands` must outlive this.
  void Begin(const ChainProgram& chain, const Operands& operands,
             const base::Dims& dims, float* registers, int given = -1);

  // The next element is the one with this index.
  void MoveTo(int64_t element);

  // Computes the next `count` elements. `outputs[i]` is the place of these
  // elements of output i, null if it is not read. `given_values` are these
  // elements of the given input and overlap no output.
  void Run(int64_t count, std::byte* const* outputs,
           const float* given_values = nullptr);

 private:
  enum class How : uint8_t { kFixed, kInPlace, kTaken, kGiven };

  const ChainProgram* chain_;
  float* registers_;
  int64_t position_;
  std::array<BroadcastWalk, kMaxChainInputs> walks_;
  std::array<How, kMaxChainInputs> how_;
};

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_ELEMENTS_CHAIN_RUN_H_
