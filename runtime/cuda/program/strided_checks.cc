// Validation of operators over strided tensors.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/cuda/program/strided_ops.h"

namespace refract::runtime::cuda {
namespace {

constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
// Most elements from a value's first: beyond the end of every value.
constexpr int64_t kFarthest = int64_t{1} << 60;

// Product of sizes; -1 beyond the limit or for a negative size.
int64_t CheckedCount(const std::vector<Rows>& dims, int64_t batch) {
  int64_t count = 1;
  for (const Rows& dim : dims) {
    const int64_t size = dim.At(batch);
    if (size < 0 || (size > 0 && count > kLimit / size)) return -1;
    count *= size;
  }
  return count;
}

// Checks one operator at a batch of 1 and at the largest batch, which stand for
// the batches between them: sizes, offsets and strides are lines over the
// batch. A result is empty, or a sentence without its subject, the operator:
// "has too many inputs".
class Checker {
 public:
  Checker(const DeviceProgram& program, int64_t max_batch)
      : program_(program), max_batch_(max_batch) {}

  std::string Check(const MapOp& op) const {
    std::string wrong = Dims(op.dims);
    if (!wrong.empty()) return wrong;
    if (op.inputs.size() > kMaxMapInputs) return "has too many inputs";
    if (op.code.empty() || op.code.size() > kMaxMapInstructions) {
      return "needs 1 to " + std::to_string(kMaxMapInstructions) +
             " instructions";
    }
    for (size_t i = 0; i < op.code.size(); ++i) {
      const MapInstruction& instruction = op.code[i];
      if (static_cast<int>(instruction.code) >= kNumElementCodes) {
        return "has an unknown instruction";
      }
      const uint8_t arguments[] = {instruction.a, instruction.b, instruction.c};
      for (int a = 0; a < ArgumentsOf(instruction.code); ++a) {
        // Instruction i may read the inputs and the results of instructions
        // before it.
        if (arguments[a] >= op.inputs.size() + i) {
          return "reads a register that is not written";
        }
      }
    }
    for (const MapInput& input : op.inputs) {
      if (input.tensor.value == kNone) continue;
      wrong = Reads(input.tensor, op.dims);
      if (!wrong.empty()) return wrong;
    }
    return Writes(op.out, op.dims);
  }

  std::string Check(const MatMulOp& op) const {
    std::string wrong = Dims(op.dims);
    if (!wrong.empty()) return wrong;
    if (op.dims.size() + 2 > kMaxRank) return "has too many dimensions";
    const auto with = [&](Rows rows, Rows cols) {
      std::vector<Rows> dims = op.dims;
      dims.push_back(rows);
      dims.push_back(cols);
      return dims;
    };
    for (const auto& [ref, dims] :
         {std::pair{&op.a, with(op.m, op.k)}, {&op.b, with(op.k, op.n)}}) {
      wrong = FloatingReads(*ref, dims);
      if (!wrong.empty()) return wrong;
    }
    if (op.bias.value != kNone) {
      wrong = FloatingReads(op.bias, {op.n});
      if (!wrong.empty()) return wrong;
    }
    return Writes(op.out, with(op.m, op.n));
  }

  std::string Check(const ReduceOp& op) const {
    std::string wrong = Dims(op.dims);
    if (!wrong.empty()) return wrong;
    if (op.inner < 1 || static_cast<size_t>(op.inner) > op.dims.size()) {
      return "reduces dimensions that its input does not have";
    }
    const std::vector<Rows> inner(op.dims.end() - op.inner, op.dims.end());
    for (int64_t batch : {int64_t{1}, max_batch_}) {
      if (CheckedCount(inner, batch) < 1) return "reduces no elements";
    }
    wrong = FloatingReads(op.in, op.dims);
    if (!wrong.empty()) return wrong;
    for (const TensorRef* ref : {&op.gamma, &op.beta}) {
      if (ref->value == kNone) continue;
      if (op.kind != ReduceKind::kLayerNorm) return "takes no gamma or beta";
      wrong = FloatingReads(*ref, inner);
      if (!wrong.empty()) return wrong;
    }
    if (KeepsElements(op.kind)) return Writes(op.out, op.dims);
    return Writes(op.out, {op.dims.begin(), op.dims.end() - op.inner});
  }

