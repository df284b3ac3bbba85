#include "runtime/cuda/strided_ops.h"

#include <algorithm>
#include <limits>
#include <string>

namespace refract::runtime::cuda {
namespace {

constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
// Elements from a value's first: beyond what any value has.
constexpr int64_t kFarthest = int64_t{1} << 60;

// Product of sizes; -1 beyond the limit, or where one is negative.
int64_t Count(const std::vector<Rows>& dims, int64_t batch) {
  int64_t count = 1;
  for (const Rows& dim : dims) {
    const int64_t size = dim.At(batch);
    if (size < 0 || (size > 0 && count > kLimit / size)) return -1;
    count *= size;
  }
  return count;
}

class Checker {
 public:
  Checker(const Program& program, int64_t max_batch)
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
      if (static_cast<int>(instruction.code) >= kNumMapCodes) {
        return "has an unknown instruction";
      }
      const uint8_t arguments[] = {instruction.a, instruction.b, instruction.c};
      for (int a = 0; a < ArgumentsOf(instruction.code); ++a) {
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
      return "reduces dimensions that there are not";
    }
    const std::vector<Rows> inner(op.dims.end() - op.inner, op.dims.end());
    for (int64_t batch : {int64_t{1}, max_batch_}) {
      if (Count(inner, batch) < 1) return "reduces no elements";
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

  std::string Check(const LookUpOp& op) const {
    std::string wrong = Dims(op.dims);
    if (!wrong.empty()) return wrong;
    wrong = IntegerReads(op.index, op.dims);
    if (!wrong.empty()) return wrong;
    if (op.table_rows < 0 || op.row_stride.per_item < 0 ||
        op.row_stride.fixed < 0) {
      return "has a table of negative size";
    }
    // The table has one dimension more than the result shows of it.
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
      return "has a size that makes no sense";
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
    return dense ? "" : "has rows whose columns do not lie side by side";
  }
  std::string Check(const BagsOp& op, const Bag& bag) const {
    std::string wrong = Dims({bag.entries});
    if (!wrong.empty()) return wrong;
    if (bag.table_rows < 1 || bag.dim < 1 || bag.length < 0 ||
        bag.entries.fixed < 0) {
      return "has a size that makes no sense";
    }
    const std::vector<Rows> table = {{0, bag.table_rows}, {0, bag.dim}};
    wrong = FloatingReads(bag.table, table);
    if (wrong.empty()) wrong = IntegerReads(bag.ids, {bag.entries});
    if (!wrong.empty()) return wrong;
    if (bag.offsets.value != kNone) {
      Rows offsets = op.rows;
      offsets.fixed += bag.include_last ? 1 : 0;
      wrong = IntegerReads(bag.offsets, {offsets});
      if (!wrong.empty()) return wrong;
    } else {
      for (const int64_t batch : {int64_t{1}, max_batch_}) {
        if (bag.length > 0 &&
            op.rows.At(batch) > bag.entries.At(batch) / bag.length) {
          return "has bags beyond the ids in " +
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
               : value.name + " holds no integers";
  }
  std::string Dims(const std::vector<Rows>& dims) const {
    if (dims.size() > kMaxRank) {
      return "has more than " + std::to_string(kMaxRank) + " dimensions";
    }
    for (const Rows& dim : dims) {
      if (dim.per_item < 0) return "has a size that falls with the batch";
    }
    for (int64_t batch : {int64_t{1}, max_batch_}) {
      if (Count(dims, batch) < 0) {
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
  // The elements lie in the value's columns.
  std::string Reads(const TensorRef& ref, const std::vector<Rows>& dims) const {
    if (ref.value < 0 ||
        static_cast<size_t>(ref.value) >= program_.values.size()) {
      return "names value " + std::to_string(ref.value) +
             ", which there is not";
    }
    const Value& value = program_.value(ref.value);
    if (ref.strides.size() != dims.size()) {
      return value.name + " has " + std::to_string(ref.strides.size()) +
             " strides for " + std::to_string(dims.size()) + " dimensions";
    }
    for (int64_t batch : {int64_t{1}, max_batch_}) {
      if (Count(dims, batch) == 0) continue;
      int64_t last = ref.offset.At(batch);
      bool outside = last < 0;
      for (size_t d = 0; d < dims.size(); ++d) {
        const int64_t stride = ref.strides[d].At(batch);
        const int64_t steps = dims[d].At(batch) - 1;
        outside = outside || stride < 0 || stride > kLimit ||
                  (stride > 0 && steps > (kFarthest - last) / stride);
        if (!outside) last += steps * stride;
      }
      const int64_t end = (value.rows.At(batch) - 1) * value.ld + value.cols;
      if (outside || last >= end) {
        return "reaches outside " + value.name + " at batch " +
               std::to_string(batch);
      }
    }
    return "";
  }
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
      if (Count(dims, batch) != value.rows.At(batch) * value.cols) {
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

  const Program& program_;
  const int64_t max_batch_;
};

// Sizes and strides at one batch.
struct Lowerer {
  const LoweringContext& context;
  const std::function<void*(ValueId)>& address;

  int64_t At(const Rows& rows) const { return rows.At(context.batch); }

  std::byte* AddressOf(const TensorRef& ref) const {
    return static_cast<std::byte*>(address(ref.value)) +
           At(ref.offset) * SizeOf(context.program.value(ref.value).dtype);
  }
  void Strides(const TensorRef& ref, int64_t (&strides)[kMaxRank]) const {
    for (size_t d = 0; d < ref.strides.size(); ++d) {
      strides[d] = At(ref.strides[d]);
    }
  }
  StridedOperand Operand(const TensorRef& ref) const {
    StridedOperand operand;
    if (ref.value == kNone) return operand;
    operand.data = AddressOf(ref);
    operand.dtype = context.program.value(ref.value).dtype;
    Strides(ref, operand.strides);
    return operand;
  }
  // Sets dims and rank; gives how many elements there are.
  template <typename StridedCall>
  int64_t Dims(const std::vector<Rows>& dims, StridedCall& call) const {
    for (size_t d = 0; d < dims.size(); ++d) call.dims[d] = At(dims[d]);
    call.rank = static_cast<int32_t>(dims.size());
    return Count(dims, context.batch);
  }
  template <typename StridedCall>
  void Out(const TensorRef& ref, StridedCall& call) const {
    call.out = AddressOf(ref);
    call.out_dtype = context.program.value(ref.value).dtype;
    Strides(ref, call.out_strides);
  }

  Call operator()(const MapOp& op) const {
    MapCall call;
    call.count = Dims(op.dims, call);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      call.inputs[i] = Operand(op.inputs[i].tensor);
      call.inputs[i].number = op.inputs[i].number;
    }
    call.num_inputs = static_cast<int32_t>(op.inputs.size());
    std::copy(op.code.begin(), op.code.end(), call.code);
    call.num_instructions = static_cast<int32_t>(op.code.size());
    Out(op.out, call);
    MergeDims(call);
    return call;
  }

  // Dimensions that lie one behind the other in every operand are one: each
  // costs a division per element.
  static void MergeDims(MapCall& call) {
    const auto adjoins = [&](const int64_t* strides, int d) {
      return strides[d] == strides[d + 1] * call.dims[d + 1];
    };
    const auto drop = [&](int64_t* list, int d) {
      std::copy(list + d + 1, list + call.rank, list + d);
      list[call.rank - 1] = 0;
    };
    for (int d = call.rank - 2; d >= 0; --d) {
      bool merges = adjoins(call.out_strides, d);
      for (int i = 0; i < call.num_inputs; ++i) {
        merges = merges && adjoins(call.inputs[i].strides, d);
      }
      if (!merges) continue;
      call.dims[d + 1] *= call.dims[d];
      drop(call.dims, d);
      drop(call.out_strides, d);
      for (int i = 0; i < call.num_inputs; ++i) {
        drop(call.inputs[i].strides, d);
      }
      --call.rank;
    }
  }

  Call operator()(const MatMulOp& op) const {
    MatMulCall call;
    call.m = At(op.m);
    call.n = At(op.n);
    call.k = At(op.k);
    call.count = Dims(op.dims, call) * call.m * call.n;
    call.a = Operand(op.a);
    call.b = Operand(op.b);
    call.bias = Operand(op.bias);
    call.relu = op.relu;
    Out(op.out, call);
    return call;
  }

  Call operator()(const ReduceOp& op) const {
    ReduceCall call;
    (void)Dims(op.dims, call);
    call.inner_rank = op.inner;
    call.rank -= op.inner;
    call.rows = call.cols = 1;
    for (int d = 0; d < call.rank; ++d) call.rows *= call.dims[d];
    for (int d = 0; d < op.inner; ++d) call.cols *= call.dims[call.rank + d];
    call.in = Operand(op.in);
    call.gamma = Operand(op.gamma);
    call.beta = Operand(op.beta);
    call.epsilon = op.epsilon;
    call.kind = op.kind;
    Out(op.out, call);
    return call;
  }

  Call operator()(const LookUpOp& op) const {
    LookUpCall call;
    call.count = Dims(op.dims, call);
    for (size_t d = 0; d < op.dims.size(); ++d) {
      if (op.dims[d].per_item == 0) continue;
      call.batch_dim = static_cast<int32_t>(d);
      call.rows_per_item = op.dims[d].per_item;
      call.fixed_rows = op.dims[d].fixed;
    }
    call.table = Operand(op.table);
    call.index = Operand(op.index);
    call.batch = context.device_batch;
    call.faults = context.faults;
    call.row_stride = At(op.row_stride);
    call.table_rows = op.table_rows;
    call.outside = op.outside;
    Out(op.out, call);
    return call;
  }

  int32_t Stride(const TensorRef& ref, size_t d) const {
    return static_cast<int32_t>(At(ref.strides[d]));
  }
  DType TypeOf(const TensorRef& ref) const {
    return context.program.value(ref.value).dtype;
  }

  // A launch over several tables, which are left to fill in.
  template <typename TablesCall>
  TablesCall ForTables(const Rows& rows, size_t tables) const {
    TablesCall call;
    call.batch = context.device_batch;
    call.faults = context.faults;
    call.rows = At(rows);
    call.rows_per_item = rows.per_item;
    call.fixed_rows = rows.fixed;
    call.num_tables = static_cast<int32_t>(tables);
    return call;
  }

  Call operator()(const TakesOp& op) const {
    auto call = ForTables<TakesCall>(op.rows, op.takes.size());
    for (size_t i = 0; i < op.takes.size(); ++i) {
      const Take& take = op.takes[i];
      call.tables[i] = {.table = AddressOf(take.table),
                        .ids = AddressOf(take.ids),
                        .out = AddressOf(take.out),
                        .table_rows = take.table_rows,
                        .row_stride = Stride(take.table, 0),
                        .dim = static_cast<int32_t>(take.dim),
                        .inner = static_cast<int32_t>(take.inner),
                        .id_stride = Stride(take.ids, 0),
                        .inner_id_stride = Stride(take.ids, 1),
                        .out_stride = Stride(take.out, 0),
                        .inner_out_stride = Stride(take.out, 1),
                        .dtype = TypeOf(take.table),
                        .out_dtype = TypeOf(take.out),
                        .id_dtype = TypeOf(take.ids),
                        .outside = take.outside};
    }
    return call;
  }

  Call operator()(const BagsOp& op) const {
    auto call = ForTables<BagsCall>(op.rows, op.bags.size());
    for (size_t i = 0; i < op.bags.size(); ++i) {
      call.tables[i] = TableOf(op.bags[i]);
    }
    return call;
  }
  BagTable TableOf(const Bag& bag) const {
    BagTable table;
    table.table = AddressOf(bag.table);
    table.dtype = TypeOf(bag.table);
    table.row_stride = Stride(bag.table, 0);
    table.table_rows = bag.table_rows;
    table.dim = static_cast<int32_t>(bag.dim);
    table.ids = AddressOf(bag.ids);
    table.id_dtype = TypeOf(bag.ids);
    table.id_stride = Stride(bag.ids, 0);
    table.entries = static_cast<int32_t>(At(bag.entries));
    table.entries_per_item = static_cast<int32_t>(bag.entries.per_item);
    table.fixed_entries = static_cast<int32_t>(bag.entries.fixed);
    table.length = static_cast<int32_t>(bag.length);
    table.include_last = bag.include_last;
    if (bag.offsets.value != kNone) {
      table.offsets = AddressOf(bag.offsets);
      table.offset_dtype = TypeOf(bag.offsets);
      table.offset_stride = Stride(bag.offsets, 0);
    }
    if (bag.weights.value != kNone) {
      table.weights = AddressOf(bag.weights);
      table.weight_dtype = TypeOf(bag.weights);
      table.weight_stride = Stride(bag.weights, 0);
    }
    table.out = AddressOf(bag.out);
    table.out_dtype = TypeOf(bag.out);
    table.out_stride = Stride(bag.out, 0);
    table.mode = bag.mode;
    table.outside = bag.outside;
    table.padding_id = bag.padding_id;
    return table;
  }
};

struct Lister {
  std::vector<ValueId> ids;
  void Add(const TensorRef& ref) {
    if (ref.value != kNone) ids.push_back(ref.value);
  }
  void operator()(const MapOp& op) {
    for (const MapInput& input : op.inputs) Add(input.tensor);
  }
  void operator()(const MatMulOp& op) {
    for (const TensorRef* ref : {&op.a, &op.b, &op.bias}) Add(*ref);
  }
  void operator()(const ReduceOp& op) {
    for (const TensorRef* ref : {&op.in, &op.gamma, &op.beta}) Add(*ref);
  }
  void operator()(const LookUpOp& op) {
    for (const TensorRef* ref : {&op.table, &op.index}) Add(*ref);
  }
  void operator()(const TakesOp& op) {
    for (const Take& take : op.takes) {
      for (const TensorRef* ref : {&take.table, &take.ids}) Add(*ref);
    }
  }
  void operator()(const BagsOp& op) {
    for (const Bag& bag : op.bags) {
      for (const TensorRef* ref :
           {&bag.table, &bag.ids, &bag.offsets, &bag.weights}) {
        Add(*ref);
      }
    }
  }
  void operator()(const ForeignOp& op) {
    for (const ForeignArgument& argument : op.arguments) Add(argument.tensor);
  }
};

template <typename StridedOp>
std::vector<ValueId> List(const StridedOp& op) {
  Lister lister;
  lister(op);
  return std::move(lister.ids);
}

}  // namespace

#define REFRACT_CUDA_STRIDED(Op)                                          \
  std::vector<ValueId> InputsOfStrided(const Op& op) { return List(op); } \
  std::string WhyNotValid(const Op& op, const Program& program,           \
                          int64_t max_batch) {                            \
    return Checker(program, max_batch).Check(op);                         \
  }                                                                       \
  Call LowerStrided(const Op& op, const LoweringContext& context,         \
                    const std::function<void*(ValueId)>& address) {       \
    return Lowerer{context, address}(op);                                 \
  }
std::vector<ValueId> InputsOfStrided(const ForeignOp& op) { return List(op); }
std::string WhyNotValid(const ForeignOp& op, const Program& program,
                        int64_t max_batch) {
  return Checker(program, max_batch).Check(op);
}
REFRACT_CUDA_STRIDED(MapOp)
REFRACT_CUDA_STRIDED(MatMulOp)
REFRACT_CUDA_STRIDED(ReduceOp)
REFRACT_CUDA_STRIDED(LookUpOp)
REFRACT_CUDA_STRIDED(TakesOp)
REFRACT_CUDA_STRIDED(BagsOp)
#undef REFRACT_CUDA_STRIDED

}  // namespace refract::runtime::cuda
