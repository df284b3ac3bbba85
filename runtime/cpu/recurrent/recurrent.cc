// Per block of items and layer: one product gives the input sums of many steps;
// then each step's product with the state continues these sums, and the gates
// follow. The input products have many rows and use high tiles; only the state
// products are sequential.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/fused_kernels.h"
#include "runtime/cpu/recurrent/cell_weights.h"
#include "runtime/cpu/recurrent/gates.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

using base::Dims;
using base::TensorView;

// Items computed together over all steps: enough for high tiles, and few enough
// that their sums and states stay in a second-level cache.
constexpr int64_t kBlockRows = 64;
// Bytes of input sums computed at once, over as many steps as fit: with few
// items, the steps fill the tile. A quarter of a second-level cache.
constexpr int64_t kSumBytes = int64_t{256} << 10;
// Bytes of the values between two layers, for all steps of a block. They stream
// through the caches, so only memory limits them, which the thread keeps. If
// they do not fit, a block has fewer items, but at least kLeastRows.
constexpr int64_t kSequenceBytes = int64_t{8} << 20;
constexpr int64_t kLeastRows = 16;

// A row distance that is a multiple of 1 KiB would make each product copy the
// rows (gemm.cc).
int64_t StateStride(int64_t padded) {
  return padded % 256 == 0 ? padded + kPanelColumns : padded;
}

// The weight of a kind, in the order of RecurrentOp::params.
const float*& PlaceOf(CellWeights& cell, int kind) {
  switch (kind) {
    case 0:
      return cell.w_ih;
    case 1:
      return cell.w_hh;
    case 2:
      return cell.b_ih;
    default:
      return cell.b_hh;
  }
}

// A tensor of items, steps and columns, with contiguous columns.
template <typename T>
struct Sequence {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t step_stride = 0;
};

struct Sizes {
  int64_t rows = 0;
  int64_t steps = 0;
  int64_t width = 0;
};

// Memory of one block of items; see Layout().
struct Workspace {
  float* sums = nullptr;  // [steps at once][rows][gates × padded] in any order
  float* apart = nullptr;  // kGru
  float* h = nullptr;
  float* c = nullptr;                      // kLstm
  float* between[2] = {nullptr, nullptr};  // layers: [rows][steps][columns]
};

class RecurrentKernel final : public Kernel {
 public:
  RecurrentKernel(RecurrentOp op, std::vector<CellWeights> constant,
                  std::shared_ptr<WeightArena> arena)
      : op_(std::move(op)),
        constant_(std::move(constant)),
        arena_(std::move(arena)),
        padded_(PaddedUnits(op_.units)),
        columns_(op_.gates() * padded_) {}