  // Ids come with a request, so that the table is checked for all rows that an
  // id within the table can select.
  std::string Check(const LookUpOp& op) const {
    std::string wrong = Dims(op.dims);
    if (!wrong.empty()) return wrong;
    wrong = IntegerReads(op.index, op.dims);
    if (!wrong.empty()) return wrong;
    if (op.table_rows < 0 || op.row_stride.per_item < 0 ||
        op.row_stride.fixed < 0) {
      return "has a table of negative size";
    }
    // The rows are a dimension of the table that the result lacks.
    std::vector<Rows> dims = op.dims;
    TensorRef table = op.table;
    dims.push_back({0, std::max<int64_t>(op.table_rows, 1)});
    table.strides.push_back(op.row_stride);
    wrong = FloatingReads(table, dims);
    if (!wrong.empty()) return wrong;
    int batch_dims = 0;
    for (const Rows& dim : op.dims) batch_dims += dim.per_item != 0;
    if (batch_dims > 1) return "has two dimensions that depend on the batch";
    return Writes(op.out, op.dims);
  }

  std::string Check(const IntegerOp& op) const {
    std::string wrong = Dims(op.dims);
    if (!wrong.empty()) return wrong;
    if (static_cast<int>(op.code) >= kNumIntegerCodes ||
        op.inputs.size() != static_cast<size_t>(OperandsOf(op.code))) {
      return "has more or fewer inputs than its code reads";
    }
    if (op.inner < 0 || static_cast<size_t>(op.inner) > op.dims.size()) {
      return "folds dimensions that its input does not have";
    }
    const auto split = op.dims.end() - op.inner;
    for (int64_t batch : {int64_t{1}, max_batch_}) {
      if (CheckedCount({split, op.dims.end()}, batch) < 1)
        return "folds no elements";
    }
    for (const IntegerInput& input : op.inputs) {
      if (input.tensor.value == kNone) continue;
      wrong = Reads(input.tensor, op.dims);
      if (!wrong.empty()) return wrong;
      const Value& value = program_.value(input.tensor.value);
      if (IsFloating(value.dtype) && op.code != IntegerCode::kCopy) {
        return "computes with " + value.name +
               ", whose elements are not integers";
      }
    }
    const std::vector<Rows> out(op.dims.begin(), split);
    wrong = Reads(op.out, out);
    if (!wrong.empty()) return wrong;
    const Value& value = program_.value(op.out.value);
    if (IsFloating(value.dtype)) return value.name + " is floating-point";
    return WritesAll(op.out, out);
  }

