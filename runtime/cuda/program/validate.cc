// Validation of a program, before memory is planned and kernels run on it.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/calls/scalar.h"
#include "runtime/cuda/program/device_program.h"
#include "runtime/cuda/program/strided_ops.h"

namespace refract::runtime::cuda {
namespace {

// Kernels count elements in 32 bits, except elements of tables.
constexpr int64_t kMostElements = std::numeric_limits<int32_t>::max();
// Most bytes of a value: more than the addresses of any GPU, and small enough
// for sums in 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 48;

// Checks one program. Messages: "model m: operator o (linear): …".
class Validator {
 public:
  Validator(const DeviceProgram& program, int64_t max_batch)
      : program_(program), max_batch_(max_batch) {}

  Status Run() {
    if (max_batch_ < 1) return Error("max_batch is below 1");
    for (size_t i = 0; i < program_.values.size(); ++i) {
      REFRACT_CUDA_RETURN_IF_ERROR(CheckValue(static_cast<ValueId>(i)));
    }
    // Operators run in order, so that one pass suffices: what an operator reads
    // must have been written by inputs, weights or operators before.
    written_.resize(program_.values.size());
    for (ValueId id : program_.inputs) MarkWritten(id);
    for (ValueId id : program_.weights) MarkWritten(id);
    for (const Op& op : program_.ops) {
      where_ = "operator " + op.name + ": ";
      for (ValueId id : InputsOf(op)) {
        REFRACT_CUDA_RETURN_IF_ERROR(CheckId(id));
        if (!IsWritten(id)) {
          return Error(program_.value(id).name +
                       " is read before it is written");
        }
        const Value& value = program_.value(id);
        if (value.rows.At(max_batch_) > kMostElements / value.ld &&
            !IsTableOf(op, id)) {
          return Error(value.name +
                       " has more than 2^31 elements, which only tables of "
                       "look-ups may");
        }
      }
      const std::vector<ValueId> outputs = OutputsOf(op);
      if (outputs.empty()) return Error("has no output");
      for (ValueId out : outputs) {
        REFRACT_CUDA_RETURN_IF_ERROR(CheckId(out));
        const Value& value = program_.value(out);
        if (value.kind == ValueKind::kInput ||
            value.kind == ValueKind::kWeight) {
          return Error("writes " + value.name +
                       ", an input or weight that the caller provides");
        }
        if (Overlaps(out)) return Error(value.name + " is written twice");
        MarkWritten(out);
      }
      REFRACT_CUDA_RETURN_IF_ERROR(std::visit(
          [this](const auto& kind) { return Check(kind); }, op.kind));
    }
    where_.clear();
    for (ValueId id : program_.outputs) {
      if (!IsWritten(id)) {
        return Error("output " + program_.value(id).name + " is never written");
      }
    }
    return {};
  }

 private:
  Status Error(const std::string& what) const {
    return InvalidArgument("model " + program_.name + ": " + where_ + what);
  }
  Status CheckId(ValueId id) const {
    if (id >= 0 && static_cast<size_t>(id) < program_.values.size()) return {};
    return Error("names value " + std::to_string(id) +
                 ", which the program does not have");
  }
  Status CheckValue(ValueId id) {
    const Value& value = program_.value(id);
    where_ = "value " + value.name + ": ";
    if (value.cols < 1) return Error("has no columns");
    if (value.rows.per_item < 0 || value.rows.fixed < 0) {
      return Error("has negative rows");
    }
    if (value.host_dtype != value.dtype &&
        (!IsFloating(value.host_dtype) || !IsFloating(value.dtype) ||
         value.kind != ValueKind::kInput || value.rows != Rows{1, 0})) {
      return Error(std::string("is converted from ") + Name(value.host_dtype) +
                   ", which only floating inputs with one row per item may be");
    }
    REFRACT_CUDA_RETURN_IF_ERROR(CheckId(value.root));
    const Value& root = program_.value(value.root);
    if (root.root != value.root) return Error("is a view of a view");
    // A reshape covers all elements of its root; both must be dense, or padding
    // would count as elements.
    if (value.reshaped) {
      if (value.dtype != root.dtype || value.first_col != 0 ||
          value.ld != value.cols || root.ld != root.cols ||
          value.rows.per_item * value.cols != root.rows.per_item * root.cols ||
          value.rows.fixed * value.cols != root.rows.fixed * root.cols) {
        return Error("is declared a reshape of a value with another size, " +
                     root.name);
      }
      return {};
    }
    if (value.ld != root.ld || value.dtype != root.dtype ||
        value.rows != root.rows || value.first_col < 0 ||
        value.cols > root.cols - value.first_col) {
      return Error("reaches outside the columns of " + root.name);
    }
    if (value.root == id && value.ld < value.cols) {
      return Error("rows overlap");
    }
    if (value.counted && (value.kind != ValueKind::kInput || value.root != id ||
                          value.rows != kOneRow)) {
      return Error("is marked as counted, which only inputs of one row may be");
    }
    // The upload moves a number of 8 bytes as two of 4 (Instance).
    const bool in_halves = value.kind == ValueKind::kInput &&
                           value.rows == Rows{1, 0} && SizeOf(value.dtype) == 8;
    const int64_t limit = in_halves ? kMostElements / 2 : kMostElements;
    if (value.kind == ValueKind::kWeight && value.rows.per_item == 0 &&
        value.ld <= limit) {
      // Run() checks that only look-ups read a weight as large as a table.
      if (value.rows.fixed <= kMostBytes / SizeOf(value.dtype) / value.ld) {
        where_.clear();
        return {};
      }
      return Error("is larger than any memory");
    }
    if (value.ld > limit || value.rows.per_item > limit / max_batch_ ||
        value.rows.fixed > limit - value.rows.per_item * max_batch_ ||
        value.rows.At(max_batch_) > limit / value.ld) {
      return Error(std::string("has more than 2^") + (in_halves ? "30" : "31") +
                   " elements at batch " + std::to_string(max_batch_));
    }
    where_.clear();
    return {};
  }

