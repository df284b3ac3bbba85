// Chains run in tiles that stay in the first-level cache: every instruction
// processes one tile before the next tile begins.

#include "runtime/cpu/elements/chain_run.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/elements/instruction.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

// Floats of a register. The dozen registers of a chain fill a third of a
// first-level cache, and the dispatch of an instruction is spread over a tile.
constexpr int64_t kTile = 256;

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

// The value of a number operand as float32; nullopt for tensors.
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
  std::string name;
  for (const ElementInstruction& instruction : op.code) {
    absl::StrAppend(
        &name, name.empty() ? "" : "+",
        models::kElementNames[static_cast<size_t>(instruction.code)]);
  }
  return name;
}

}  // namespace

// PyTorch's rule: dims are aligned at the last one, and a size of 1 takes any
// size.
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

BroadcastWalk::BroadcastWalk(const base::TensorView& from,
                             const base::Dims& dims)
    : dtype_(from.dtype), data_(from.data), rank_(0), index_{}, place_(0) {
  int64_t stride = 1;
  // From the last dimension; adjacent dimensions with an even step are merged.
  for (size_t i = 1; i <= dims.size(); ++i) {
    const int64_t size = dims[dims.size() - i];
    const int64_t own =
        i <= from.dims.size() ? from.dims[from.dims.size() - i] : 1;
    // A size of 1 is broadcast: the walk stays at the same element.
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
  // A single element: one dimension of size 1, so that Take() has no special
  // case.
  if (rank_ == 0) {
    size_[0] = 1;
    step_[0] = 0;
    rank_ = 1;
  }
}

void BroadcastWalk::MoveTo(int64_t element) {
  place_ = 0;
  for (int d = 0; d < rank_; ++d) {
    index_[d] = element % size_[d];
    element /= size_[d];
    // Take() adds the steps within the innermost dimension itself.
    if (d > 0) place_ += index_[d] * step_[d];
  }
}

void BroadcastWalk::Take(int64_t count, float* out) {
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

void BroadcastWalk::NextRow() {
  index_[0] = 0;
  for (int d = 1; d < rank_; ++d) {
    place_ += step_[d];
    // Odometer: carries into the next outer dimension.
    if (++index_[d] < size_[d]) return;
    place_ -= step_[d] * size_[d];
    index_[d] = 0;
  }
}

ChainProgram::ChainProgram(const ElementChainOp& op)
    : op_(op), name_(NameOf(op)) {
  AssignRegisters();
}

size_t ChainProgram::register_bytes() const {
  return (op_.inputs.size() + static_cast<size_t>(num_registers_)) * kTile *
         sizeof(float);
}

absl::Status ChainProgram::InferDims(const Operands& operands,
                                     base::Dims& dims) const {
  dims.clear();
  for (size_t i = 0; i < op_.inputs.size(); ++i) {
    if (op_.inputs[i].operand == kNoOperand) continue;
    const Operand& operand = operands[op_.inputs[i].operand];
    if (operand.kind != Operand::Kind::kTensor) continue;
    REFRACT_RETURN_IF_ERROR(Broadcast(operand.tensor.dims, dims));
  }
  // The chain took in an expand() to the shape of `like`, which would have
  // failed here.
  if (op_.like != kNoOperand && dims != operands[op_.like].tensor.dims) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", base::DimsToString(dims), " does not expand to ",
                     base::DimsToString(operands[op_.like].tensor.dims)));
  }
  return absl::OkStatus();
}

