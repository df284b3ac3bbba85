// Element-wise chains run in tiles that stay in the first-level cache: every
// instruction goes over one tile before the next tile begins.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/cpu/elements/instruction.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

// A register of this many floats: the dozen that a chain needs fill a third of
// a first-level cache, and the cost of choosing an instruction is spread.
constexpr int64_t kTile = 256;

absl::Status Broadcast(const base::Dims& more, base::Dims& dims) {
  if (more == dims) return absl::OkStatus();
  base::Dims merged(std::max(more.size(), dims.size()), 1);
  for (size_t i = 1; i <= merged.size(); ++i) {
    const int64_t x = i <= dims.size() ? dims[dims.size() - i] : 1;
    const int64_t y = i <= more.size() ? more[more.size() - i] : 1;
    if (x != y && x != 1 && y != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("shapes ", base::DimsToString(dims), " and ",
                       base::DimsToString(more), " do not broadcast"));
    }
    merged[merged.size() - i] = x == 1 ? y : x;
  }
  dims = std::move(merged);
  return absl::OkStatus();
}

float ToFloat(DType dtype, const std::byte* data, int64_t i) {
  switch (dtype) {
    case DType::kBool:
      return data[i] != std::byte{0} ? 1.0f : 0.0f;
    case DType::kInt32:
      return static_cast<float>(reinterpret_cast<const int32_t*>(data)[i]);
    case DType::kInt64:
      return static_cast<float>(reinterpret_cast<const int64_t*>(data)[i]);
    default:
      return reinterpret_cast<const float*>(data)[i];
  }
}

// Walks one broadcast operand in the order of the result's elements.
class Walk {
 public:
  Walk() = default;
  // A dense tensor of `from` seen as `dims`, which it broadcasts to.
  Walk(const base::TensorView& from, const base::Dims& dims)
      : dtype_(from.dtype), data_(from.data) {
    int64_t stride = 1;
    // From the back; neighbours that are stepped through evenly are one.
    for (size_t i = 1; i <= dims.size(); ++i) {
      const int64_t size = dims[dims.size() - i];
      const int64_t own =
          i <= from.dims.size() ? from.dims[from.dims.size() - i] : 1;
      const int64_t step = own == 1 ? 0 : stride;
      stride *= own;
      if (size == 1) continue;
      if (rank_ > 0 && step == step_[rank_ - 1] * size_[rank_ - 1]) {
        size_[rank_ - 1] *= size;
      } else {
        size_[rank_] = size;
        step_[rank_] = step;
        ++rank_;
      }
    }
    if (rank_ == 0) {
      size_[0] = 1;
      step_[0] = 0;
      rank_ = 1;
    }
  }

  bool is_dense() const {
    return rank_ == 1 && (step_[0] == 1 || size_[0] == 1);
  }
  bool is_number() const { return rank_ == 1 && step_[0] == 0; }
  DType dtype() const { return dtype_; }
  const std::byte* data() const { return data_; }

  // The next `count` elements.
  void Take(int64_t count, float* out) {
    while (count > 0) {
      const int64_t run = std::min(count, size_[0] - index_[0]);
      if (step_[0] == 0) {
        std::fill_n(out, run, ToFloat(dtype_, data_, place_));
      } else {
        const int64_t first = place_ + index_[0] * step_[0];
        if (dtype_ == DType::kFloat32) {
          std::memcpy(out, reinterpret_cast<const float*>(data_) + first,
                      static_cast<size_t>(run) * sizeof(float));
        } else {
          for (int64_t i = 0; i < run; ++i) {
            out[i] = ToFloat(dtype_, data_, first + i);
          }
        }
      }
      out += run;
      count -= run;
      index_[0] += run;
      if (index_[0] == size_[0]) NextRow();
    }
  }

 private:
  void NextRow() {
    index_[0] = 0;
    for (int d = 1; d < rank_; ++d) {
      place_ += step_[d];
      if (++index_[d] < size_[d]) return;
      place_ -= step_[d] * size_[d];
      index_[d] = 0;
    }
  }

  DType dtype_ = DType::kFloat32;
  const std::byte* data_ = nullptr;
  // Innermost first; the innermost step is 0 or 1.
  int rank_ = 0;
  std::array<int64_t, kMaxKernelRank + 1> size_ = {};
  std::array<int64_t, kMaxKernelRank + 1> step_ = {};
  std::array<int64_t, kMaxKernelRank + 1> index_ = {};
  int64_t place_ = 0;
};

std::optional<float> NumberOf(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kInt:
      return static_cast<float>(operand.i);
    case Operand::Kind::kFloat:
      return static_cast<float>(operand.f);
    case Operand::Kind::kBool:
      return operand.b ? 1.0f : 0.0f;
    default:
      return std::nullopt;
  }
}

std::string NameOf(const ElementChainOp& op) {
  static constexpr const char* kNames[] = {
      "neg", "abs",     "relu",      "sigmoid",     "tanh",        "exp",
      "log", "log1p",   "sqrt",      "rsqrt",       "reciprocal",  "square",
      "erf", "gelu",    "gelu_tanh", "silu",        "logical_not", "leaky_relu",
      "elu", "clamp",   "scale",     "add",         "sub",         "mul",
      "div", "minimum", "maximum",   "eq",          "ne",          "lt",
      "le",  "gt",      "ge",        "logical_and", "logical_or",  "where"};
  static_assert(std::size(kNames) ==
                static_cast<size_t>(ElementCode::kSelect) + 1);
  std::string name;
  for (const ElementInstruction& instruction : op.code) {
    absl::StrAppend(&name, name.empty() ? "" : "+",
                    kNames[static_cast<size_t>(instruction.code)]);
  }
  return name;
}