  // The columns of its root that the value covers.
  const Value& ColumnsOf(ValueId id) const {
    const Value& value = program_.value(id);
    return value.reshaped ? program_.value(value.root) : value;
  }
  void MarkWritten(ValueId id) {
    const Value& value = ColumnsOf(id);
    written_[static_cast<size_t>(value.root)].emplace_back(
        value.first_col, value.first_col + value.cols);
  }
  bool Overlaps(ValueId id) const {
    const Value& value = ColumnsOf(id);
    for (const auto& [from, to] : written_[static_cast<size_t>(value.root)]) {
      if (value.first_col < to && from < value.first_col + value.cols) {
        return true;
      }
    }
    return false;
  }
  // Whether every column was written.
  bool IsWritten(ValueId id) const {
    const Value& value = ColumnsOf(id);
    auto ranges = written_[static_cast<size_t>(value.root)];
    std::sort(ranges.begin(), ranges.end());
    // Ranges do not overlap (Overlaps()), so that sorted ranges cover the
    // columns if each begins where the ones before have reached.
    int64_t reached = value.first_col;
    for (const auto& [from, to] : ranges) {
      if (from <= reached) reached = std::max(reached, to);
    }
    return reached >= value.first_col + value.cols;
  }

  // Whether `op` reads `id` only as a table.
  static bool IsTableOf(const Op& op, ValueId id) {
    int64_t as_table = 0;
    if (const auto* takes = std::get_if<TakesOp>(&op.kind)) {
      for (const Take& take : takes->takes) as_table += take.table.value == id;
    } else if (const auto* bags = std::get_if<BagsOp>(&op.kind)) {
      for (const Bag& bag : bags->bags) as_table += bag.table.value == id;
    } else if (const auto* look_up = std::get_if<LookUpOp>(&op.kind)) {
      as_table += look_up->table.value == id;
    }
    const std::vector<ValueId> inputs = InputsOf(op);
    return std::count(inputs.begin(), inputs.end(), id) == as_table;
  }

  Status Expect(bool holds, ValueId id, const std::string& what) const {
    if (holds) return {};
    return Error(program_.value(id).name + " " + what);
  }
  bool Floating(ValueId id) const {
    return IsFloating(program_.value(id).dtype);
  }
  // `id` has the type, rows and columns given.
  Status Same(ValueId id, DType dtype, Rows rows, int64_t cols) const {
    const Value& value = program_.value(id);
    REFRACT_CUDA_RETURN_IF_ERROR(Expect(
        value.dtype == dtype, id,
        std::string("is ") + Name(value.dtype) + ", not " + Name(dtype)));
    REFRACT_CUDA_RETURN_IF_ERROR(
        Expect(value.rows == rows, id,
               "has a number of rows that its operator does not take"));
    return Expect(value.cols == cols, id,
                  "has " + std::to_string(value.cols) + " columns, not " +
                      std::to_string(cols));
  }

  Status Check(const LinearOp& op) const {
    const Value& in = program_.value(op.in);
    const Value& out = program_.value(op.out);
    REFRACT_CUDA_RETURN_IF_ERROR(
        Expect(Floating(op.in), op.in, "is not floating-point"));
    REFRACT_CUDA_RETURN_IF_ERROR(
        Same(op.weight, in.dtype, Rows{0, out.cols}, in.cols));
    REFRACT_CUDA_RETURN_IF_ERROR(Same(op.out, in.dtype, in.rows, out.cols));
    if (HasBias(op.epilogue) != (op.bias != kNone)) {
      return Error(std::string("epilogue ") + Name(op.epilogue) +
                   (op.bias == kNone ? " needs a bias" : " takes no bias"));
    }
    if (op.bias == kNone) return {};
    return Same(op.bias, in.dtype, kOneRow, out.cols);
  }
  Status Check(const InteractionOp& op) const {
    const Value& dense = program_.value(op.dense);
    const Value& embeddings = program_.value(op.embeddings);
    REFRACT_CUDA_RETURN_IF_ERROR(
        Expect(Floating(op.dense), op.dense, "is not floating-point"));
    REFRACT_CUDA_RETURN_IF_ERROR(Expect(
        embeddings.cols % dense.cols == 0, op.embeddings,
        "is not a whole number of vectors of " + std::to_string(dense.cols)));
    REFRACT_CUDA_RETURN_IF_ERROR(
        Same(op.embeddings, dense.dtype, dense.rows, embeddings.cols));
    // The dense vector is the first feature; the others lie side by side in
    // `embeddings`.
    const int64_t features = 1 + embeddings.cols / dense.cols;
    REFRACT_CUDA_RETURN_IF_ERROR(
        Expect(features <= 2048, op.embeddings, "has more than 2047 vectors"));
    return Same(
        op.out, dense.dtype, dense.rows,
        (op.copy_dense ? dense.cols : 0) + NumPairs(features, op.diagonal));
  }
  template <typename StridedOp>
  Status Check(const StridedOp& op) const {
    const std::string wrong = WhyNotValid(op, program_, max_batch_);
    return wrong.empty() ? Status() : Error(wrong);
  }

  const DeviceProgram& program_;
  const int64_t max_batch_;
  std::string where_;
  // Per root: ranges of columns.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> written_;
};

}  // namespace

Status Validate(const DeviceProgram& program, int64_t max_batch) {
  return Validator(program, max_batch).Run();
}

}  // namespace refract::runtime::cuda