  absl::string_view name() const override {
    switch (op_.cell) {
      case RecurrentCell::kLstm:
        return op_.is_step ? "lstm_cell" : "lstm";
      case RecurrentCell::kGru:
        return op_.is_step ? "gru_cell" : "gru";
      case RecurrentCell::kTanh:
        return op_.is_step ? "rnn_tanh_cell" : "rnn_tanh";
      case RecurrentCell::kRelu:
        break;
    }
    return op_.is_step ? "rnn_relu_cell" : "rnn_relu";
  }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    const Sizes sizes = SizesOf(operands);
    const Dims& input = operands[op_.input].tensor.dims;
    if (sizes.steps == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name(), ": input ", base::DimsToString(input),
                       " has a sequence of length 0"));
    }
    Dims state = {sizes.rows, op_.units};
    if (!op_.is_step) {
      state.insert(state.begin(), op_.layers * op_.directions());
    }
    for (int place : op_.states) {
      const Dims& given = operands[place].tensor.dims;
      if (given != state) {
        return absl::InvalidArgumentError(absl::StrCat(
            name(), ": a state of ", base::DimsToString(given), " where input ",
            base::DimsToString(input), " wants ", base::DimsToString(state)));
      }
    }
    const absl::Status fits = CheckWeights(operands, sizes.width);
    if (!fits.ok()) return fits;
    size_t next = 0;
    for (KernelOutput& output : outputs) {
      output.spec.dtype = base::DType::kFloat32;
      if (next++ == 0 && !op_.is_step) {
        output.spec.dims = input;
        output.spec.dims[2] = op_.units * op_.directions();
      } else {
        output.spec.dims = state;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    const Sizes sizes = SizesOf(operands);
    if (sizes.rows == 0) return absl::OkStatus();
    const std::vector<CellWeights>* weights = &constant_;
    // Thread-local, so that a warm thread allocates nothing.
    static thread_local std::vector<CellWeights> given;
    if (HasGivenWeights()) {
      Rearrange(operands, given);
      weights = &given;
    }
    // Floats of one item between two layers.
    const int64_t sequence_row = sizes.steps * op_.directions() * op_.units;
    int64_t block = kBlockRows;
    if (op_.layers > 1) {
      block = std::clamp<int64_t>(
          kSequenceBytes / (sequence_row * static_cast<int64_t>(sizeof(float))),
          kLeastRows, kBlockRows);
    }
    // Blocks of nearly equal height, so that the last fills its tiles.
    const int64_t count = (sizes.rows + block - 1) / block;
    block = (sizes.rows + count - 1) / count;
    const int64_t at_once = StepsAtOnce(block, sizes.steps);
    const Workspace space = Layout(block, at_once, sequence_row);
    for (int64_t first = 0; first < sizes.rows; first += block) {
      RunBlock(operands, outputs, *weights, sizes, first,
               std::min(block, sizes.rows - first), at_once, space);
    }
    return absl::OkStatus();
  }

 private:
  Sizes SizesOf(const Operands& operands) const {
    const Dims& dims = operands[op_.input].tensor.dims;
    if (op_.is_step) return {dims[0], 1, dims[1]};
    return {dims[op_.batch_first ? 0 : 1], dims[op_.batch_first ? 1 : 0],
            dims[2]};
  }

  absl::Status CheckWeights(const Operands& operands, int64_t width) const {
    const int each = op_.params_per_cell();
    const int64_t rows = op_.gates() * op_.units;
    for (size_t i = 0; i < op_.params.size(); ++i) {
      const Dims& dims = operands[op_.params[i]].tensor.dims;
      const int kind = static_cast<int>(i) % each;
      const bool first_layer = static_cast<int>(i) < each * op_.directions();
      const int64_t inputs = first_layer ? width : op_.directions() * op_.units;
      Dims wanted = {rows};
      if (kind < 2) wanted.push_back(kind == 0 ? inputs : op_.units);
      if (dims != wanted) {
        return absl::InvalidArgumentError(
            absl::StrCat(name(), ": weights ", base::DimsToString(dims),
                         " where ", base::DimsToString(wanted),
                         " are wanted for inputs of ", width, " numbers"));
      }
    }
    return absl::OkStatus();
  }

  bool HasGivenWeights() const {
    return std::any_of(
        constant_.begin(), constant_.end(), [&](const CellWeights& cell) {
          return cell.w_ih == nullptr || cell.w_hh == nullptr ||
                 (op_.has_biases &&
                  (cell.b_ih == nullptr || cell.b_hh == nullptr));
        });
  }

  // Packs weights that a request brings, or that are being folded, next to the
  // constant ones.
  void Rearrange(const Operands& operands,
                 std::vector<CellWeights>& weights) const {
    const int64_t gates = op_.gates();
    const auto each = static_cast<size_t>(op_.params_per_cell());
    const auto tensor = [&](size_t cell, size_t kind) -> const TensorView& {
      return operands[op_.params[cell * each + kind]].tensor;
    };
    size_t bytes = 0;
    for (size_t cell = 0; cell < constant_.size(); ++cell) {
      for (size_t kind = 0; kind < 2; ++kind) {
        bytes += GatePanelBytes(gates, op_.units, tensor(cell, kind).dims[1]);
      }
      bytes += 2 * static_cast<size_t>(columns_) * sizeof(float);
    }
    float* place = ThreadScratch(ScratchUse::kPanels, bytes);
    weights = constant_;
    for (size_t cell = 0; cell < constant_.size(); ++cell) {
      CellWeights& to = weights[cell];
      for (size_t kind = 0; kind < each; ++kind) {
        const float*& target = PlaceOf(to, static_cast<int>(kind));
        if (target != nullptr) continue;
        target = place;
        const TensorView& from = tensor(cell, kind);
        if (kind < 2) {
          PackGatePanels(Floats(from), gates, op_.units, from.dims[1], place);
          place +=
              GatePanelBytes(gates, op_.units, from.dims[1]) / sizeof(float);
        } else {
          PadGates(Floats(from), gates, op_.units, place);
          place += columns_;
        }
      }
    }
  }

  int64_t StepsAtOnce(int64_t rows, int64_t steps) const {
    // As many steps as kSumBytes holds, in turns of nearly equal length.
    const int64_t bytes = rows * columns_ * static_cast<int64_t>(sizeof(float));
    const int64_t most = std::clamp<int64_t>(kSumBytes / bytes, 1, steps);
    const int64_t turns = (steps + most - 1) / most;
    return (steps + turns - 1) / turns;
  }

  Workspace Layout(int64_t rows, int64_t at_once, int64_t sequence_row) const {
    const int64_t sums = at_once * rows * columns_;
    const int64_t apart = op_.cell == RecurrentCell::kGru ? rows * padded_ : 0;
    const int64_t h = rows * StateStride(padded_);
    const int64_t c = op_.cell == RecurrentCell::kLstm ? rows * padded_ : 0;
    // Two layers need one sequence between them; more layers alternate between
    // two.
    const int64_t between = rows * sequence_row;
    const int64_t num_between = std::min(op_.layers - 1, 2);
    float* const base = ThreadScratch(
        ScratchUse::kKernel,
        static_cast<size_t>(sums + apart + h + c + num_between * between) *
            sizeof(float));
    Workspace space;
    space.sums = base;
    space.apart = space.sums + sums;
    space.h = space.apart + apart;
    space.c = space.h + h;
    space.between[0] = space.c + c;
    space.between[1] = space.between[0] + between;
    return space;
  }

  // Computes items [first, first + rows) through all layers.
  void RunBlock(const Operands& operands,
                absl::Span<const KernelOutput> outputs,
                const std::vector<CellWeights>& weights, const Sizes& sizes,
                int64_t first, int64_t rows, int64_t at_once,
                const Workspace& space) const {
    const int directions = op_.directions();
    const int64_t out_width = directions * op_.units;
    // Strides of a [batch, steps, …] or [steps, batch, …] tensor, at the
    // block's first item.
    const auto at = [&](auto* data, int64_t width) {
      Sequence<std::remove_reference_t<decltype(*data)>> sequence;
      sequence.row_stride = op_.batch_first ? sizes.steps * width : width;
      sequence.step_stride = op_.batch_first ? width : sizes.rows * width;
      sequence.data = data + first * sequence.row_stride;
      return sequence;
    };
    Sequence<const float> source =
        at(Floats(operands[op_.input].tensor), sizes.width);
    int64_t width = sizes.width;
    for (int layer = 0; layer < op_.layers; ++layer) {
      Sequence<float> target;
      if (layer + 1 < op_.layers) {
        target = {space.between[layer % 2], sizes.steps * out_width, out_width};
      } else if (!op_.is_step && outputs[0].data != nullptr) {
        target = at(reinterpret_cast<float*>(outputs[0].data), out_width);
      }
      for (int direction = 0; direction < directions; ++direction) {
        const int cell = layer * directions + direction;
        Sequence<float> columns = target;
        if (columns.data != nullptr) columns.data += direction * op_.units;
        const int64_t state = (cell * sizes.rows + first) * op_.units;
        LoadStates(operands, state, rows, space);
        RunSteps(weights[cell], source, {rows, sizes.steps, width}, columns,
                 direction == 1, at_once, space);
        StoreStates(outputs, state, rows, space);
      }
      source = {target.data, target.row_stride, target.step_stride};
      width = out_width;
    }
  }

  void LoadStates(const Operands& operands, int64_t offset, int64_t rows,
                  const Workspace& space) const {
    for (size_t i = 0; i < op_.states.size(); ++i) {
      const float* from = Floats(operands[op_.states[i]].tensor) + offset;
      float* to = i == 0 ? space.h : space.c;
      const int64_t stride = i == 0 ? StateStride(padded_) : padded_;
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(from, op_.units, to);
        std::fill(to + op_.units, to + padded_, 0.0f);
        from += op_.units;
        to += stride;
      }
    }
  }

  void StoreStates(absl::Span<const KernelOutput> outputs, int64_t offset,
                   int64_t rows, const Workspace& space) const {
    const size_t before = op_.is_step ? 0 : 1;
    for (size_t i = 0; i < op_.states.size(); ++i) {
      if (before + i >= outputs.size() || !outputs[before + i].data) continue;
      const float* from = i == 0 ? space.h : space.c;
      const int64_t stride = i == 0 ? StateStride(padded_) : padded_;
      float* to = reinterpret_cast<float*>(outputs[before + i].data) + offset;
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(from, op_.units, to);
        from += stride;
        to += op_.units;
      }
    }
  }

  // Computes one layer in one direction; `target.data` is null if no step's
  // output is read.
  void RunSteps(const CellWeights& weights, const Sequence<const float>& source,
                const Sizes& sizes, const Sequence<float>& target,
                bool backward, int64_t at_once, const Workspace& space) const {
    const int64_t h_stride = StateStride(padded_);
    // Columns of the gates whose state sums continue the input sums. For kGru
    // gate n is separate, because its state part is multiplied by r first.
    const int64_t joint =
        op_.cell == RecurrentCell::kGru ? 2 * padded_ : columns_;
    GateRows gates;
    gates.rows = sizes.rows;
    gates.padded = padded_;
    gates.apart = space.apart;
    gates.h = space.h;
    gates.h_stride = h_stride;
    gates.c = space.c;
    for (int64_t done = 0; done < sizes.steps; done += at_once) {
      const int64_t count = std::min(at_once, sizes.steps - done);
      // The backward direction takes groups of steps, and steps within a group,
      // in reverse.
      const int64_t first = backward ? sizes.steps - done - count : done;
      const Sequence<float> sums = AddInputs(
          weights, source, first, {sizes.rows, count, sizes.width}, space.sums);
      gates.sums_stride = sums.row_stride;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t step = backward ? count - 1 - i : i;
        float* const s = sums.data + step * sums.step_stride;
        // Continues the chains of the input sums: one chain per element, as in
        // one long product.
        Gemm(space.h, h_stride, sizes.rows, weights.w_hh, op_.units, joint,
             {weights.b_hh}, s, sums.row_stride, /*resumes=*/true);
        if (joint < columns_) {
          Gemm(space.h, h_stride, sizes.rows, weights.w_hh + joint * op_.units,
               op_.units, padded_,
               {weights.b_hh == nullptr ? nullptr : weights.b_hh + joint},
               space.apart, padded_);
        }
        gates.sums = s;
        ApplyGates(op_.cell, gates);
        if (target.data == nullptr) continue;
        float* to = target.data + (first + step) * target.step_stride;
        for (int64_t r = 0; r < sizes.rows; ++r) {
          std::copy_n(space.h + r * h_stride, op_.units, to);
          to += target.row_stride;
        }
      }
    }
  }

  // Computes x × w_ih + b_ih of steps [first, first + sizes.steps), in as few
  // products as the input's layout allows.
  Sequence<float> AddInputs(const CellWeights& weights,
                            const Sequence<const float>& source, int64_t first,
                            const Sizes& sizes, float* sums) const {
    const auto multiply = [&](const float* from, int64_t stride, int64_t rows,
                              float* to, int64_t to_stride) {
      Gemm(from, stride, rows, weights.w_ih, sizes.width, columns_,
           {weights.b_ih}, to, to_stride);
    };
    const float* const from = source.data + first * source.step_stride;
    // All rows are contiguous: steps of an item, or items of a step.
    if (source.row_stride == sizes.steps * source.step_stride) {
      multiply(from, source.step_stride, sizes.rows * sizes.steps, sums,
               columns_);
      return {sums, sizes.steps * columns_, columns_};
    }
    const Sequence<float> made = {sums, columns_, sizes.rows * columns_};
    if (source.step_stride == sizes.rows * source.row_stride) {
      multiply(from, source.row_stride, sizes.rows * sizes.steps, sums,
               columns_);
    } else if (sizes.steps > sizes.rows) {
      for (int64_t r = 0; r < sizes.rows; ++r) {
        multiply(from + r * source.row_stride, source.step_stride, sizes.steps,
                 sums + r * made.row_stride, made.step_stride);
      }
    } else {
      for (int64_t t = 0; t < sizes.steps; ++t) {
        multiply(from + t * source.step_stride, source.row_stride, sizes.rows,
                 sums + t * made.step_stride, made.row_stride);
      }
    }
    return made;
  }

  const RecurrentOp op_;
  const std::vector<CellWeights> constant_;  // null: a request brings it
  const std::shared_ptr<WeightArena> arena_;
  const int64_t padded_;
  const int64_t columns_;  // of all gates
};

}  // namespace