  std::string Check(const TakesOp& op) const {
    if (op.takes.empty() || op.takes.size() > kMaxTakeTables) {
      return "needs 1 to " + std::to_string(kMaxTakeTables) + " tables";
    }
    for (const Take& take : op.takes) {
      const std::string wrong = Check(op, take);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

  std::string Check(const BagsOp& op) const {
    std::string wrong = Dims({op.rows});
    if (!wrong.empty()) return wrong;
    if (op.bags.empty() || op.bags.size() > kMaxBagTables) {
      return "needs 1 to " + std::to_string(kMaxBagTables) + " tables";
    }
    const auto tables = static_cast<int64_t>(op.bags.size());
    if (op.rows.At(max_batch_) > kLimit / tables) {
      return "has more than 2^31 bags";
    }
    for (const Bag& bag : op.bags) {
      wrong = Check(op, bag);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

  std::string Check(const ForeignOp& op) const {
    if (op.kernel == nullptr) return "has no kernel";
    for (const ForeignArgument& argument : op.arguments) {
      if (argument.kind != ForeignKind::kTensor) continue;
      const std::string wrong = Reads(argument.tensor, argument.dims);
      if (!wrong.empty()) return wrong;
    }
    for (const ForeignResult& result : op.results) {
      if (result.tensor.value == kNone) continue;
      const std::string wrong = WritesAll(result.tensor, result.dims);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  std::string Check(const TakesOp& op, const Take& take) const {
    if (take.table_rows < 1 || take.dim < 1 || take.inner < 1) {
      return "has a size below the least possible";
    }
    const std::vector<Rows> ids = {op.rows, {0, take.inner}};
    const std::vector<Rows> out = {op.rows, {0, take.inner}, {0, take.dim}};
    std::string wrong = Dims(out);
    if (wrong.empty()) {
      wrong = FloatingReads(take.table, {{0, take.table_rows}, {0, take.dim}});
    }
    if (wrong.empty()) wrong = IntegerReads(take.ids, ids);
    if (wrong.empty()) wrong = ColumnsLieDense(take.table, take.dim);
    if (wrong.empty()) wrong = ColumnsLieDense(take.out, take.dim);
    return wrong.empty() ? Writes(take.out, out) : wrong;
  }
  static std::string ColumnsLieDense(const TensorRef& ref, int64_t dim) {
    const bool dense =
        dim == 1 || (!ref.strides.empty() && ref.strides.back() == kOneRow);
    return dense ? "" : "has rows whose columns are not contiguous";
  }
  std::string Check(const BagsOp& op, const Bag& bag) const {
    std::string wrong = Dims({bag.entries});
    if (!wrong.empty()) return wrong;
    if (bag.table_rows < 1 || bag.dim < 1 || bag.length < 0 ||
        bag.entries.fixed < 0) {
      return "has a size below the least possible";
    }
    const std::vector<Rows> table = {{0, bag.table_rows}, {0, bag.dim}};
    wrong = FloatingReads(bag.table, table);
    if (wrong.empty()) wrong = IntegerReads(bag.ids, {bag.entries});
    if (!wrong.empty()) return wrong;
    // Bags with offsets are checked by the kernel (bag_calls.h). Without
    // offsets the bags' ends follow from their number and length.
    if (bag.offsets.value != kNone) {
      Rows offsets = op.rows;
      offsets.fixed += bag.include_last ? 1 : 0;
      wrong = IntegerReads(bag.offsets, {offsets});
      if (!wrong.empty()) return wrong;
    } else {
      for (const int64_t batch : {int64_t{1}, max_batch_}) {
        if (bag.length > 0 &&
            op.rows.At(batch) > bag.entries.At(batch) / bag.length) {
          return "has bags that reach beyond the ids in " +
                 program_.value(bag.ids.value).name;
        }
      }
    }
    if (bag.weights.value != kNone) {
      if (bag.mode != BagMode::kSum) return "takes no weights";
      wrong = FloatingReads(bag.weights, {bag.entries});
      if (!wrong.empty()) return wrong;
    }
    for (const TensorRef* ref : {&bag.table, &bag.out}) {
      wrong = ColumnsLieDense(*ref, bag.dim);
      if (!wrong.empty()) return wrong;
    }
    return Writes(bag.out, {op.rows, {0, bag.dim}});
  }
  std::string IntegerReads(const TensorRef& ref,
                           const std::vector<Rows>& dims) const {
    const std::string wrong = Reads(ref, dims);
    if (!wrong.empty()) return wrong;
    const Value& value = program_.value(ref.value);
    return value.dtype == DType::kInt32 || value.dtype == DType::kInt64
               ? ""
               : value.name + " does not hold integers";
  }
  std::string Dims(const std::vector<Rows>& dims) const {
    if (dims.size() > kMaxRank) {
      return "has more than " + std::to_string(kMaxRank) + " dimensions";
    }
    for (const Rows& dim : dims) {
      if (dim.per_item < 0) return "has a size that shrinks as the batch grows";
    }
    for (int64_t batch : {int64_t{1}, max_batch_}) {
      if (CheckedCount(dims, batch) < 0) {
        return "has more than 2^31 elements at batch " + std::to_string(batch);
      }
    }
    return "";
  }
  std::string FloatingReads(const TensorRef& ref,
                            const std::vector<Rows>& dims) const {
    if (ref.value >= 0 &&
        static_cast<size_t>(ref.value) < program_.values.size() &&
        !IsFloating(program_.value(ref.value).dtype)) {
      return program_.value(ref.value).name + " is not floating-point";
    }
    return Reads(ref, dims);
  }
  // Checks that the elements lie in the value's columns.
  std::string Reads(const TensorRef& ref, const std::vector<Rows>& dims) const {
    if (ref.value < 0 ||
        static_cast<size_t>(ref.value) >= program_.values.size()) {
      return "names value " + std::to_string(ref.value) +
             ", which the program does not have";
    }
    const Value& value = program_.value(ref.value);
    if (ref.strides.size() != dims.size()) {
      return value.name + " has " + std::to_string(ref.strides.size()) +
             " strides for " + std::to_string(dims.size()) + " dimensions";
    }
    for (int64_t batch : {int64_t{1}, max_batch_}) {
      if (CheckedCount(dims, batch) == 0) continue;
      // The farthest element, each sum checked against overflow.
      int64_t last = ref.offset.At(batch);
      bool outside = last < 0;
      for (size_t d = 0; d < dims.size(); ++d) {
        const int64_t stride = ref.strides[d].At(batch);
        const int64_t steps = dims[d].At(batch) - 1;
        outside = outside || stride < 0 || stride > kLimit ||
                  (stride > 0 && steps > (kFarthest - last) / stride);
        if (!outside) last += steps * stride;
      }
      // One behind the value's last element. The padding behind its last row is
      // no part of the value.
      const int64_t end = (value.rows.At(batch) - 1) * value.ld + value.cols;
      if (outside || last >= end) {
        return "reaches outside " + value.name + " at batch " +
               std::to_string(batch);
      }
    }
    return "";
  }
  // Checks a result of a kernel that computes in floating point. Such kernels
  // store truth values as bool, but no integers.
  std::string Writes(const TensorRef& ref,
                     const std::vector<Rows>& dims) const {
    const std::string wrong = Reads(ref, dims);
    if (!wrong.empty()) return wrong;
    const Value& value = program_.value(ref.value);
    if (!IsFloating(value.dtype) && value.dtype != DType::kBool) {
      return value.name + " is neither floating-point nor bool";
    }
    return WritesAll(ref, dims);
  }
  std::string WritesAll(const TensorRef& ref,
                        const std::vector<Rows>& dims) const {
    const std::string wrong = Reads(ref, dims);
    if (!wrong.empty()) return wrong;
    const Value& value = program_.value(ref.value);
    for (int64_t batch : {int64_t{1}, max_batch_}) {
      // A write covers the value if it has as many elements, each at a
      // different place. Elements that are not written would show numbers of an
      // earlier request.
      if (CheckedCount(dims, batch) != value.rows.At(batch) * value.cols) {
        return "does not write all of " + value.name;
      }
      for (size_t d = 0; d < dims.size(); ++d) {
        if (dims[d].At(batch) > 1 && ref.strides[d].At(batch) == 0) {
          return "writes elements of " + value.name + " twice";
        }
      }
    }
    return "";
  }

  const DeviceProgram& program_;
  const int64_t max_batch_;
};

}  // namespace

template <typename StridedOp>
std::string WhyNotValid(const StridedOp& op, const DeviceProgram& program,
                        int64_t max_batch) {
  return Checker(program, max_batch).Check(op);
}

#define REFRACT_CUDA_STRIDED(Op) \
  template std::string WhyNotValid(const Op&, const DeviceProgram&, int64_t)
REFRACT_CUDA_STRIDED(MapOp);
REFRACT_CUDA_STRIDED(MatMulOp);
REFRACT_CUDA_STRIDED(ReduceOp);
REFRACT_CUDA_STRIDED(LookUpOp);
REFRACT_CUDA_STRIDED(IntegerOp);
REFRACT_CUDA_STRIDED(TakesOp);
REFRACT_CUDA_STRIDED(BagsOp);
REFRACT_CUDA_STRIDED(ForeignOp);
#undef REFRACT_CUDA_STRIDED

}  // namespace refract::runtime::cuda
