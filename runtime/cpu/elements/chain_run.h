#ifndef REFRACT_RUNTIME_CPU_ELEMENTS_CHAIN_RUN_H_
#define REFRACT_RUNTIME_CPU_ELEMENTS_CHAIN_RUN_H_

// Element-wise chains over any stretch of their elements, so that other kernels
// can compute what they read, or go on with what they made, while it is in the
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

// Grows `dims` to the broadcast of both. InvalidArgument when there is none.
absl::Status Broadcast(const base::Dims& more, base::Dims& dims);

// Walks one broadcast operand in the order of the result's elements. Members
// are set by the second constructor only.
class BroadcastWalk {
 public:
  BroadcastWalk() {}  // NOLINT: many are made and few are used
  // A dense tensor of `from` seen as `dims`, which it broadcasts to.
  BroadcastWalk(const base::TensorView& from, const base::Dims& dims);

  bool is_dense() const {
    return rank_ == 1 && (step_[0] == 1 || size_[0] == 1);
  }
  bool is_number() const { return rank_ == 1 && step_[0] == 0; }
  base::DType dtype() const { return dtype_; }
  const std::byte* data() const { return data_; }

  // The next `count` elements as float32.
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

// A chain made ready to run. Immutable, thread-safe.
class ChainProgram {
 public:
  explicit ChainProgram(const ElementChainOp& op);

  const ElementChainOp& op() const { return op_; }
  // "mul+add".
  const std::string& name() const { return name_; }
  // Bytes that a ChainRun computes with.
  size_t register_bytes() const;

  // The broadcast of the operands' dims; where `like` is an operand, they must
  // be its dims.
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

  // `registers`: chain.register_bytes() for as long as this runs. `given`: an
  // input that comes with every call of Run() instead of from its operand; -1:
  // none. `chain` and `operands` must outlive this.
  void Begin(const ChainProgram& chain, const Operands& operands,
             const base::Dims& dims, float* registers, int given = -1);

  // The next `count` of the elements. `outputs[i]` is where output i's begin,
  // null for one that nobody reads; `given_values` are those elements of the
  // given input, and overlap no output.
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