std::unique_ptr<const Kernel> CreateRecurrentKernel(
    const RecurrentOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing) {
  const auto cells = static_cast<size_t>(op.layers * op.directions());
  std::vector<CellWeights> weights(cells);
  if (constants.empty()) {
    return std::make_unique<RecurrentKernel>(op, std::move(weights), nullptr);
  }
  auto arena = packing.arena != nullptr ? packing.arena
                                        : std::make_shared<WeightArena>();
  PackedWeights none;
  auto& known = (packing.packed != nullptr ? *packing.packed : none).gates;
  const int64_t rows = op.gates() * op.units;
  const auto each = static_cast<size_t>(op.params_per_cell());
  for (size_t i = 0; i < op.params.size(); ++i) {
    const Operand* const constant = constants[op.params[i]];
    // Constants of a wrong size are refused when a request runs.
    if (constant == nullptr || constant->kind != Operand::Kind::kTensor ||
        constant->tensor.dims[0] != rows) {
      continue;
    }
    const bool is_bias = i % each >= 2;
    const float* const from = Floats(constant->tensor);
    const int64_t width = is_bias ? -1 : constant->tensor.dims[1];
    const float*& place =
        PlaceOf(weights[i / each], static_cast<int>(i % each));
    // Steps written as single cells read the same weight: pack it once.
    const float*& packed = known[{from, width, op.gates(), op.units}];
    if (packed == nullptr) {
      const size_t bytes =
          is_bias ? op.gates() * PaddedUnits(op.units) * sizeof(float)
                  : GatePanelBytes(op.gates(), op.units, width);
      auto* const to = reinterpret_cast<float*>(arena->Allocate(bytes));
      if (is_bias) {
        PadGates(from, op.gates(), op.units, to);
      } else {
        PackGatePanels(from, op.gates(), op.units, width, to);
      }
      packed = to;
    }
    place = packed;
  }
  return std::make_unique<RecurrentKernel>(op, std::move(weights),
                                           std::move(arena));
}

}  // namespace refract::runtime::cpu