class ElementChainKernel final : public Kernel {
 public:
  explicit ElementChainKernel(const ElementChainOp& op)
      : op_(op), name_(NameOf(op)) {
    AssignRegisters();
  }

  absl::string_view name() const override { return name_; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    base::Dims& dims = outputs[0].spec.dims;
    dims.clear();
    for (const ElementInput& input : op_.inputs) {
      if (input.operand == kNoOperand) continue;
      const Operand& operand = operands[input.operand];
      if (operand.kind != Operand::Kind::kTensor) continue;
      const absl::Status status = Broadcast(operand.tensor.dims, dims);
      if (!status.ok()) return status;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].spec.dtype =
          op_.outputs[i].is_bool ? DType::kBool : DType::kFloat32;
      if (i > 0) outputs[i].spec.dims = dims;
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const base::Dims& dims = outputs[0].spec.dims;
    int64_t total = 1;
    for (int64_t dim : dims) total *= dim;
    const size_t num_inputs = op_.inputs.size();
    float* const registers =
        ThreadScratch(ScratchUse::kKernel,
                      (num_inputs + static_cast<size_t>(num_registers_)) *
                          kTile * sizeof(float));
    float* const temporaries = registers + num_inputs * kTile;
    std::array<Walk, kMaxInputs> walks;
    std::array<const float*, kMaxInputs + kMaxInstructions> values;
    enum class How : uint8_t { kFixed, kInPlace, kTaken };
    std::array<How, kMaxInputs> how;
    for (size_t i = 0; i < num_inputs; ++i) {
      float* const own = registers + i * kTile;
      values[i] = own;
      how[i] = How::kFixed;
      std::optional<float> number = op_.inputs[i].number;
      if (op_.inputs[i].operand != kNoOperand) {
        const Operand& operand = operands[op_.inputs[i].operand];
        number = NumberOf(operand);
        if (!number) {
          walks[i] = Walk(operand.tensor, dims);
          if (total == 0) return absl::OkStatus();
          if (walks[i].is_dense() && walks[i].dtype() == DType::kFloat32) {
            how[i] = How::kInPlace;
            continue;
          }
          if (!walks[i].is_number()) {
            how[i] = How::kTaken;
            continue;
          }
          number = ToFloat(walks[i].dtype(), walks[i].data(), 0);
        }
      }
      std::fill_n(own, std::min(kTile, total), *number);
    }
    for (int64_t start = 0; start < total; start += kTile) {
      const int64_t count = std::min(kTile, total - start);
      for (size_t i = 0; i < num_inputs; ++i) {
        if (how[i] == How::kInPlace) {
          values[i] = reinterpret_cast<const float*>(walks[i].data()) + start;
        } else if (how[i] == How::kTaken) {
          walks[i].Take(count, registers + i * kTile);
        }
      }
      for (size_t i = 0; i < op_.code.size(); ++i) {
        const ElementInstruction& instruction = op_.code[i];
        float* out = temporaries + register_of_[i] * kTile;
        const int output = output_of_[i];
        const bool direct = output >= 0 && !op_.outputs[output].is_bool &&
                            outputs[output].data != nullptr;
        if (direct) {
          out = reinterpret_cast<float*>(outputs[output].data) + start;
        }
        values[num_inputs + i] = out;
        const auto at = [&](int index) {
          return index < 0 ? nullptr : values[index];
        };
        RunInstruction(instruction, at(instruction.a), at(instruction.b),
                       at(instruction.c), count, out);
        if (output >= 0 && op_.outputs[output].is_bool &&
            outputs[output].data != nullptr) {
          auto* const truths = outputs[output].data + start;
          for (int64_t j = 0; j < count; ++j) {
            truths[j] = std::byte{out[j] != 0};
          }
        }
      }
    }
    return absl::OkStatus();
  }

  static constexpr int kMaxInputs = kMaxChainInputs;
  static constexpr int kMaxInstructions = kMaxChainInstructions;

 private:
  // Results share registers once they were read for the last time.
  void AssignRegisters() {
    const int num_inputs = static_cast<int>(op_.inputs.size());
    const int count = static_cast<int>(op_.code.size());
    std::vector<int> last(count, -1);
    for (int i = 0; i < count; ++i) {
      for (int argument : {op_.code[i].a, op_.code[i].b, op_.code[i].c}) {
        if (argument >= num_inputs) last[argument - num_inputs] = i;
      }
    }
    output_of_.assign(count, -1);
    for (size_t i = 0; i < op_.outputs.size(); ++i) {
      output_of_[op_.outputs[i].instruction] = static_cast<int>(i);
    }
    std::vector<int> free;
    for (int i = 0; i < count; ++i) {
      if (free.empty()) free.push_back(num_registers_++);
      register_of_.push_back(free.back());
      free.pop_back();
      // Only now: a result must not overlap an argument.
      for (int j = 0; j < i; ++j) {
        if (last[j] == i) free.push_back(register_of_[j]);
      }
      if (last[i] < 0) free.push_back(register_of_[i]);
    }
  }

  const ElementChainOp op_;
  const std::string name_;
  int num_registers_ = 0;
  std::vector<int> register_of_;  // per instruction
  std::vector<int> output_of_;    // per instruction; -1: none
};

}  // namespace

std::unique_ptr<const Kernel> CreateElementChainKernel(
    const ElementChainOp& op) {
  return std::make_unique<ElementChainKernel>(op);
}

}  // namespace refract::runtime::cpu