// Linear-scan register allocation: a register is free again after the last read
// of its result.
void ChainProgram::AssignRegisters() {
  const int num_inputs = static_cast<int>(op_.inputs.size());
  const int count = static_cast<int>(op_.code.size());
  // `last[i]`: the last instruction that reads the result of instruction i.
  std::vector<int> last(count, -1);
  for (int i = 0; i < count; ++i) {
    for (int argument : {op_.code[i].a, op_.code[i].b, op_.code[i].c}) {
      // Inputs have registers of their own and are never freed.
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
    // Freed only after the assignment: a result must not overlap an argument.
    for (int j = 0; j < i; ++j) {
      if (last[j] == i) free.push_back(register_of_[j]);
    }
    // Read by no instruction: an output, which has its own memory, or a result
    // that a bool output is narrowed from at once.
    if (last[i] < 0) free.push_back(register_of_[i]);
  }
}

void ChainRun::Begin(const ChainProgram& chain, const Operands& operands,
                     const base::Dims& dims, float* registers, int given) {
  chain_ = &chain;
  registers_ = registers;
  position_ = 0;
  int64_t total = 1;
  for (int64_t dim : dims) total *= dim;
  if (total == 0) return;
  const std::vector<ElementInput>& inputs = chain.op_.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (static_cast<int>(i) == given) {
      how_[i] = How::kGiven;
      continue;
    }
    how_[i] = How::kFixed;
    std::optional<float> number = inputs[i].number;
    if (inputs[i].operand != kNoOperand) {
      const Operand& operand = operands[inputs[i].operand];
      number = NumberOf(operand);
      if (!number) {
        BroadcastWalk& walk = walks_[i];
        walk = BroadcastWalk(operand.tensor, dims);
        if (walk.is_dense() && walk.dtype() == DType::kFloat32) {
          // Dense float32 needs no copy into a register.
          how_[i] = How::kInPlace;
          continue;
        }
        if (!walk.is_number()) {
          how_[i] = How::kTaken;
          continue;
        }
        // A tensor of one element is a number for the whole run.
        number = ToFloat(walk.dtype(), walk.data(), 0);
      }
    }
    // Numbers fill their register once per run.
    std::fill_n(registers + i * kTile, std::min(kTile, total), *number);
  }
}

void ChainRun::MoveTo(int64_t element) {
  position_ = element;
  for (size_t i = 0; i < chain_->op_.inputs.size(); ++i) {
    if (how_[i] == How::kTaken) walks_[i].MoveTo(element);
  }
}

void ChainRun::Run(int64_t total, std::byte* const* outputs,
                   const float* given_values) {
  const ElementChainOp& op = chain_->op_;
  const size_t num_inputs = op.inputs.size();
  float* const temporaries = registers_ + num_inputs * kTile;
  std::array<const float*, kMaxChainInputs + kMaxChainInstructions> values;
  // One tile at a time through all instructions.
  for (int64_t start = 0; start < total; start += kTile) {
    const int64_t count = std::min(kTile, total - start);
    for (size_t i = 0; i < num_inputs; ++i) {
      values[i] = registers_ + i * kTile;
      switch (how_[i]) {
        case How::kFixed:
          break;
        case How::kInPlace:
          values[i] = reinterpret_cast<const float*>(walks_[i].data()) +
                      position_ + start;
          break;
        case How::kTaken:
          walks_[i].Take(count, registers_ + i * kTile);
          break;
        case How::kGiven:
          values[i] = given_values + start;
          break;
      }
    }
    for (size_t i = 0; i < op.code.size(); ++i) {
      const ElementInstruction& instruction = op.code[i];
      float* out = temporaries + chain_->register_of_[i] * kTile;
      const int output = chain_->output_of_[i];
      const bool wanted = output >= 0 && outputs[output] != nullptr;
      const bool is_bool = wanted && op.outputs[output].is_bool;
      if (wanted && !is_bool) {
        // An output is computed at its destination, without a copy.
        out = reinterpret_cast<float*>(outputs[output]) + start;
      }
      values[num_inputs + i] = out;
      const auto at = [&](int index) {
        return index < 0 ? nullptr : values[index];
      };
      RunInstruction(instruction, at(instruction.a), at(instruction.b),
                     at(instruction.c), count, out);
      // Registers hold truth as 0 and 1; bool outputs are narrowed to bytes.
      if (is_bool) {
        std::byte* const truths = outputs[output] + start;
        for (int64_t j = 0; j < count; ++j) {
          truths[j] = std::byte{out[j] != 0};
        }
      }
    }
  }
  // A caller may run a chain in several calls, each going on where the last one
  // ended.
  position_ += total;
}

}  // namespace refract::runtime::cpu
